package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

func l2(name string, change ...func(*model.L2Advertisement)) *model.L2Advertisement {
	a := &model.L2Advertisement{Name: model.Name{Namespace: "lb", Name: name}, Advertised: model.Advertised{Nodes: model.Everything(), Services: model.Everything()}}
	for _, c := range change {
		c(a)
	}
	return a
}

func node(name string, labels ...string) *model.Node {
	n := &model.Node{Name: name, IPs: ips("172.16.0." + strings.TrimPrefix(name, "n")), Labels: map[string]string{"name": name}}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		n.Labels[k] = v
	}
	return n
}

// slice has endpoints of a Service on nodes; those after "-" are not ready, those after "+" serve
// still.
func slice(service string, nodes ...string) *model.EndpointSlice {
	namespace, name, _ := strings.Cut(service, "/")
	s := &model.EndpointSlice{Name: model.Name{Namespace: namespace, Name: name + "-1"}, Service: name}
	for _, n := range nodes {
		name := strings.TrimLeft(n, "+-")
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: ip("10.1.0.1"), Node: name, Ready: name == n, Serving: n[0] != '-', Terminating: n[0] == '+'})
	}
	return s
}

// TestElect has all nodes choose who announces one address.
func TestElect(t *testing.T) {
	at := ip("192.0.2.1")
	all := []string{"n1", "n2", "n3"}
	for _, c := range []struct {
		name   string
		make   func(w *world) []model.Object // beside the pool p
		silent []string
		among  []string // one of these announces it; none: nobody
		by     []string // on these interfaces
		says   string   // of the Service
	}{
		{name: "any node", among: all, make: func(w *world) []model.Object {
			return []model.Object{l2("l"), w.service("x/a", has("192.0.2.1"))}
		}},
		{name: "without an advertisement", make: func(w *world) []model.Object {
			return []model.Object{w.service("x/a", has("192.0.2.1"))}
		}},
		{name: "without a status yet", make: func(w *world) []model.Object {
			return []model.Object{l2("l"), w.service("x/a")}
		}},
		{name: "selected nodes and interfaces", among: []string{"n2"}, by: []string{"eth1", "eth2"}, make: func(w *world) []model.Object {
			on := func(names ...string) func(*model.L2Advertisement) {
				return func(a *model.L2Advertisement) { a.Interfaces, a.Nodes = names, model.Equal("name", "n2") }
			}
			return []model.Object{l2("l", on("eth2")), l2("m", on("eth1", "eth2")), w.service("x/a", has("192.0.2.1"))}
		}},
		{name: "selected nodes that are not there", make: func(w *world) []model.Object {
			return []model.Object{l2("l", func(a *model.L2Advertisement) { a.Nodes = model.Equal("name", "n9") }), w.service("x/a", has("192.0.2.1"))}
		}, says: "nobody announces 192.0.2.1: no node is there that the L2Advertisements of lb/p select"},
		{name: "of another pool, of another namespace, for other services", make: func(w *world) []model.Object {
			other := l2("o")
			other.Name.Namespace = "elsewhere"
			return []model.Object{other, l2("l", func(a *model.L2Advertisement) { a.Pools = []string{"q"} }), w.service("x/a", has("192.0.2.1"))}
		}},
		{name: "by the labels of the pool and the service", among: all, make: func(w *world) []model.Object {
			return []model.Object{l2("l", func(a *model.L2Advertisement) {
				a.PoolSelector, a.Services = model.Equal("tier", "gold"), model.Equal("l", "1")
			}), w.service("x/a", has("192.0.2.1"), labelled("1"))}
		}},
		{name: "preferred nodes", among: []string{"n3"}, make: func(w *world) []model.Object {
			return []model.Object{l2("l", func(a *model.L2Advertisement) {
				a.Preferred = []model.PreferredNodes{{Weight: 5, Nodes: model.In("name", "n2", "n3")}, {Weight: 1, Nodes: model.Equal("name", "n3")}}
			}), w.service("x/a", has("192.0.2.1"))}
		}},
		{name: "preferred nodes that are silent", silent: []string{"n2", "n3"}, among: []string{"n1"}, make: func(w *world) []model.Object {
			return []model.Object{l2("l", func(a *model.L2Advertisement) {
				a.Preferred = []model.PreferredNodes{{Weight: 5, Nodes: model.In("name", "n2", "n3")}}
			}), w.service("x/a", has("192.0.2.1"))}
		}},
		{name: "nodes that are not ready, leave or are excluded", among: []string{"n3"}, make: func(w *world) []model.Object {
			n1, n2 := node("n1"), node("n2", excludeLabel+"=")
			n1.NotReady = true
			n4 := node("n4")
			n4.Leaving = true
			return []model.Object{n1, n2, n4, l2("l"), w.service("x/a", has("192.0.2.1"))}
		}},
		{name: "no node is ready", among: []string{"n1", "n2", "n3"}, make: func(w *world) []model.Object {
			list := []model.Object{l2("l"), w.service("x/a", has("192.0.2.1"))}
			for _, name := range all {
				n := node(name)
				n.NotReady = true
				list = append(list, n)
			}
			return list
		}},
		{name: "policy Local: where a ready endpoint is", among: []string{"n2"}, make: func(w *world) []model.Object {
			return []model.Object{l2("l"), w.service("x/a", has("192.0.2.1"), local("a")), slice("x/a", "n2", "-n1", "+n3")}
		}},
		{name: "policy Local: one that serves still, where none is ready", among: []string{"n3"}, make: func(w *world) []model.Object {
			return []model.Object{l2("l"), w.service("x/a", has("192.0.2.1"), local("a")), slice("x/a", "-n1", "+n3")}
		}},
		{name: "policy Local: only where no advertisement selects the node", make: func(w *world) []model.Object {
			return []model.Object{l2("l", func(a *model.L2Advertisement) { a.Nodes = model.Equal("name", "n1") }),
				slice("x/a", "n2", "n3", "-n1"), w.service("x/a", has("192.0.2.1"), local("a"))}
		}, says: "nobody announces 192.0.2.1: externalTrafficPolicy is Local, and all endpoints are on nodes that the L2Advertisements of lb/p do not select: n2, n3"},
		{name: "all that may are silent", silent: []string{"n1", "n3"}, make: func(w *world) []model.Object {
			return []model.Object{l2("l", func(a *model.L2Advertisement) { a.Nodes = model.In("name", "n1", "n3") }), w.service("x/a", has("192.0.2.1"))}
		}, says: "nobody announces 192.0.2.1: no node that may is heard from: n1, n3"},
		{name: "for other services", make: func(w *world) []model.Object {
			return []model.Object{l2("l", func(a *model.L2Advertisement) { a.Services = model.Equal("l", "1") }), w.service("x/a", has("192.0.2.1"))}
		}, says: "nobody announces 192.0.2.1: no L2Advertisement of lb/p selects the Service (spec.serviceSelectors)"},
		{name: "policy Local: no endpoint is ready", make: func(w *world) []model.Object {
			return []model.Object{l2("l"), w.service("x/a", has("192.0.2.1"), local("a")), slice("x/a", "-n1")}
		}},
		{name: "an external IP", among: all, make: func(w *world) []model.Object {
			return []model.Object{l2("l"), w.service("x/a", func(s *model.Service) { s.LoadBalancer, s.ExternalIPs = nil, []netip.Addr{at} })}
		}},
		{name: "of another class", make: func(w *world) []model.Object {
			return []model.Object{l2("l"), w.service("x/a", has("192.0.2.1"), func(s *model.Service) { s.LoadBalancer.Class = "other" })}
		}},
	} {
		chosen := map[string]bool{}
		for _, own := range all {
			w := newWorld(t, Config{Node: own})
			w.SetSilent(set(c.silent))
			objects := c.make(w)
			w.set(append([]model.Object{w.pool("p", "192.0.2.1-192.0.2.9", func(p *model.IPAddressPool) { p.Labels = map[string]string{"tier": "gold"} }),
				node("n1"), node("n2"), node("n3")}, objects...)...)
			node := ""
			for _, a := range w.List() {
				if a.Address == at {
					node = a.Node
				}
			}
			chosen[node] = true
			own := w.announced[at]
			if (own != nil) != (node == w.cfg.Node) {
				t.Errorf("%s: on %s: %s announces it, and here: %v", c.name, w.cfg.Node, node, own)
			}
			if own != nil && !slices.Equal(own.Interfaces, c.by) {
				t.Errorf("%s: on %v, want %v", c.name, own.Interfaces, c.by)
			}
			if len(c.among) == 0 && node != "" || len(c.among) > 0 && !slices.Contains(c.among, node) {
				t.Errorf("%s: %q announces it, want one of %v", c.name, node, c.among)
			}
			if got := w.says(objects[len(objects)-1]); got != c.says {
				t.Errorf("%s: says %q, want %q", c.name, got, c.says)
			}
		}
		if len(chosen) > 1 {
			t.Errorf("%s: nodes disagree: %v", c.name, chosen)
		}
	}
}

