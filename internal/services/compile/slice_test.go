package compile_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// numbered is the i-th of many services with its endpoints.
func numbered(i, endpoints int) []store.Event {
	svc := v4.service(named(fmt.Sprintf("s%d", i), 0), func(s *model.Service) { s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})} })
	list := slice(fmt.Sprintf("s%d", i))
	list.Service = svc.Name.Name
	for n := range endpoints {
		list.Endpoints = append(list.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), Ready: true, Serving: true})
	}
	return events(svc, list)
}

// What comes to many elements goes in slices, small services first, and all have their turn, also
// under small changes without end.
func TestStepsTakeSmallOnesFirst(t *testing.T) {
	h := newHistory(compile.Config{})
	h.apply(t, events(v4.node())...)
	h.room = 150
	var large []store.Event
	for i := range 5 {
		large = append(large, numbered(i, 100)...)
	}
	served := func(i int) bool {
		return h.compiler.State().Services.Frontends[state.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}), Protocol: model.TCP, Port: 80}] != nil
	}
	if d, more := h.step(t, large...); len(d.Services.Frontends) != 2 || !more {
		t.Fatalf("the first step changes %d frontends, more: %t", len(d.Services.Frontends), more)
	}
	for n := range 100 {
		_, more := h.step(t, numbered(100+n, 1+n%2)...)
		if !served(100 + n) {
			t.Fatalf("a small service waits in step %d", n)
		}
		if !more {
			break
		}
	}
	for i := range 5 {
		if !served(i) {
			t.Errorf("service %d had no turn", i)
		}
	}
	// All go at once: that is as much.
	var gone []store.Event
	for _, e := range large {
		gone = append(gone, store.Event{Kind: e.Kind, Name: e.Name})
	}
	for steps := 1; ; steps++ {
		_, more := h.step(t, gone...)
		if gone = nil; !more {
			if steps != 3 {
				t.Errorf("removed in %d steps", steps)
			}
			break
		}
	}
	same(t, h.compiler, h.fresh())
}

// A large service that changes without end is followed at all its ports all the same, is known in a
// bounded number of versions, keeps no small one waiting, and what was there at a time is in the
// state after some steps.
func TestStepsFollowWhatNeverRests(t *testing.T) {
	h := newHistory(compile.Config{})
	h.apply(t, events(v4.node())...)
	h.room = 1_000
	svc, list := v4.service(), slice("a")
	svc.Ports, list.Ports = ports(100)
	for i := range 100 {
		list.Endpoints = append(list.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), Ready: true, Serving: true})
	}
	h.step(t, events(svc)...)
	last := state.FrontendKey{Addr: v4.addr("c1"), Protocol: model.TCP, Port: 100}
	changes, was := 0, ""
	for n := range 200 {
		next := *list
		next.Endpoints = slices.Clone(list.Endpoints)
		next.Endpoints[0].Addr = netip.AddrFrom4([4]byte{10, 2, 0, byte(n)})
		h.step(t, append(numbered(n, 1), events(&next)...)...)
		if h.compiler.State().Services.Frontends[state.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, 1, byte(n)}), Protocol: model.TCP, Port: 80}] == nil {
			t.Fatalf("a small service waits in step %d", n)
		}
		if f := h.compiler.State().Services.Frontends[last]; f != nil && fmt.Sprint(f.Backends) != was {
			changes, was = changes+1, fmt.Sprint(f.Backends)
		}
	}
	if changes < 5 {
		t.Errorf("the last port followed %d times", changes)
	}
	asked := time.Now()
	for steps := 1; ; steps++ {
		next := *list
		next.Endpoints = slices.Clone(list.Endpoints)
		next.Endpoints[0].Addr = netip.AddrFrom4([4]byte{10, 3, 0, byte(steps)})
		h.step(t, events(&next)...)
		if b := h.compiler.Waiting(); b.Len() == 0 || b.Since.After(asked) {
			break
		}
		if steps > 100 {
			t.Fatalf("what was there is not in the state after %d steps", steps)
		}
	}
	for more := true; more; {
		_, more = h.step(t)
	}
	same(t, h.compiler, h.fresh())
}

// A load balancer is told of endpoints once connections get to them.
func TestHealthFollowsFrontends(t *testing.T) {
	h := newHistory(compile.Config{})
	h.apply(t, events(v4.node())...)
	h.room = 10
	svc, list := v4.service(externalLocal), slice("a")
	svc.Ports, list.Ports = ports(20)
	svc.LoadBalancerIPs, svc.HealthCheckNodePort = v4.addrs("l1"), 32_000
	list.Endpoints = []model.Endpoint{{Addr: v4.addr("e1"), Ready: true, Serving: true, Node: "here"}}
	check := func() int { return h.compiler.Services.AllHealthChecks()[svc.Name].LocalEndpoints }
	for _, more := h.step(t, events(svc, list)...); more; _, more = h.step(t) {
		if n := check(); n != 0 {
			t.Fatalf("%d local endpoints with %d frontends", n, len(h.compiler.State().Services.Frontends))
		}
	}
	if n := check(); n != 1 || len(h.compiler.State().Services.Frontends) != 60 {
		t.Fatalf("%d local endpoints, %d frontends", n, len(h.compiler.State().Services.Frontends))
	}
	list = slice("a")
	if h.step(t, events(list)...); check() != 0 {
		t.Error("the last endpoint has gone, and the check does not say so")
	}
}

// An Update leaves nothing behind.
func TestUpdateAfterStep(t *testing.T) {
	h := newHistory(compile.Config{})
	h.apply(t, events(v4.node())...)
	h.room = 1
	if _, more := h.step(t, slices.Concat(numbered(1, 10), numbered(2, 10), numbered(3, 10))...); !more {
		t.Fatal("all at once")
	}
	h.apply(t)
	same(t, h.compiler, h.fresh())
	if d, more := h.step(t); d.Len() > 0 || more {
		t.Errorf("a step after that changes %+v, more: %t", d, more)
	}
}

// In slices of any size, with other changes between, the end is the same.
func TestStepsEndAlike(t *testing.T) {
	for seed := range uint64(100) {
		w := newWorld(seed)
		h := newHistory(compile.Config{})
		h.apply(t, events(v4.node())...)
		h.room = 1 + w.IntN(10)
		h.limit(pickOne(w, 0, 0, 60, 300))
		for range 20 {
			var batch []store.Event
			for range 1 + w.IntN(12) {
				batch = append(batch, w.event())
			}
			_, more := h.step(t, batch...)
			sound(t, h.compiler.State())
			if w.chance(20) {
				h.cfg.APIServers = []netip.AddrPort{netip.AddrPortFrom(w.addr("x", 2), 80)}
				h.compiler.SetAPIServers(h.cfg.APIServers)
				_, more = h.step(t)
			}
			if w.chance(30) {
				for steps := 0; more; steps++ {
					if _, more = h.step(t); steps > 1000 {
						t.Fatal("no end")
					}
				}
				same(t, h.compiler, h.fresh())
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}
