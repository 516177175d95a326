package compile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func ip(text string) netip.Addr { return netip.MustParseAddr(text) }

func ips(texts string) (list []netip.Addr) {
	for text := range strings.FieldsSeq(texts) {
		list = append(list, ip(text))
	}
	return list
}

// world is a store with a compiler that follows it.
type world struct {
	t testing.TB
	*Compiler
	store     *store.Store
	announced map[netip.Addr]*Announcement
	wanted    map[model.Name]*Wanted
	made      int // how many objects
}

func newWorld(t testing.TB, cfg Config) *world {
	return &world{t: t, Compiler: New(cfg), store: store.New(), announced: map[netip.Addr]*Announcement{}, wanted: map[model.Name]*Wanted{}}
}

func (w *world) set(objects ...model.Object) {
	events := make([]store.Event, len(objects))
	for i, o := range objects {
		events[i] = store.Event{Kind: o.Ref().Kind, Name: o.Ref().Name, Object: o}
	}
	w.store.Apply(events)
	w.update()
}

func (w *world) remove(refs ...model.Ref) {
	events := make([]store.Event, len(refs))
	for i, r := range refs {
		events[i] = store.Event{Kind: r.Kind, Name: r.Name}
	}
	w.store.Apply(events)
	w.update()
}

func (w *world) update() {
	d := w.store.Take()
	w.store.Read(func(v *store.View) { w.Update(v, d) })
	changes := w.Changes()
	apply(w.announced, changes.Announced)
	apply(w.wanted, changes.Wanted)
}

func apply[K comparable, V any](to, changes map[K]*V) {
	for k, v := range changes {
		if v == nil {
			delete(to, k)
		} else {
			to[k] = v
		}
	}
}

// pool makes a pool. Fields may be changed.
func (w *world) pool(name, ranges string, change ...func(*model.IPAddressPool)) *model.IPAddressPool {
	w.made++
	p := &model.IPAddressPool{Name: model.Name{Namespace: "lb", Name: name}, Created: start.Add(time.Duration(w.made) * time.Second), Services: model.Everything()}
	for text := range strings.FieldsSeq(ranges) {
		first, last, _ := strings.Cut(text, "-")
		p.Ranges = append(p.Ranges, model.AddressRange{First: ip(first), Last: ip(last)})
	}
	for _, c := range change {
		c(p)
	}
	return p
}