// The node is MetalLB's choice: of these, what its speakers sort by was computed apart. One node
// announces both families of a Service, by the first address that the Service has.
func TestChoiceIsMetalLBs(t *testing.T) {
	w := newWorld(t, Config{Node: "n1"})
	of := func(clusterIPs string) func(*model.Service) {
		return func(s *model.Service) { s.ClusterIPs = ips(clusterIPs) }
	}
	w.set(w.pool("p", "192.0.2.1-192.0.2.9 2001:db8::1-2001:db8::9"), l2("l"), node("n1"), node("n2"), node("n3"),
		w.service("x/a", has("192.0.2.1")), w.service("x/b", has("192.0.2.2")), w.service("x/c", has("192.0.2.4")),
		w.service("x/d", has("2001:db8::2"), of("fd00::1")), w.service("x/e", has("192.0.2.8 2001:db8::3"), of("10.96.0.1 fd00::1")),
		w.service("x/f", has("2001:db8::1 192.0.2.6"), of("fd00::1 10.96.0.1")),
		w.service("x/g", func(s *model.Service) { s.LoadBalancer, s.ExternalIPs = nil, ips("192.0.2.5 192.0.2.7") }))
	got := map[string]string{}
	for _, a := range w.List() {
		got[a.Address.String()] = a.Node
	}
	want := map[string]string{"192.0.2.1": "n2", "192.0.2.2": "n1", "192.0.2.4": "n3", "2001:db8::2": "n3", "192.0.2.8": "n1", "2001:db8::3": "n1",
		"2001:db8::1": "n2", "192.0.2.6": "n2", "192.0.2.5": "n2", "192.0.2.7": "n3"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("nodes:\n%s", d)
	}
}

