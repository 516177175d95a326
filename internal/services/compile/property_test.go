package compile_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// world makes random objects out of few names and addresses, so that they meet often.
type world struct{ *rand.Rand }

func newWorld(seed uint64) world { return world{rand.New(rand.NewPCG(seed, 1))} }

func (w world) chance(percent int) bool { return w.IntN(100) < percent }

func pickOne[T any](w world, of ...T) T { return of[w.IntN(len(of))] }

// family picks IPv4 mostly.
func (w world) family() family {
	if w.chance(30) {
		return v6
	}
	return v4
}

func (w world) addr(kind string, of int) netip.Addr {
	return w.family().addr(fmt.Sprintf("%s%d", kind, 1+w.IntN(of)))
}

func (w world) some(percent int, kind string, of int) []netip.Addr {
	var list []netip.Addr
	for w.chance(percent) {
		list = append(list, w.addr(kind, of))
	}
	return list
}

func (w world) port() model.ServicePort {
	p := model.ServicePort{
		Name:       pickOne(w, "http", "dns", ""),
		Protocol:   pickOne(w, model.TCP, model.TCP, model.UDP, model.SCTP),
		Port:       pickOne[uint16](w, 80, 80, 53, 0, 30080),
		NodePort:   pickOne[uint16](w, 0, 0, 30080, 30081),
		TargetPort: pickOne[uint16](w, 0, 80, 8080),
	}
	if w.chance(30) {
		p.TargetPort, p.TargetName = 0, pickOne(w, "http", "dns")
	}
	return p
}

func (w world) service() *model.Service {
	s := &model.Service{
		Name:            w.serviceName(),
		ClusterIPs:      []netip.Addr{w.addr("c", 5)},
		ExternalIPs:     slices.Concat(w.some(20, "x", 2), w.some(10, "n", 2), w.some(5, "c", 5)),
		LoadBalancerIPs: slices.Concat(w.some(20, "l", 2), w.some(5, "x", 2)),
		Ports:           []model.ServicePort{w.port()},
		Affinity:        pickOne[time.Duration](w, 0, 0, time.Hour),
		IPVSScheduler:   pickOne(w, "", "mh"),
		InternalLocal:   w.chance(20), ExternalLocal: w.chance(40), PublishNotReady: w.chance(10),
		HealthCheckNodePort: pickOne[uint16](w, 0, 31000, 31001),
	}
	for w.chance(40) {
		s.Ports = append(s.Ports, w.port())
	}
	if w.chance(40) {
		s.ClusterIPs = append(s.ClusterIPs, w.addr("c", 5))
	}
	if w.chance(60) {
		s.Created = time.Unix(int64(1+w.IntN(3)), 0)
	}
	if w.chance(50) {
		s.Selector = w.labels()
	}
	if w.chance(10) {
		s.Unproxied = "headless"
	}
	if w.chance(5) {
		s.ClusterIPs = nil
	}
	for w.chance(25) {
		s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(w.addr(pickOne(w, "e", "n"), 9), pickOne(w, 0, 16, 24)))
	}
	return s
}

func (w world) serviceName() model.Name {
	return model.Name{Namespace: pickOne(w, "shop", "prod", "default"), Name: pickOne(w, "web", "db", "kubernetes")}
}

func (w world) labels() map[string]string {
	l := map[string]string{"app": pickOne(w, "web", "db")}
	if w.chance(40) {
		l["tier"] = pickOne(w, "front", "back")
	}
	return l
}

func (w world) slice() *model.EndpointSlice {
	owner := w.serviceName()
	s := &model.EndpointSlice{
		Name:    model.Name{Namespace: owner.Namespace, Name: fmt.Sprintf("slice-%d", w.IntN(4))},
		Service: owner.Name,
	}
	for w.chance(70) {
		s.Ports = append(s.Ports, model.EndpointPort{
			Name: pickOne(w, "http", "dns", ""), Protocol: pickOne(w, model.TCP, model.TCP, model.UDP), Port: pickOne[uint16](w, 80, 8080, 0),
		})
	}
	for w.chance(75) {
		s.Endpoints = append(s.Endpoints, w.endpoint())
	}
	return s
}