// service makes a Service of type LoadBalancer with a port and a cluster IP of IPv4.
func (w *world) service(name string, change ...func(*model.Service)) *model.Service {
	w.made++
	namespace, name, _ := strings.Cut(name, "/")
	s := &model.Service{
		Name: model.Name{Namespace: namespace, Name: name}, Created: start.Add(time.Duration(w.made) * time.Second), ClusterIPs: ips("10.96.0.1"),
		LoadBalancer: &model.LoadBalancer{Wanted: true}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func has(addrs string) func(*model.Service) {
	return func(s *model.Service) { s.LoadBalancer.Ingress, s.LoadBalancerIPs = ips(addrs), ips(addrs) }
}

func asks(addrs string) func(*model.Service) {
	return func(s *model.Service) { s.LoadBalancer.IPs = ips(addrs) }
}

func from(pool string) func(*model.Service) {
	return func(s *model.Service) { s.LoadBalancer.Pool = pool }
}

func key(k string) func(*model.Service) {
	return func(s *model.Service) { s.LoadBalancer.SharingKey = k }
}

func port(p uint16) func(*model.Service) {
	return func(s *model.Service) { s.Ports[0].Port = p }
}

func labelled(l string) func(*model.Service) {
	return func(s *model.Service) { s.LoadBalancer.Labels = map[string]string{"l": l} }
}

func local(selector string) func(*model.Service) {
	return func(s *model.Service) { s.ExternalLocal, s.Selector = true, map[string]string{"app": selector} }
}

func clusterIPs(addrs string) func(*model.Service) {
	return func(s *model.Service) { s.ClusterIPs = ips(addrs) }
}

func prefersBoth(s *model.Service) { s.LoadBalancer.PreferDualStack = true }

func noAuto(p *model.IPAddressPool) { p.ManualOnly = true }

func avoid(p *model.IPAddressPool) { p.AvoidBuggy = true }

func confined(priority int, namespaces ...string) func(*model.IPAddressPool) {
	return func(p *model.IPAddressPool) { p.Confined, p.Priority, p.Namespaces = true, priority, namespaces }
}

// gives returns what each Service has: "a=192.0.2.1 b=", sorted.
func (w *world) gives() string {
	var list []string
	for _, s := range w.services {
		list = append(list, s.Name.Name+"="+model.Join(s.ips, ","))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// says returns what is said of an object.
func (w *world) says(object model.Object) string {
	var list []string
	for _, i := range w.Issues() {
		if i.Object == object.Ref() {
			list = append(list, i.Reason)
		}
	}
	return strings.Join(list, "; ")
}

// writeAll has each status say what it should, as the writer does.
func (w *world) writeAll() {
	for range 10 {
		w.writeOnce()
	}
	if len(w.wanted) > 0 {
		w.t.Errorf("after all is written, more is to be: %v", w.wanted)
	}
}

func (w *world) writeOnce() {
	for name, want := range maps.Clone(w.wanted) {
		var old *model.Service
		w.store.Read(func(v *store.View) { old = v.Service(name) })
		s, lb := *old, *old.LoadBalancer
		lb.Ingress, s.LoadBalancerIPs = want.IPs, want.IPs
		s.LoadBalancer = &lb
		w.set(&s)
	}
}

func TestGive(t *testing.T) {
	const small = "192.0.2.1-192.0.2.3"
	const both = "10.96.0.1 fd00:96::1"
	for _, c := range []struct {
		name string
		make func(w *world) []model.Object
		want string
		says string // of the last object
	}{
		{"the lowest that is free, to the oldest first", func(w *world) []model.Object {
			return []model.Object{w.service("x/c"), w.service("x/a"), w.pool("p", small), w.service("x/b")}
		}, "a=192.0.2.2 b=192.0.2.3 c=192.0.2.1", ""},
		{"none is left", func(w *world) []model.Object {
			return []model.Object{w.pool("p", "192.0.2.1-192.0.2.1"), w.service("x/a"), w.service("x/b")}
		}, "a=192.0.2.1 b=", "it gets no address: none of lb/p (1 given out) has a free IPv4 address; add addresses to one"},
		{"what a status has comes first", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/a"), w.service("x/b", has("192.0.2.1"))}
		}, "a=192.0.2.2 b=192.0.2.1", ""},
		{"two statuses with one address: the older keeps it", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/b", has("192.0.2.2")), w.service("x/a", has("192.0.2.2"))}
		}, "a=192.0.2.1 b=192.0.2.2", ""},
		{"a certain one", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/a"), w.service("x/b", asks("192.0.2.1"))}
		}, "a=192.0.2.2 b=192.0.2.1", ""},
		{"another than it has", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/b", has("192.0.2.1"), asks("192.0.2.3"))}
		}, "b=192.0.2.3", ""},
		{"one that another has", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/a", has("192.0.2.1")), w.service("x/b", asks("192.0.2.1"))}
		}, "a=192.0.2.1 b=", "it asks for 192.0.2.1, which Service x/a has; Services share an address if"},
		{"one of no pool", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/b", asks("192.0.2.9"))}
		}, "b=", "192.0.2.9 is in no IPAddressPool"},
		{"one of the other family", func(w *world) []model.Object {
			return []model.Object{w.pool("p", "2001:db8::1-2001:db8::9"), w.service("x/b", asks("2001:db8::1"))}
		}, "b=", "2001:db8::1 is not of the family of its cluster IPs, 10.96.0.1"},
		{"by the name of the pool", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.pool("gold", "198.51.100.1-198.51.100.1", noAuto), w.service("x/a"), w.service("x/b", from("gold"))}
		}, "a=192.0.2.1 b=198.51.100.1", ""},
		{"of another pool than it has", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.pool("gold", "198.51.100.1-198.51.100.1"), w.service("x/b", has("192.0.2.1"), from("gold"))}
		}, "b=198.51.100.1", ""},
		{"of a pool that is not there", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/b", from("gold"))}
		}, "b=", "there is no IPAddressPool gold"},
		{"autoAssign: false", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small, noAuto), w.service("x/a", asks("192.0.2.2")), w.service("x/b")}
		}, "a=192.0.2.2 b=", "no IPAddressPool with autoAssign selects it"},
		{"priorities, for a namespace", func(w *world) []model.Object {
			return []model.Object{
				w.pool("a", "192.0.2.1-192.0.2.1"), w.pool("b", "192.0.2.2-192.0.2.2", confined(0, "x")), w.pool("c", "192.0.2.3-192.0.2.3", confined(20, "x")),
				w.pool("d", "192.0.2.4-192.0.2.4", confined(10, "x")), w.pool("e", "192.0.2.5-192.0.2.5", confined(1, "y")),
				w.service("x/a"), w.service("x/b"), w.service("x/c"), w.service("x/d"), w.service("x/e"),
			}
		}, "a=192.0.2.4 b=192.0.2.3 c=192.0.2.2 d=192.0.2.1 e=", "none of lb/d (1 given out), lb/c (1 given out), lb/b (1 given out), 1 more has"},
		{"selectors of namespaces and services", func(w *world) []model.Object {
			return []model.Object{
				&model.Namespace{Name: "x", Labels: map[string]string{"team": "red"}}, &model.Namespace{Name: "y"},
				w.pool("p", small, func(p *model.IPAddressPool) {
					p.Confined, p.NamespaceSelector, p.Services = true, model.Equal("team", "red"), model.Equal("l", "1")
				}),
				w.service("x/a", labelled("1")), w.service("x/b", labelled("2")), w.service("y/c", labelled("1"), asks("192.0.2.1")),
			}
		}, "a=192.0.2.1 b= c=", "192.0.2.1 is in IPAddressPool lb/p, whose serviceAllocation does not select it"},
		{"buggy addresses", func(w *world) []model.Object {
			return []model.Object{w.pool("p", "192.0.2.254-192.0.3.1", avoid), w.service("x/a"), w.service("x/b"), w.service("x/c", has("192.0.2.255"))}
		}, "a=192.0.2.254 b=192.0.3.1 c=", "none of lb/p (2 given out) has a free"},
		{"both families", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small+" 2001:db8::1-2001:db8::9"), w.service("x/a", clusterIPs("fd00:96::1 10.96.0.1")), w.service("x/b", clusterIPs(both))}
		}, "a=2001:db8::1,192.0.2.1 b=192.0.2.2,2001:db8::2", ""},
		{"both families, and no pool with both", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.pool("q", "2001:db8::1-2001:db8::9"), w.service("x/a", clusterIPs(both), prefersBoth), w.service("x/b", clusterIPs(both))}
		}, "a=192.0.2.1 b=", "has a free IPv4 and IPv6 address"},
		{"the other family comes later", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small+" 2001:db8::1-2001:db8::9"), w.service("x/a", clusterIPs(both), prefersBoth, has("192.0.2.3"))}
		}, "a=192.0.2.3,2001:db8::1", ""},
		{"sharing", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/z"), w.service("x/a", key("k"), has("192.0.2.3")), w.service("x/b", key("k"), port(81)), w.service("x/c", key("k")), w.service("x/d", key("other"), port(82))}
		}, "a=192.0.2.3 b=192.0.2.3 c=192.0.2.2 d= z=192.0.2.1", "has a free"},
		{"sharing a certain one", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/a", key("k"), asks("192.0.2.2")), w.service("y/b", key("k"), port(81), asks("192.0.2.2")), w.service("x/c", asks("192.0.2.2"), port(82))}
		}, "a=192.0.2.2 b=192.0.2.2 c=", "it asks for 192.0.2.2, which Service x/a has"},
		{"sharing with policy Local", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/a", key("k"), local("a")), w.service("x/b", key("k"), local("a"), port(81)), w.service("x/c", key("k"), local("c"), port(82)), w.service("x/d", key("k"), port(83))}
		}, "a=192.0.2.1 b=192.0.2.1 c=192.0.2.2 d=192.0.2.3", ""},
		{"overlapping pools", func(w *world) []model.Object {
			return []model.Object{w.service("x/a", from("q")), w.service("x/b", from("q")), w.pool("p", "192.0.2.2-192.0.2.3"), w.pool("q", "192.0.2.1-192.0.2.4 192.0.2.4-192.0.2.5")}
		}, "a=192.0.2.1 b=192.0.2.4", "it has 192.0.2.2-192.0.2.3, as the older IPAddressPool lb/p has, to which they count; take them out of one"},
		{"external IPs are not given out", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/a"), w.service("x/b", func(s *model.Service) { s.LoadBalancer, s.ExternalIPs = nil, ips("192.0.2.1") })}
		}, "a=192.0.2.2 b=", ""},
		{"of another class, of another type, without a cluster IP", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/a", func(s *model.Service) { s.LoadBalancer.Class = "other" }),
				w.service("x/b", has("192.0.2.1"), func(s *model.Service) { s.LoadBalancer.Wanted = false }), w.service("x/c", clusterIPs(""))}
		}, "a= b= c=", "it has no cluster IP"},
		{"what makes no sense", func(w *world) []model.Object {
			return []model.Object{w.pool("p", small), w.service("x/a", func(s *model.Service) { s.LoadBalancer.Fault = "no sense" })}
		}, "a=", "no sense"},
		{"addresses of nodes are not given out", func(w *world) []model.Object {
			return []model.Object{&model.Node{Name: "n1", Created: start, IPs: ips("192.0.2.1"), OtherIPs: ips("192.0.2.3")}, w.pool("p", small), w.service("x/a", has("192.0.2.3")), w.service("x/b", asks("192.0.2.1"))}
		}, "a=192.0.2.2 b=", "192.0.2.1 is an address of Node n1"},
		{"no pools: nothing changes", func(w *world) []model.Object {
			return []model.Object{w.service("x/a", has("192.0.2.1")), w.service("x/b")}
		}, "a=192.0.2.1 b=", "there is no IPAddressPool"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// All at once, and one by one in both orders once the statuses are written.
			w := newWorld(t, Config{})
			objects := c.make(w)
			w.set(objects...)
			last := objects[len(objects)-1]
			if got := w.gives(); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if got := w.says(last); c.says == "" && strings.Contains(got, "address:") || !strings.Contains(got, c.says) {
				t.Errorf("says %q, want %q", got, c.says)
			}
			w.writeAll()
			if got := w.gives(); got != c.want {
				t.Errorf("after it is written: %s, want %s", got, c.want)
			}
			var current []model.Object
			w.store.Read(func(v *store.View) {
				for name := range v.Services() {
					current = append(current, v.Service(name))
				}
				for _, p := range v.IPAddressPools() {
					current = append(current, p)
				}
				for _, n := range v.Namespaces() {
					current = append(current, n)
				}
				for _, n := range v.Nodes() {
					current = append(current, n)
				}
			})
			for range 3 {
				rand.Shuffle(len(current), func(i, j int) { current[i], current[j] = current[j], current[i] })
				again := newWorld(t, Config{})
				for _, o := range current {
					again.set(o)
				}
				if got := again.gives(); got != c.want || len(again.wanted) > 0 {
					t.Errorf("read again in another order: %s, want %s; to be written: %v", got, c.want, again.wanted)
				}
			}
		})
	}
}