func set(names []string) map[string]bool {
	all := map[string]bool{}
	for _, n := range names {
		all[n] = true
	}
	return all
}

// A node that falls silent gives up its own addresses alone, to all others about alike, and gets
// them back.
func TestSilentNode(t *testing.T) {
	now := start
	w := newWorld(t, Config{Node: "n1", Now: func() time.Time { return now }})
	w.set(many(w, 3000, 10)...)
	w.writeAll()
	before := w.nodesOf()
	count := map[string]int{}
	for _, n := range before {
		count[n]++
	}
	for n, of := range count {
		if of < 200 || of > 400 {
			t.Errorf("%s announces %d of 3,000 addresses of 10 nodes", n, of)
		}
	}
	if len(w.announced) != count["n1"] {
		t.Errorf("n1 announces %d, want %d", len(w.announced), count["n1"])
	}
	now = now.Add(time.Hour)
	w.SetSilent(map[string]bool{"n2": true})
	w.update()
	got := map[string]int{}
	for a, n := range w.nodesOf() {
		if before[a] != n && before[a] != "n2" || n == "n2" {
			t.Errorf("%s goes from %s to %s", a, before[a], n)
		}
		if before[a] == "n2" {
			got[n]++
		}
	}
	if len(got) != 9 {
		t.Errorf("the addresses of n2 went to %v", got)
	}
	for _, a := range w.List() {
		if moved := before[a.Address] == "n2"; moved != a.Since.Equal(now) {
			t.Errorf("%s: announced by %s since %s", a.Address, a.Node, a.Since)
		}
	}
	w.SetSilent(nil)
	w.update()
	if !maps.Equal(w.nodesOf(), before) {
		t.Error("it does not get all of them back")
	}
	// It may have been there all the time, and others have announced what this node does.
	told := func(times int) {
		t.Helper()
		for a, is := range w.announced {
			if before[a] == "n1" && is.Returns != times {
				t.Errorf("neighbours are not told again of %s: %+v", a, is)
			}
		}
	}
	told(1)
	// So has one that did not hear this node.
	w.SetSilent(map[string]bool{"n2": false})
	w.update()
	if told(1); !maps.Equal(w.nodesOf(), before) {
		t.Error("a node that does not hear this one loses addresses")
	}
	w.SetSilent(nil)
	w.update()
	told(2)
	// One that is heard again announces, though it does not hear this one yet.
	w.SetSilent(map[string]bool{"n2": true})
	w.update()
	if got := w.says(node("n2")); !strings.Contains(got, "is not heard") {
		t.Errorf("of a silent node: %q", got)
	}
	w.SetSilent(map[string]bool{"n2": false})
	w.update()
	if told(2); !maps.Equal(w.nodesOf(), before) {
		t.Error("a node that is heard again, and does not hear this one, does not get its addresses back")
	}
	if got := w.says(node("n2")); got != "" {
		t.Errorf("of a node that is heard again: %q", got)
	}
}

