package upkeep

import (
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// What began before it was served, or waits for an answer of who is gone, begins anew; what is
// answered goes on.
func TestWhoBeginsAnew(t *testing.T) {
	t.Parallel()
	at, backend := netip.MustParseAddrPort("203.0.113.1:80"), netip.MustParseAddrPort("10.1.0.1:8080")
	served := &state.Frontend{Backends: []netip.AddrPort{backend}, Serving: []netip.AddrPort{backend}, Alive: []netip.AddrPort{backend}}
	for _, p := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		k := state.FrontendKey{Addr: at.Addr(), Protocol: p, Port: at.Port()}
		early := conntrack.Filter{Protocol: p, Frontend: at, Backend: at, Unanswered: p != model.UDP}
		late := conntrack.Filter{Protocol: p, Frontend: at, Unanswered: p != model.UDP}
		for name, tt := range map[string]struct {
			before, after *state.Frontend
			want          []conntrack.Filter
		}{
			"a service comes":          {nil, served, []conntrack.Filter{early}},
			"its first endpoint comes": {&state.Frontend{}, served, []conntrack.Filter{early}},
			"a service without one":    {nil, &state.Frontend{}, nil},
			"a service goes":           {served, nil, []conntrack.Filter{late}},
			"its last endpoint goes":   {served, &state.Frontend{}, []conntrack.Filter{{Protocol: p, Frontend: at, Backend: backend}}},
			"nothing of it changes":    {served, served, nil},
		} {
			if got := cuts(k, tt.before, tt.after); !slices.Equal(got, tt.want) {
				t.Errorf("%v, %s: %v, want %v", p, name, got, tt.want)
			}
		}
		held := &state.State{Services: state.NewServices()}
		held.Services.Frontends[k] = served
		flow := func(to netip.AddrPort, status uint32) conntrack.Flow {
			return conntrack.Flow{Protocol: p, Orig: conntrack.Tuple{Dst: at}, Reply: conntrack.Tuple{Src: to}, Status: status}
		}
		for name, tt := range map[string]struct {
			flow conntrack.Flow
			want bool
		}{
			"untranslated, unanswered": {flow(at, 0), true},
			"untranslated, answered":   {flow(at, conntrack.StatusSeenReply), p == model.UDP},
			"translated, unanswered":   {flow(backend, 0), false},
			"to who is gone":           {flow(netip.MustParseAddrPort("10.1.0.9:8080"), conntrack.StatusSeenReply), true},
		} {
			if got := stale(held, tt.flow); got != tt.want {
				t.Errorf("%v, %s: stale %v", p, name, got)
			}
		}
	}
}