// A Service may ask for a node's address where all of them may have those.
func TestNodeAddressesThatServicesMayHave(t *testing.T) {
	for _, c := range []struct{ allowed, want string }{{"192.0.2.0/24", "a=192.0.2.2 b=192.0.2.1"}, {"198.51.100.0/24", "a=192.0.2.2 b="}} {
		w := newWorld(t, Config{AllowNodeAddresses: []netip.Prefix{netip.MustParsePrefix(c.allowed)}})
		w.set(&model.Node{Name: "n1", Created: start, IPs: ips("192.0.2.1")}, w.pool("p", "192.0.2.1-192.0.2.2"), w.service("x/a"), w.service("x/b", asks("192.0.2.1")))
		if got := w.gives(); got != c.want {
			t.Errorf("%s: %s, want %s", c.allowed, got, c.want)
		}
	}
}

// TestChange changes pools and Services under live addresses.
func TestChange(t *testing.T) {
	w := newWorld(t, Config{})
	check := func(what, want string) {
		t.Helper()
		w.writeAll()
		if got := w.gives(); got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	p := w.pool("p", "192.0.2.1-192.0.2.2")
	a, b := w.service("x/a"), w.service("x/b")
	w.set(p, a, b)
	check("start", "a=192.0.2.1 b=192.0.2.2")
	c := w.service("x/c")
	w.set(c)
	check("full", "a=192.0.2.1 b=192.0.2.2 c=")
	w.remove(a.Ref())
	check("one is given back", "b=192.0.2.2 c=192.0.2.1")
	larger := *p
	larger.Ranges = []model.AddressRange{{First: ip("192.0.2.2"), Last: ip("192.0.2.9")}}
	w.set(&larger)
	check("the pool changes", "b=192.0.2.2 c=192.0.2.3")
	w.SetLacking(true)
	other := w.pool("q", "198.51.100.1-198.51.100.9")
	w.remove(p.Ref())
	w.set(other)
	check("the pool goes while not all is read", "b=192.0.2.2 c=192.0.2.3")
	w.SetLacking(false)
	w.update()
	check("all is read", "b=198.51.100.1 c=198.51.100.2")
	w.remove(other.Ref())
	check("no pool is left", "b=198.51.100.1 c=198.51.100.2")
	w.set(p)
	check("another comes", "b=192.0.2.1 c=192.0.2.2")
	late := &model.Node{Name: "n1", OtherIPs: ips("192.0.2.1")}
	w.set(late)
	check("a node comes with an external address that a Service has", "b=192.0.2.1 c=192.0.2.2")
	late = &model.Node{Name: "n1", IPs: ips("192.0.2.1")}
	w.set(late)
	check("it comes to have it as its own", "b= c=192.0.2.2")
	w.remove(late.Ref())
	check("the node goes", "b=192.0.2.1 c=192.0.2.2")
	n := &model.Node{Name: "n1", Created: start, IPs: ips("192.0.2.1")}
	w.set(n)
	check("an older node comes with an address of it", "b= c=192.0.2.2")
	if got := w.says(p); !strings.Contains(got, "it has 192.0.2.1, an address of Node n1") {
		t.Errorf("of the pool: %s", got)
	}
	w.remove(n.Ref())
	check("the node goes", "b=192.0.2.1 c=192.0.2.2")
	plain := *b
	plain.LoadBalancer = &model.LoadBalancer{Ingress: ips("192.0.2.1")}
	w.set(&plain)
	if want := w.wanted[b.Name]; want == nil || want.IPs != nil {
		t.Errorf("no longer a load balancer: %v is to be written", want)
	}
	again := plain
	again.LoadBalancer = &model.LoadBalancer{Ingress: ips("203.0.113.1")}
	w.set(&again)
	if want := w.wanted[b.Name]; want != nil {
		t.Errorf("the address of no pool is not ours: %v is to be written", want)
	}
	w.remove(b.Ref(), c.Ref())
	if len(w.held)+len(w.shared)+len(w.services)+len(w.waiting)+len(w.addresses) > 0 || w.pools[0].used != 0 {
		t.Errorf("something is left: %+v", w.Compiler)
	}
}

// TestProperty changes objects at random. Whatever came before: no two Services have an address
// that they do not share, all are permitted, nobody waits while an address is free for it, and a
// new compiler that reads the same gives the same.
func TestProperty(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, Config{})
		for range 60 {
			switch r.IntN(8) {
			case 0:
				first := r.IntN(20)
				w.set(w.pool(fmt.Sprint("p", r.IntN(3)), fmt.Sprintf("192.0.2.%d-192.0.2.%d 2001:db8::%d-2001:db8::%d", first, first+r.IntN(9), first, first+r.IntN(9)), func(p *model.IPAddressPool) {
					p.ManualOnly, p.AvoidBuggy, p.Confined = r.IntN(4) == 0, r.IntN(2) == 0, r.IntN(2) == 0
				}))
			case 1:
				w.remove(model.Ref{Kind: model.IPAddressPoolKind, Name: model.Name{Namespace: "lb", Name: fmt.Sprint("p", r.IntN(3))}})
			case 2:
				w.remove(model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: "x", Name: fmt.Sprint("s", r.IntN(12))}})
			case 3:
				w.writeAll()
			default:
				s := w.service(fmt.Sprint("x/s", r.IntN(12)), port(uint16(80+r.IntN(3))), clusterIPs([]string{"10.96.0.1", "fd00:96::1", "10.96.0.1 fd00:96::1"}[r.IntN(3)]))
				if r.IntN(3) == 0 {
					s.LoadBalancer.SharingKey = fmt.Sprint(r.IntN(2))
				}
				if r.IntN(4) == 0 && len(s.ClusterIPs) == 1 && s.ClusterIPs[0].Is4() {
					s.LoadBalancer.IPs = ips(fmt.Sprint("192.0.2.", r.IntN(30)))
				}
				s.LoadBalancer.PreferDualStack, s.ExternalLocal = r.IntN(2) == 0, r.IntN(4) == 0
				if r.IntN(3) == 0 {
					has(fmt.Sprint("192.0.2.", r.IntN(30)))(s)
				}
				w.set(s)
			}
			w.checkAll(seed)
		}
		w.writeAll()
		again := newWorld(t, Config{})
		again.store = w.store
		again.update()
		if again.gives() != w.gives() || len(again.wanted) > 0 {
			t.Errorf("seed %d: a new compiler gives %s, want %s; to be written: %v", seed, again.gives(), w.gives(), again.wanted)
		}
	}
}