func (w *world) nodesOf() map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for _, a := range w.List() {
		all[a.Address] = a.Node
	}
	return all
}

// The peers are those that may announce something, if this one may.
func TestPeers(t *testing.T) {
	w := newWorld(t, Config{Node: "n1"})
	peers := func(objects ...model.Object) string {
		w.store.Apply([]store.Event{})
		for _, o := range objects {
			w.store.Apply([]store.Event{{Kind: o.Ref().Kind, Name: o.Ref().Name, Object: o}})
		}
		d := w.store.Take()
		w.store.Read(func(v *store.View) { w.Update(v, d) })
		return fmt.Sprint(w.Changes().Peers)
	}
	for _, c := range []struct{ what, got, want string }{
		{"no advertisement", peers(node("n1"), node("n2"), node("n3")), "map[]"},
		{"one", peers(l2("l")), "map[n1:[172.16.0.1] n2:[172.16.0.2] n3:[172.16.0.3]]"},
		{"of some nodes", peers(l2("l", func(a *model.L2Advertisement) { a.Nodes = model.In("name", "n1", "n3") })), "map[n1:[172.16.0.1] n3:[172.16.0.3]]"},
		{"not of this one", peers(l2("l", func(a *model.L2Advertisement) { a.Nodes = model.Equal("name", "n3") })), "map[]"},
		{"nothing new", peers(slice("x/a", "n1")), "map[]"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", c.what, c.got, c.want)
		}
	}
}

// Once the last pool is gone, Services keep what their status has, and nobody announces it: that is
// named, unless a pool may only be unread.
func TestLastPool(t *testing.T) {
	w := newWorld(t, Config{Node: "n1"})
	p, s := w.pool("p", "192.0.2.1-192.0.2.9"), w.service("x/a", has("192.0.2.1"))
	only := w.service("x/b", func(s *model.Service) { s.LoadBalancer, s.ExternalIPs = nil, ips("192.0.2.2") })
	w.set(p, l2("l"), node("n1"), s, only)
	w.remove(p.Ref())
	if got := w.says(s); got != "nobody announces 192.0.2.1: it is in no IPAddressPool; make one that has it, or take it out of the status" {
		t.Errorf("of the Service: %q", got)
	}
	if list := w.List(); len(list) != 1 || list[0].Address != ip("192.0.2.1") || list[0].Pool != (model.Name{}) || list[0].Node != "" {
		t.Errorf("the addresses are %v", list)
	}
	if got := w.says(only); got != "" {
		t.Errorf("of an external IP, which is nobody's to announce: %q", got)
	}
	w.SetLacking(true)
	w.update()
	if got := w.says(s); got != "" {
		t.Errorf("while pools cannot be read: %q", got)
	}
	w.SetLacking(false)
	w.set(p)
	if got := w.says(s); got != "" || w.announced[ip("192.0.2.1")] == nil {
		t.Errorf("once the pool is back: %q, %v", got, w.announced)
	}
}