func (w world) endpoint() model.Endpoint {
	e := w.family().endpoint(fmt.Sprintf("e%d", 1+w.IntN(9)), pickOne(w, here, func(*model.Endpoint) {}))
	if w.chance(40) {
		pickOne(w, notReady, draining, dying)(&e)
	}
	for w.chance(40) {
		e.ZoneHints = append(e.ZoneHints, pickOne(w, "z1", "z2"))
	}
	for w.chance(20) {
		e.NodeHints = append(e.NodeHints, pickOne(w, "here", "there"))
	}
	if w.chance(5) {
		e.Addr = pickOne(w, netip.IPv6Unspecified(), netip.MustParseAddr("127.0.0.1"), netip.Addr{})
	}
	return e
}

func (w world) pod() *model.Pod {
	return &model.Pod{
		Name:   model.Name{Namespace: pickOne(w, "shop", "prod"), Name: fmt.Sprintf("pod-%d", w.IntN(6))},
		Labels: w.labels(), IPs: w.some(60, "e", 9), Node: pickOne(w, "here", "there", ""),
		Ready: w.chance(70), Terminating: w.chance(20), Finished: w.chance(10),
		Ports: []model.ContainerPort{{Name: pickOne(w, "http", "dns"), Protocol: pickOne(w, model.TCP, model.UDP), Port: pickOne[uint16](w, 80, 8080)}},
	}
}

func (w world) node() *model.Node {
	n := &model.Node{Name: pickOne(w, "here", "here", "there"), IPs: w.some(70, "n", 2), OtherIPs: w.some(10, "x", 2)}
	if w.chance(70) {
		n.Labels = map[string]string{"topology.kubernetes.io/zone": pickOne(w, "z1", "z2")}
	}
	if w.chance(50) {
		n.PodCIDRs = []netip.Prefix{netip.PrefixFrom(w.addr("e", 9), 24)}
	}
	return n
}

// event brings or takes away a random object.
func (w world) event() store.Event {
	var e store.Event
	switch n := w.IntN(100); {
	case n < 35:
		e = event(w.service())
	case n < 70:
		e = event(w.slice())
	case n < 95:
		e = event(w.pod())
	default:
		e = event(w.node())
	}
	if w.chance(25) && e.Name.Name != "here" { // the own Node counts on when it is deleted
		e.Object = nil
	}
	return e
}