func (w *world) checkAll(seed uint64) {
	w.t.Helper()
	used := map[*pool]map[netip.Addr]bool{}
	for _, s := range w.services {
		for _, a := range s.ips {
			if rival := w.rival(s, a); rival != nil {
				w.t.Fatalf("seed %d: %s and %s have %s", seed, s.Name, rival.Name, a)
			}
			if p := w.poolOf(a); p != nil {
				if used[p] == nil {
					used[p] = map[netip.Addr]bool{}
				}
				used[p][a] = true
			}
		}
		if why := w.check(s, s.ips); len(s.ips) > 0 && why != "" && len(w.pools) > 0 {
			w.t.Fatalf("seed %d: %s has %v: %s", seed, s.Name, s.ips, why)
		}
		if w.ours(s) && len(s.ips) == 0 {
			if s.fault == "" {
				w.t.Fatalf("seed %d: %s has no address, and nothing says why", seed, s.Name)
			}
			if w.assign(s); len(s.ips) > 0 {
				w.t.Fatalf("seed %d: %s had no address, and can have %v", seed, s.Name, s.ips)
			}
		}
	}
	for _, p := range w.pools {
		if p.used != len(used[p]) {
			w.t.Fatalf("seed %d: %d addresses of %s are counted, %d are in use", seed, p.used, p.Name, len(used[p]))
		}
	}
}