// An address is announced by nobody where no node does by ARP, NDP or BGP.
func TestAnnouncedByBGP(t *testing.T) {
	adv := func(change func(*model.BGPAdvertisement)) *model.BGPAdvertisement {
		a := &model.BGPAdvertisement{Name: model.Name{Namespace: "lb", Name: "b"}, Advertised: model.Advertised{Nodes: model.Everything(), Services: model.Everything()}}
		if change != nil {
			change(a)
		}
		return a
	}
	on := func(name string) *model.BGPAdvertisement {
		return adv(func(a *model.BGPAdvertisement) { a.Nodes = model.Equal("name", name) })
	}
	to := func(peers ...string) *model.BGPAdvertisement {
		return adv(func(a *model.BGPAdvertisement) { a.Peers = peers })
	}
	peer := func(name string, nodes model.Selector) *model.MetalLBPeer {
		return &model.MetalLBPeer{Name: model.Name{Namespace: "lb", Name: name}, Address: ip("198.51.100.1"), PeerASN: 64501, Nodes: nodes}
	}
	elsewhere := l2("l", func(a *model.L2Advertisement) { a.Nodes = model.Equal("name", "n9") })
	others := l2("l", func(a *model.L2Advertisement) { a.Services = model.Equal("l", "1") })
	ranges := &model.BGPConfiguration{Name: model.BGPDefault, LoadBalancerIPs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	const noNode, ofL2 = "no node is there that the BGPAdvertisements of lb/p select", "nobody announces 192.0.2.1: no node is there that the L2Advertisements of lb/p select"
	for _, c := range []struct {
		name    string
		objects []model.Object // beside the pool p, node n1 and Service x/a
		local   bool
		says    string // of the Service
	}{
		{name: "all nodes", objects: []model.Object{adv(nil)}},
		{name: "BGP where L2Advertisements are for other Services", objects: []model.Object{adv(nil), others}},
		{name: "and for other nodes", objects: []model.Object{adv(nil), elsewhere}},
		{name: "no node", objects: []model.Object{on("n9")}, says: "nobody announces 192.0.2.1: " + noNode},
		{name: "no node by either", objects: []model.Object{on("n9"), elsewhere}, says: ofL2 + "; by BGP: " + noNode},
		{name: "no node by BGP, but by ARP", objects: []model.Object{on("n9"), l2("l")}},
		{name: "a node that is excluded", objects: []model.Object{on("n2"), node("n2", excludeLabel+"=")}, says: "nobody announces 192.0.2.1: " + noNode},
		{name: "other Services", objects: []model.Object{adv(func(a *model.BGPAdvertisement) { a.Services = model.Equal("l", "1") })},
			says: "nobody announces 192.0.2.1: no BGPAdvertisement of lb/p selects the Service (spec.serviceSelectors)"},
		{name: "a peer that is not there", objects: []model.Object{to("tor")}, says: "nobody announces 192.0.2.1: no node that the BGPAdvertisements of lb/p select has a BGPPeer that they are for"},
		{name: "nor is it among others", objects: []model.Object{to("tor"), peer("rot", model.Everything())},
			says: "nobody announces 192.0.2.1: no node that the BGPAdvertisements of lb/p select has a BGPPeer that they are for"},
		{name: "a peer of another node", objects: []model.Object{to("tor"), peer("tor", model.Equal("name", "n9"))},
			says: "nobody announces 192.0.2.1: no node that the BGPAdvertisements of lb/p select has a BGPPeer that they are for"},
		{name: "a peer", objects: []model.Object{to("tor"), peer("tor", model.Equal("name", "n1"))}},
		{name: "any peer of MetalLB's", objects: []model.Object{adv(nil), peer("tor", model.Equal("name", "n1"))}},
		{name: "any, and none is of this node", objects: []model.Object{adv(nil), peer("tor", model.Equal("name", "n9"))},
			says: "nobody announces 192.0.2.1: no node that the BGPAdvertisements of lb/p select has a BGPPeer that they are for"},
		{name: "policy Local", local: true, objects: []model.Object{on("n1"), slice("x/a", "n1", "n2")}},
		{name: "policy Local: endpoints elsewhere", local: true, objects: []model.Object{on("n1"), slice("x/a", "n2", "-n1", "n3")},
			says: "nobody announces 192.0.2.1: externalTrafficPolicy is Local, and all endpoints are on nodes that the BGPAdvertisements of lb/p do not have announce it: n2, n3"},
		{name: "policy Local: no endpoint is ready", local: true, objects: []model.Object{on("n1"), slice("x/a", "-n1")}},
		{name: "ranges of a BGPConfiguration", objects: []model.Object{ranges}},
		{name: "ranges, where advertisements select nobody", objects: []model.Object{ranges, on("n9"), elsewhere}},
	} {
		w := newWorld(t, Config{Node: "n1", BGP: true})
		p, s := w.pool("p", "192.0.2.1-192.0.2.9"), w.service("x/a", has("192.0.2.1"), func(s *model.Service) { s.ExternalLocal = c.local })
		w.set(append(c.objects, p, node("n1"), s)...)
		if got := w.says(s); got != c.says {
			t.Errorf("%s: %q, want %q", c.name, got, c.says)
		}
		if got := w.says(p); got != "" {
			t.Errorf("%s: of the pool: %q", c.name, got)
		}
		if w.remove(p.Ref()); slices.Contains(c.objects, model.Object(ranges)) {
			if got := w.says(s); got != "" {
				t.Errorf("%s: without a pool: %q", c.name, got)
			}
		} else if got := w.says(s); !strings.Contains(got, "it is in no IPAddressPool") {
			t.Errorf("%s: without a pool: %q", c.name, got)
		}
	}
	w := newWorld(t, Config{Node: "n1", BGP: true})
	p := w.pool("p", "192.0.2.1-192.0.2.9")
	if w.set(p, node("n1"), w.service("x/a")); w.says(p) != "nobody announces its addresses: no L2Advertisement and no BGPAdvertisement that is in force selects it" {
		t.Errorf("of a pool that nothing selects: %q", w.says(p))
	}
}

// A Service names the address that its node has no interface for.
func TestUnanswered(t *testing.T) {
	w := newWorld(t, Config{Node: "n1"})
	w.set(w.pool("p", "192.0.2.1-192.0.2.9"), w.pool("q", "2001:db8::1-2001:db8::9"), l2("l", func(a *model.L2Advertisement) { a.Interfaces, a.Pools = []string{"eth7", "eth8"}, []string{"p"} }),
		l2("m", func(a *model.L2Advertisement) { a.Pools = []string{"q"} }),
		node("n1"), w.service("x/a", has("192.0.2.1")), w.service("x/b", clusterIPs("fd00::1"), has("2001:db8::1")))
	var got []string
	for _, i := range w.Unanswered(ips("192.0.2.1 2001:db8::1 192.0.2.5")) {
		got = append(got, i.Object.String()+": "+i.Reason)
	}
	want := []string{
		"Service x/a: nobody announces 192.0.2.1: Node n1, which is to, has no such interface as the L2Advertisements name, eth7 or eth8; have spec.nodeSelectors leave it out, or name another interface",
		"Service x/b: nobody announces 2001:db8::1: Node n1, which is to, has no interface with a subnet of IPv6; have spec.nodeSelectors leave it out, or name another interface",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	w = newWorld(t, Config{Node: "n1", BGP: true})
	bgp := &model.BGPAdvertisement{Name: model.Name{Namespace: "lb", Name: "b"}, Advertised: model.Advertised{Nodes: model.Everything(), Services: model.Everything()}}
	w.set(w.pool("p", "192.0.2.1-192.0.2.9"), l2("l"), bgp, node("n1"), w.service("x/a", has("192.0.2.1")))
	if list := w.Unanswered(ips("192.0.2.1")); len(list) > 0 {
		t.Errorf("of what BGP announces, too: %v", list)
	}
	none := *bgp
	none.Nodes = model.Equal("name", "n9")
	w.set(&none)
	if list := w.Unanswered(ips("192.0.2.1")); len(list) != 1 || !strings.HasSuffix(list[0].Reason, "or name another interface; by BGP: no node is there that the BGPAdvertisements of lb/p select") {
		t.Errorf("of what BGP does not announce, either: %v", list)
	}
}

// What nobody carries out, or has no effect, is named.
func TestIssues(t *testing.T) {
	w := newWorld(t, Config{Node: "n1"})
	p, ad := w.pool("p", "192.0.2.1-192.0.2.9"), l2("l", func(a *model.L2Advertisement) { a.Pools = []string{"q"} })
	bgp := &model.BGPAdvertisement{Name: model.Name{Namespace: "lb", Name: "b"}}
	w.set(p, w.service("x/a"), node("n1"))
	if got := w.says(p); got != "nobody announces its addresses: no L2Advertisement selects it" {
		t.Errorf("of the pool: %s", got)
	}
	bgp.Pools = []string{"q"}
	w.set(ad, bgp)
	if got := w.says(bgp); !strings.HasSuffix(got, "; spec.ipAddressPools: there is no IPAddressPool q in its namespace") {
		t.Errorf("of the advertisement by BGP: %s", got)
	}
	if got := w.says(ad); got != "spec.ipAddressPools: there is no IPAddressPool q in its namespace" {
		t.Errorf("of the advertisement: %s", got)
	}
	n := node("n2")
	w.set(n)
	w.SetSilent(set([]string{"n1", "n2"}))
	w.update()
	if got := w.says(n); !strings.HasPrefix(got, "it is not heard from, so other nodes announce its addresses") {
		t.Errorf("of a silent node: %s", got)
	}
	if got := w.says(node("n1")); !strings.HasPrefix(got, "no other node hears it") {
		t.Errorf("of this node: %s", got)
	}
	down := *n
	down.NotReady = true
	w.set(&down)
	if got := w.says(n); got != "" {
		t.Errorf("of a node that is not ready: %s", got)
	}
	if got := w.says(bgp); !strings.HasPrefix(got, "addresses of Services are not announced by BGP") {
		t.Errorf("of BGP: %s", got)
	}
}

// An advertisement or BGPPeer that changes is compared with all Nodes, and no other one is. All are
// when a Node comes, goes or has other labels, and none for anything else that it has.
func TestWorkOfElection(t *testing.T) {
	w := newWorld(t, Config{Node: "n0", BGP: true})
	ad := func(name string, communities ...string) *model.BGPAdvertisement {
		return &model.BGPAdvertisement{Name: model.Name{Namespace: "lb", Name: name}, Communities: communities, Advertised: model.Advertised{Nodes: model.Everything(), Services: model.Everything()}}
	}
	peer := func(name string, as uint32) *model.MetalLBPeer {
		return &model.MetalLBPeer{Name: model.Name{Namespace: "lb", Name: name}, PeerASN: as, Nodes: model.Everything()}
	}
	for i := range 50 {
		w.set(node(fmt.Sprint("n", i)), l2(fmt.Sprint("l", i)), ad(fmt.Sprint("b", i)), peer(fmt.Sprint("p", i), 64500))
	}
	known, population := map[any]bool{}, w.population
	fresh := func() (n int) {
		if population != w.population {
			clear(known)
		}
		population = w.population
		look := func(o any) {
			if !known[o] {
				known[o] = true
				n++
			}
		}
		for _, a := range w.adverts {
			look(a)
		}
		for _, a := range w.bgp {
			look(a)
		}
		for _, p := range w.bgpPeers {
			look(p)
		}
		return n
	}
	fresh()
	for _, c := range []struct {
		what   string
		do     func()
		expect int
	}{
		{"a Node has another label", func() { w.set(node("n7", "changed=yes")) }, 150},
		{"a Node is not ready", func() { n := node("n7", "changed=yes"); n.NotReady = true; w.set(n) }, 0},
		{"a Node comes", func() { w.set(node("n99")) }, 150},
		{"an advertisement changes", func() { w.set(l2("l7", func(l *model.L2Advertisement) { l.Interfaces = []string{"eth0"} })) }, 1},
		{"an advertisement comes", func() { w.set(l2("l99")) }, 1},
		{"an advertisement goes", func() { w.remove(l2("l99").Ref()) }, 0},
		{"one by BGP changes", func() { w.set(ad("b7", "64500:1")) }, 1},
		{"a BGPPeer changes", func() { w.set(peer("p7", 64501)) }, 1},
		{"a pool comes", func() { w.set(w.pool("p", "192.0.2.1-192.0.2.9")) }, 0},
	} {
		if c.do(); fresh() != c.expect {
			t.Errorf("%s: not %d are compared", c.what, c.expect)
		}
	}
}
