package nftables_test

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

func both(t *testing.T, f func(t *testing.T, w *site, is4 bool, virtual, client string)) {
	eachFamily(t, func(t *testing.T, is4 bool, virtual, client string) { f(t, newSite(t, 3), is4, virtual, client) })
}

func hostPort(addr, port string) string {
	if netip.MustParseAddr(addr).Is4() {
		return addr + ":" + port
	}
	return "[" + addr + "]:" + port
}

// TestDNAT has connections balanced to each backend in turns, with the client's address.
func TestDNAT(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, client string) {
		f := &model.Farm{Name: "web", Mode: model.DNAT, Addresses: []model.FarmAddress{at(virtual, port(80))}, Backends: backends(3, is4, 8080)}
		w.set(f)
		for _, network := range []string{"tcp", "udp"} {
			for server, n := range w.answers(9, network, hostPort(virtual, "80")) {
				if n != 3 {
					t.Errorf("%s: %s answered %d of 9", network, server, n)
				}
			}
			g, err := w.ask(network, hostPort(virtual, "80"))
			if err != nil || g.Client.Addr().String() != client || g.Port != 8080 {
				t.Errorf("%s: %+v, %v", network, g, err)
			}
		}
	})
}

// TestSNAT has servers see the balancer, or the address that is given for farm or backend.
func TestSNAT(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, client string) {
		own := map[bool]string{true: "10.1.0.1", false: "fd01::1"}[is4]
		f := model.Farm{Name: "web", Mode: model.SNAT, Addresses: []model.FarmAddress{at(virtual, port(80), port(81))}, Backends: backends(2, is4, 0)}
		see := func(want map[string]string) {
			t.Helper()
			for range 6 {
				g, err := w.ask("tcp", hostPort(virtual, "81"))
				if err != nil || g.Client.Addr().String() != want[g.Server] || g.Port != 81 {
					t.Fatalf("%+v, %v\n%s", g, err, w.list())
				}
			}
		}
		w.set(&f)
		see(map[string]string{"s1": own, "s2": own})
		given, other := map[bool]string{true: "10.0.0.1", false: "fd00::1"}[is4], virtual
		f2 := f
		f2.SourceAddrs = []netip.Addr{netip.MustParseAddr(given)}
		f2.Backends = slices.Clone(f.Backends)
		f2.Backends[1].SourceAddr = netip.MustParseAddr(other)
		w.set(&f2)
		see(map[string]string{"s1": given, "s2": other})
		w.set(&f)
		see(map[string]string{"s1": own, "s2": own})
	})
}

// TestPlaces has farms be found at ranges of ports, all ports, and every address of the machine.
func TestPlaces(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, _ string) {
		own := map[bool]string{true: "10.0.0.1", false: "fd00::1"}[is4]
		w.set(
			&model.Farm{Name: "range", Mode: model.DNAT, Addresses: []model.FarmAddress{at(virtual, model.PortSpan{First: 80, Last: 90})}, Backends: backends(1, is4, 0)},
			&model.Farm{Name: "far", Mode: model.DNAT, Addresses: []model.FarmAddress{at(virtual, model.PortSpan{First: 9000, Last: 60000})}, Backends: backends(2, is4, 80)[1:]},
			&model.Farm{Name: "any", Mode: model.DNAT, Addresses: []model.FarmAddress{at("", port(8080))}, Backends: backends(3, is4, 80)[2:]},
		)
		for to, want := range map[string]world.Answer{
			hostPort(virtual, "80"): {Server: "s1", Port: 80}, hostPort(virtual, "81"): {Server: "s1", Port: 81},
			hostPort(virtual, "9000"): {Server: "s2", Port: 80}, hostPort(virtual, "60000"): {Server: "s2", Port: 80},
			hostPort(own, "8080"): {Server: "s3", Port: 80}, hostPort(virtual, "8080"): {Server: "s3", Port: 80},
		} {
			for _, network := range []string{"tcp", "udp"} {
				if g, err := w.ask(network, to); err != nil || g.Server != want.Server || g.Port != want.Port {
					t.Errorf("%s %s: %+v, %v", network, to, g, err)
				}
			}
		}
		if g, err := w.ask("tcp", hostPort(virtual, "8999")); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a port that no farm has: %+v, %v", g, err)
		}
		w.set()
		if g, err := w.ask("tcp", hostPort(virtual, "80")); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("no farm any more: %+v, %v", g, err)
		}
	})
}