// A sweep leaves connections to a proxy alone: to connection tracking, its listener is the backend.
func TestProxyKeepsItsConnections(t *testing.T) {
	at, listener := netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("192.0.2.1:40000")
	held := state.State{Services: state.NewServices()}
	held.Services.Frontends[state.FrontendKey{Addr: at.Addr(), Protocol: model.TCP, Port: at.Port()}] = &state.Frontend{Backends: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.1:8080")}}
	flow := conntrack.Flow{Protocol: model.TCP, Orig: conntrack.Tuple{Dst: at}, Reply: conntrack.Tuple{Src: listener}, Status: conntrack.StatusSeenReply}
	for can, want := range map[driver.Capability]bool{driver.Services: false, driver.Services | driver.Survives: true} {
		d := &Driver{Driver: &stub{held: held, can: can}, farms: newFarms()}
		if got := d.goesAstray(flow); got != want {
			t.Errorf("with %s: astray %v, want %v", can, got, want)
		}
	}
}

// The same of farms.
func TestWhoBeginsAnewAtFarms(t *testing.T) {
	t.Parallel()
	farm := func(ports ...model.PortSpan) *state.Farm {
		return &state.Farm{Farm: &model.Farm{Name: "web", Mode: model.DNAT,
			Addresses: []model.FarmAddress{{Addr: netip.MustParseAddr("203.0.113.1"), IPv4: true, Protocols: []model.Protocol{model.TCP}, Ports: ports}},
			Backends:  []model.FarmBackend{{Addr: netip.MustParseAddr("10.1.0.1"), Port: 8080}}}}
	}
	at := netip.MustParseAddrPort("203.0.113.1:80")
	two := farm(model.PortSpan{First: 81, Last: 81})
	one, many := farm(model.PortSpan{First: 80, Last: 80}), farm(model.PortSpan{First: 80, Last: 90})
	early := []conntrack.Filter{{Protocol: model.TCP, Frontend: at, Backend: at, Unanswered: true}}
	late := []conntrack.Filter{{Protocol: model.TCP, Frontend: at, Unanswered: true}}
	for name, tt := range map[string]struct {
		before, after *state.Farm
		want          []conntrack.Filter
		sweep         bool
	}{
		"a farm comes":                  {nil, one, early, false},
		"a farm goes":                   {one, nil, late, false},
		"a farm with a range comes":     {nil, many, nil, true},
		"a farm gets another port":      {two, one, []conntrack.Filter{early[0], {Protocol: model.TCP, Frontend: netip.MustParseAddrPort("203.0.113.1:81"), Unanswered: true}}, false},
		"one port becomes a range":      {one, many, late, true},
		"its backends are as they were": {one, one, nil, false},
	} {
		if got, sweep := farmCuts(tt.before, tt.after); !slices.Equal(got, tt.want) || sweep != tt.sweep {
			t.Errorf("%s: %v and sweep %v, want %v and %v", name, got, sweep, tt.want, tt.sweep)
		}
	}
	x := newFarms()
	x.put("web", many)
	for to, status := range map[string][2]bool{ // answered: no, yes
		"203.0.113.1:81": {true, false}, "10.1.0.1:8080": {false, false}, "10.1.0.9:8080": {true, true},
	} {
		for answered, want := range status {
			flow := &conntrack.Flow{Protocol: model.TCP, Status: uint32(answered) * conntrack.StatusSeenReply,
				Orig: conntrack.Tuple{Dst: netip.MustParseAddrPort("203.0.113.1:81")}, Reply: conntrack.Tuple{Src: netip.MustParseAddrPort(to)}}
			if got := x.stale(flow); got != want {
				t.Errorf("to %s, answered %d: stale %v", to, answered, got)
			}
		}
	}
	for _, f := range []*state.Farm{one, many} {
		f.Addresses[0].Protocols = []model.Protocol{model.TCP, model.UDP}
	}
	if c := x.follow(map[string]*state.Farm{"web": {Farm: many.Farm}}); len(c.farms) > 0 {
		t.Error("flows are looked for of a farm that stays where it is")
	}
	for _, tt := range []struct {
		now  *state.Farm
		want int // flows that do not go on, of those to ports 80 and 90 and to elsewhere
	}{{one, 3}, {many, 0}, {nil, 6}} {
		c, n := x.follow(map[string]*state.Farm{"web": tt.now}), 0
		for _, to := range []string{"203.0.113.1:80", "203.0.113.1:90", "203.0.113.1:91", "203.0.113.2:80"} {
			for _, backend := range []string{to, "10.1.0.1:8080", "10.1.0.9:8080"} {
				for _, answered := range []uint32{0, conntrack.StatusSeenReply} {
					for _, p := range []model.Protocol{model.TCP, model.UDP} {
						flow := &conntrack.Flow{Protocol: p, Status: answered,
							Orig: conntrack.Tuple{Dst: netip.MustParseAddrPort(to)}, Reply: conntrack.Tuple{Src: netip.MustParseAddrPort(backend)}}
						if x.abandoned(c.farms, flow) {
							n++
						}
					}
				}
			}
		}
		if n != tt.want {
			t.Errorf("%d flows do not go on, want %d", n, tt.want)
		}
	}
}