// many are services and a pool for them, on as many nodes as are given.
func many(w *world, services, nodes int) (objects []model.Object) {
	objects = append(objects, w.pool("p", "10.0.0.0-10.255.255.255"), &model.L2Advertisement{Name: model.Name{Namespace: "lb", Name: "l2"}, Advertised: model.Advertised{Nodes: model.Everything(), Services: model.Everything()}})
	for i := range services {
		objects = append(objects, w.service(fmt.Sprint("x/s", i)))
	}
	for i := range nodes {
		objects = append(objects, &model.Node{Name: fmt.Sprint("n", i), IPs: ips(fmt.Sprintf("172.16.%d.%d", i/256, i%256))})
	}
	return objects
}

// BenchmarkAll gives 10,000 Services addresses, and chooses their nodes.
func BenchmarkAll(b *testing.B) {
	objects := many(newWorld(b, Config{}), 10000, 100)
	for b.Loop() {
		b.StopTimer()
		w := newWorld(b, Config{Node: "n1"})
		b.StartTimer()
		w.set(objects...)
	}
}

// BenchmarkOne gives one more Service an address, and takes it away.
func BenchmarkOne(b *testing.B) {
	w := newWorld(b, Config{Node: "n1"})
	w.set(many(w, 10000, 100)...)
	w.writeAll()
	s := w.service("x/more")
	for b.Loop() {
		w.set(s)
		w.remove(s.Ref())
	}
}