// TestSchedulers asks often, and sees whom each scheduler leads where.
func TestSchedulers(t *testing.T) {
	t.Parallel()
	w := newSite(t, 3)
	f := func(s model.FarmScheduler, key model.FlowKey, weights ...int) *model.Farm {
		f := &model.Farm{Name: "web", Mode: model.DNAT, Scheduler: s, HashBy: key, Addresses: []model.FarmAddress{at(virtual4, port(80))}, Backends: backends(3, true, 80)}
		for i, n := range weights {
			f.Backends[i].Weight = n
		}
		return f
	}
	to := hostPort(virtual4, "80")

	w.set(f(model.RoundRobin, 0, 3, 2, 1))
	if n := w.answers(12, "tcp", to); !maps.Equal(n, map[string]int{"s1": 6, "s2": 4, "s3": 2}) {
		t.Errorf("weights 3, 2, 1 in turns: %v", n)
	}
	w.set(f(model.Weighted, 0, 1, 8, 1))
	if n := w.answers(60, "udp", to); n["s2"] < 30 {
		t.Errorf("weights 1, 8, 1 at random: %v", n)
	}
	for _, s := range []model.FarmScheduler{model.Hash, model.Maglev} {
		w.set(f(s, model.SrcIP))
		if n := w.answers(10, "tcp", to); len(n) != 1 {
			t.Errorf("%s of the source address: %v", s, n)
		}
		w.set(f(s, model.SrcIP|model.SrcPort))
		if n := w.answers(60, "tcp", to); len(n) != 3 {
			t.Errorf("%s of source address and port: %v", s, n)
		}
	}
	w.set(f(model.SymHash, 0))
	if n := w.answers(60, "tcp", to); len(n) != 3 {
		t.Errorf("symmetric hash: %v", n)
	}
}

// TestDown takes backends out of service and back, one after the other.
func TestDown(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, _ string) {
		for _, s := range []model.FarmScheduler{model.RoundRobin, model.Weighted, model.Hash, model.Maglev} {
			f := func(states ...model.BackendState) *model.Farm {
				f := &model.Farm{Name: "web", Mode: model.DNAT, Scheduler: s, HashBy: model.SrcPort, Refuse: true,
					Addresses: []model.FarmAddress{at(virtual, port(80))}, Backends: backends(3, is4, 80)}
				for i, state := range states {
					f.Backends[i].State = state
				}
				return f
			}
			for _, step := range []struct {
				states []model.BackendState
				serve  []string
			}{
				{nil, []string{"s1", "s2", "s3"}},
				{[]model.BackendState{0, model.BackendDown}, []string{"s1", "s3"}},
				{[]model.BackendState{model.BackendDraining, model.BackendDown}, []string{"s3"}},
				{[]model.BackendState{model.BackendDown, model.BackendDown, model.BackendDown}, nil},
				{[]model.BackendState{model.BackendDown}, []string{"s2", "s3"}},
			} {
				w.set(f(step.states...))
				if step.serve == nil {
					if _, err := w.ask("tcp", hostPort(virtual, "80")); !errors.Is(err, syscall.ECONNREFUSED) {
						t.Errorf("%s, nobody serves: %v", s, err)
					}
					continue
				}
				if n := w.answers(40, "tcp", hostPort(virtual, "80")); !slices.Equal(slices.Sorted(maps.Keys(n)), step.serve) {
					t.Errorf("%s, %v: %v", s, step.states, n)
				}
			}
		}
	})
}
