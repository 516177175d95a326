package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// fakeSpeaker learns what tests say.
type fakeSpeaker struct {
	reported wake.Signal

	mu    sync.Mutex
	told  bgp.Order // all
	heard bgp.Report
}

func (s *fakeSpeaker) Run(ctx context.Context) { <-ctx.Done() }

func (s *fakeSpeaker) Reported() <-chan struct{} { return s.reported }

func (s *fakeSpeaker) Follow(o bgp.Order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told.Apply(o)
}

func (s *fakeSpeaker) Take() (r bgp.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, s.heard = s.heard, bgp.Report{}
	return r
}

func (s *fakeSpeaker) report(r bgp.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard.Merge(r)
	s.reported.Set()
}

func (s *fakeSpeaker) peers() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.told.Peers))
}

// routing carries out the fabric in memory, and notes whether the last Adopt kept what it did not
// know.
type routing struct {
	driver.Driver
	mu     sync.Mutex
	routes map[netip.Prefix]*state.Route
	kept   bool
}

func (d *routing) Capabilities() driver.Capabilities {
	return driver.Capabilities{Name: "routing", Can: driver.Fabric | driver.Keeps}
}

func (d *routing) Adopt(_ context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	return &routingPlan{d, func() {
		d.routes, d.kept = maps.Clone(want.Fabric.Routes), keep.Fabric
	}}, nil
}

func (d *routing) Update(_ context.Context, delta state.Delta) (driver.Plan, error) {
	return &routingPlan{d, func() {
		f := state.NewFabric()
		f.Routes = d.routes
		f.Apply(delta.Fabric)
	}}, nil
}

func (d *routing) Tampered(context.Context) (bool, error) { return false, nil }

func (d *routing) SetAside() []driver.SetAside { return nil }

func (d *routing) Held(func(*state.State)) {}

type routingPlan struct {
	d     *routing
	apply func()
}

func (p *routingPlan) Len() int          { return 1 }
func (p *routingPlan) String() string    { return "routes" }
func (p *routingPlan) Kept() driver.Kept { return driver.Kept{} }
func (p *routingPlan) Apply(context.Context) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.apply()
	return nil
}

// to returns by what a prefix is reached, and whether the kernel's other routes were kept.
func (d *routing) to(p netip.Prefix) (via netip.Addr, kept bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.routes[p]; r != nil {
		via = r.Via
	}
	return via, d.kept
}

func bgpNode(name, ip, pods string) store.Event {
	return store.Event{Kind: model.NodeKind, Name: model.Name{Name: name}, Object: &model.Node{
		Name: name, IPs: []netip.Addr{netip.MustParseAddr(ip)}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix(pods)},
	}}
}

// What the objects say goes to the speaker, and what it learns to the kernel. What an earlier life
// learned stays in the kernel until the speaker is settled.
func TestBGP(t *testing.T) {
	speaker, routes := &fakeSpeaker{reported: wake.New()}, &routing{}
	underlay := make(chan []model.HostAddress, 1)
	underlay <- []model.HostAddress{{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Device: "eth0", MTU: 1500}}
	b := start(t, func(c *Config) {
		pools := []*model.IPPool{{Name: "pods", CIDR: netip.MustParsePrefix("10.0.0.0/8")}}
		c.Compiler = compile.New(compile.Config{Config: services.Config{Node: "node-a", Fabric: true}, Pools: pools, BGP: true})
		c.Speaker, c.Fabric, c.Underlay = speaker, routes, underlay
	})
	b.source.deliver(bgpNode("node-a", "192.0.2.1", "10.244.1.0/24"), bgpNode("node-b", "192.0.2.2", "10.244.2.0/24"))
	b.source.sync()
	eventually(t, "the speaker has its peer", func() bool { return slices.Equal(speaker.peers(), []string{"mesh node-b"}) })

	if s := b.Status().BGP; s.Peers != 1 || !slices.Equal(s.Down, []string{"mesh node-b: idle"}) {
		t.Errorf("before the speaker says anything sluice status says %+v of BGP", s)
	}
	far := netip.MustParsePrefix("172.16.0.0/16")
	next := netip.MustParseAddr("192.0.2.9")
	speaker.report(bgp.Report{
		Learned: map[netip.Prefix]*bgp.Learned{far: {Peer: "mesh node-b", NextHop: next}},
		Peers:   map[string]*bgp.PeerStatus{"mesh node-b": {State: bgp.Established, Received: 1, Accepted: 1}},
	})
	eventually(t, "the route is there, and others are kept", func() bool { via, kept := routes.to(far); return via == next && kept })
	r, err := b.client.BGP(t.Context())
	if err != nil || r.Settled || len(r.Peers) != 1 || r.Sessions["mesh node-b"].State != bgp.Established || len(r.Learned) != 1 || len(r.Routes) != 1 {
		t.Errorf("sluice bgp says %+v, %v", r, err)
	}
	if s := b.Status(); s.BGP == nil || s.BGP.Peers != 1 || len(s.BGP.Down) > 0 || !s.OK {
		t.Errorf("sluice status says %+v of BGP, and %v", s.BGP, s.Problems)
	}
	speaker.report(bgp.Report{Settled: true})
	eventually(t, "nothing is kept once the speaker is settled", func() bool { via, kept := routes.to(far); return via == next && !kept })

	speaker.report(bgp.Report{
		Learned: map[netip.Prefix]*bgp.Learned{far: nil}, Error: "no port",
		Peers: map[string]*bgp.PeerStatus{"mesh node-b": {State: "idle", Why: "it closed the session"}},
	})
	eventually(t, "the route is gone", func() bool { via, _ := routes.to(far); return !via.IsValid() })
	if r, err := b.client.BGP(t.Context()); err != nil || !r.Settled || r.Error != "no port" || r.Sessions["mesh node-b"].Why == "" || len(r.Learned) != 0 {
		t.Errorf("afterwards sluice bgp says %+v, %v", r, err)
	}
	if s := b.Status(); !slices.Equal(s.BGP.Down, []string{"mesh node-b: it closed the session"}) || !slices.Contains(s.Problems, "BGP does not work as it should: no port") ||
		!slices.Contains(s.Problems, "there is no BGP session with 1 of 1 peer: 'sluice bgp' says why") {
		t.Errorf("afterwards sluice status says %+v of BGP, and %v", s.BGP, s.Problems)
	}
	for _, say := range []string{"BGP session is established", "BGP session has ended", "no port"} {
		if !strings.Contains(b.log.String(), say) {
			t.Errorf("the log does not say %q", say)
		}
	}
}

func TestNoBGP(t *testing.T) {
	b := start(t)
	if _, err := b.client.BGP(t.Context()); err == nil || !strings.Contains(err.Error(), "--bgp") {
		t.Errorf("without BGP: %v", err)
	}
}