// BenchmarkNodeGoes lets a node fall silent, and come back, with 10,000 addresses on 100 nodes.
func BenchmarkNodeGoes(b *testing.B) {
	w := newWorld(b, Config{Node: "n1"})
	w.set(many(w, 10000, 100)...)
	w.writeAll()
	for b.Loop() {
		w.SetSilent(map[string]bool{"n2": true})
		w.update()
		w.SetSilent(nil)
		w.update()
	}
}

// Whatever Services, pools and Nodes claim, a newer one takes no address from Services that were
// there before, whether an agent sees it come or finds all when it starts.
func TestOlderServicesKeepTheirAddresses(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t, Config{})
		some := func() string { return []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}[r.IntN(3)] }
		all := []model.Object{w.pool("p", "192.0.2.1-192.0.2.3")} // the oldest first
		for i := range 7 {
			name := fmt.Sprintf("x/%c", 'a'+(i*3+int(seed))%7) // not in the order of their ages
			switch r.IntN(4) {
			case 0:
				w.made++
				n := &model.Node{Name: name[2:], Created: start.Add(time.Duration(w.made) * time.Second), OtherIPs: ips(some())}
				if r.IntN(2) == 0 { // it has no InternalIP
					n.IPs, n.External, n.OtherIPs = n.OtherIPs, 1, nil
				}
				all = append(all, n)
			case 1:
				all = append(all, w.pool(name[2:], "192.0.2.2-192.0.2.9"))
			default:
				all = append(all, w.service(name, asks(some())))
			}
		}
		before, lasting := map[model.Name][]netip.Addr{}, newWorld(t, Config{})
		for count := 1; count <= len(all); count++ {
			x := newWorld(t, Config{})
			lasting.set(all[count-1])
			objects := slices.Clone(all[:count])
			r.Shuffle(count, func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
			x.set(objects...)
			for name, ips := range before {
				if now := x.services[name].ips; len(ips) > 0 && !slices.Equal(now, ips) {
					t.Fatalf("seed %d: %s has %v in place of %v once there is %v", seed, name, now, ips, all[count-1])
				}
			}
			if x.gives() != lasting.gives() {
				t.Fatalf("seed %d: at the start %s, one by one %s", seed, x.gives(), lasting.gives())
			}
			for name, s := range x.services {
				before[name] = s.ips
			}
		}
	}
}