// The state is a function of the objects: whatever came before, and in whatever
// portions, it is what a new compiler makes of them; and the deltas are exact.
func TestStateDependsOnObjectsAlone(t *testing.T) {
	for seed := range uint64(150) {
		w := newWorld(seed)
		h := newHistory(compile.Config{})
		if w.chance(50) {
			h.cfg.NodePortAddresses = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}
		}
		if w.chance(50) {
			h.cfg.AllowNodeAddresses = everywhere
		}
		h.cfg.ReservedPorts = []state.PortRange{{Protocol: model.TCP, First: 80, Last: 80}}
		h.compiler = compile.New(h.cfg)
		h.limit(pickOne(w, 0, 60, 300))
		for range 60 {
			if w.chance(10) {
				h.cfg.APIServers = []netip.AddrPort{netip.AddrPortFrom(w.addr("x", 2), 80)}
				h.compiler.SetAPIServers(h.cfg.APIServers)
			}
			if w.chance(10) {
				h.cfg.HostAddresses = []netip.Prefix{netip.PrefixFrom(w.addr(pickOne(w, "n", "c", "x"), 2), pickOne(w, 24, 32))}
				h.compiler.Services.SetHostAddresses(h.cfg.HostAddresses)
			}
			var batch []store.Event
			for range 1 + w.IntN(4) {
				batch = append(batch, w.event())
			}
			h.apply(t, batch...)
			same(t, h.compiler, h.fresh())
			sound(t, h.compiler.State())
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

// The order of events of different objects does not matter, nor do versions in
// between, repetitions, and objects that come and go.
func TestOrderDoesNotMatter(t *testing.T) {
	for seed := range uint64(60) {
		w := newWorld(seed)
		last := map[string]store.Event{}
		var all []store.Event
		for range 40 {
			e := w.event()
			all = append(all, e)
			last[fmt.Sprint(e.Kind, e.Name)] = e
		}
		var final []store.Event
		for _, e := range last {
			final = append(final, e)
		}
		first := newHistory(compile.Config{})
		first.limit(pickOne(w, 0, 0, 150))
		first.apply(t, all...)
		for range 4 {
			h := newHistory(compile.Config{})
			h.limit(first.together)
			w.deliver(t, h, append(slices.Clone(all), final...), len(final))
			same(t, h.compiler, first.compiler)
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

// deliver shuffles the events but for the last fixed ones, which it shuffles
// among themselves, and sends them in random portions, some of them twice.
func (w world) deliver(t *testing.T, h *history, events []store.Event, fixed int) {
	t.Helper()
	before, after := events[:len(events)-fixed], events[len(events)-fixed:]
	for _, part := range [][]store.Event{before, after} {
		w.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
	}
	for len(events) > 0 {
		n := 1 + w.IntN(min(8, len(events)))
		h.apply(t, events[:n]...)
		if w.chance(20) {
			if d := h.apply(t, after...); n == len(events) && d.Len() != 0 {
				t.Errorf("repeating the last events changes %+v", d)
			}
		}
		events = events[n:]
	}
}

// Undoing every step leads back through the same states to none.
func TestUndo(t *testing.T) {
	for seed := range uint64(60) {
		w := newWorld(seed)
		h := newHistory(compile.Config{})
		var undo []store.Event
		own := event(&model.Node{Name: "here"})
		current := map[string]store.Event{fmt.Sprint(own.Kind, own.Name): own}
		h.apply(t, own)
		for range 40 {
			e := w.event()
			key := fmt.Sprint(e.Kind, e.Name)
			back, ok := current[key]
			if !ok {
				back = store.Event{Kind: e.Kind, Name: e.Name}
			}
			undo = append(undo, back)
			current[key] = e
			h.apply(t, e)
		}
		slices.Reverse(undo)
		for _, e := range undo {
			h.apply(t, e)
		}
		same(t, h.compiler, compiled(compile.Config{}, own.Object))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// same fails unless both compilers have the same to say.
func same(t *testing.T, got, want *compile.Compiler) {
	t.Helper()
	if diff := differences(got.State(), want.State()); diff != "" {
		t.Errorf("states differ: %s", diff)
	}
	if diff := cmp.Diff(want.Services.AllHealthChecks(), got.Services.AllHealthChecks()); diff != "" {
		t.Errorf("health checks differ: %s", diff)
	}
	if diff := cmp.Diff(want.Issues(), got.Issues()); diff != "" {
		t.Errorf("issues differ: %s", diff)
	}
	if diff := cmp.Diff(want.Services.Views(), got.Services.Views()); diff != "" {
		t.Errorf("services differ: %s", diff)
	}
}

// sound checks what package state promises to drivers.
func sound(t *testing.T, s *state.State) {
	t.Helper()
	for k, f := range s.Services.Frontends {
		for what, list := range map[string][]netip.AddrPort{"Backends": f.Backends, "Local": f.Local, "Alive": f.Alive, "Serving": f.Serving} {
			for i, a := range list {
				if a.Addr().Is4() != k.Addr.Is4() || a.Port() == 0 {
					t.Errorf("%s: %s has %s", k, what, a)
				}
				if i > 0 && list[i-1].Compare(a) >= 0 {
					t.Errorf("%s: %s is not sorted and unique: %v", k, what, list)
				}
				if !slices.Contains(f.Alive, a) {
					t.Errorf("%s: %s of %s is not in Alive", k, a, what)
				}
				if what != "Alive" && !slices.Contains(f.Serving, a) {
					t.Errorf("%s: %s of %s is not in Serving", k, a, what)
				}
			}
		}
		if f.LocalOnly && !f.External() || !f.LocalOnly && f.Local != nil {
			t.Errorf("%s: %s with LocalOnly %t and Local %v", k, f.Kind, f.LocalOnly, f.Local)
		}
		if f.Reject && len(f.Backends)+len(f.Local) > 0 {
			t.Errorf("%s rejects with the backends %v, %v", k, f.Backends, f.Local)
		}
		if len(f.SourceRanges) > 0 && f.Kind != state.LoadBalancer || k.Port == 0 {
			t.Errorf("%s: %s with source ranges %v", k, f.Kind, f.SourceRanges)
		}
		if _, ok := s.Services.ClusterIPs[k.Addr]; f.Kind == state.ClusterIP && !ok {
			t.Errorf("%s is not among the cluster IPs", k)
		}
	}
}
