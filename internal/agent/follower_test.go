package agent

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// slow is a driver whose plans wait until they are released.
type slow struct {
	*fakeDriver
	held chan struct{} // once closed, nothing waits
}

func (d slow) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	p, err := d.fakeDriver.Adopt(ctx, want, keep)
	return slowPlan{p, d.held}, err
}

type slowPlan struct {
	driver.Plan
	held chan struct{}
}

func (p slowPlan) Apply(ctx context.Context) error {
	select {
	case <-p.held:
		return p.Plan.Apply(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// network is a driver of the fabric. What it holds of a route is a frontend at the route's address.
type network struct{ slow }

func (d network) Capabilities() driver.Capabilities {
	c := d.slow.Capabilities()
	c.Can = driver.Fabric
	return c
}

func (d network) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	return d.slow.Adopt(ctx, &state.State{Services: &state.Services{Frontends: atRoutes(want.Fabric.Routes)}}, keep)
}

func (d network) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	return d.slow.Update(ctx, state.Delta{Services: state.ServicesDelta{Frontends: atRoutes(delta.Fabric.Routes)}})
}

func atRoutes(routes map[netip.Prefix]*state.Route) map[state.FrontendKey]*state.Frontend {
	all := map[state.FrontendKey]*state.Frontend{}
	for p, r := range routes {
		k := state.FrontendKey{Addr: p.Addr(), Protocol: model.TCP, Port: 80}
		if all[k] = nil; r != nil {
			all[k] = &state.Frontend{Service: model.Name{Name: r.Node}}
		}
	}
	return all
}

// newNetwork returns one whose plans wait, and what has an agent use it.
func newNetwork() (network, func(*Config)) {
	d := network{slow{newFakeDriver(), make(chan struct{})}}
	return d, func(c *Config) {
		underlay := make(chan []model.HostAddress, 1)
		underlay <- []model.HostAddress{{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Device: "eth0", MTU: 1500}}
		all := &model.IPPool{Name: "--fabric", CIDR: netip.MustParsePrefix("0.0.0.0/0"), VXLAN: model.Always}
		c.Underlay, c.Compiler = underlay, compile.New(compile.Config{Config: services.Config{Node: c.Node, Fabric: true}, Pools: []*model.IPPool{all}})
		c.Fabric = d
	}
}

// node is a node whose pods have addresses of 10.1.N.0/24.
func node(n byte, name string) store.Event {
	at := &model.Node{Name: name, IPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, n})}, PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, n, 0}), 24)}}
	return store.Event{Kind: model.NodeKind, Name: model.Name{Name: name}, Object: at}
}

// A follower that is late or fails costs the base nothing. It catches up with everything it
// missed, and then follows changes.
func TestFollower(t *testing.T) {
	fast, use := newNetwork()
	b := start(t, use)
	b.source.deliver(append(web(1, "10.1.0.1"), node(1, "node-a"))...)
	b.source.sync()
	b.holds(t, web1)
	b.source.deliver(append(web(2, "10.1.0.2"), node(2, "node-b"))...)
	b.holds(t, web1, web2)
	if s := b.Status(); !s.OK || len(s.Followers) != 1 || s.Followers[0].InStep {
		t.Errorf("status while the follower waits: %+v", s)
	}
	fast.breaks(errKernel)
	close(fast.held)
	eventually(t, "the failure is told", func() bool { return strings.Contains(b.Status().Followers[0].Error, errKernel.Error()) })
	b.source.deliver(append(slices.Concat(gone(1), web(3, "10.1.0.3")), node(3, "node-c"))...)
	b.holds(t, web2, "TCP 10.0.0.3:80 -> [10.1.0.3:8080]")
	if why := b.health.unready(); why != "" {
		t.Errorf("while the follower fails: %q", why)
	}
	fast.breaks(nil)
	inStep := func() bool { return b.Status().Followers[0].InStep }
	eventually(t, "the follower catches up", inStep)
	if got := fast.backends(); len(got) != 3 {
		t.Errorf("the follower holds %v", got)
	}
	applied := fast.applied()
	b.source.deliver(store.Event{Kind: model.NodeKind, Name: model.Name{Name: "node-c"}})
	eventually(t, "the follower follows", func() bool { return len(fast.backends()) == 2 && inStep() })
	if n := fast.applied() - applied; n != 1 {
		t.Errorf("the follower took %d plans for a change", n)
	}
	fast.mu.Lock()
	defer fast.mu.Unlock()
	if len(fast.misused) > 0 {
		t.Errorf("misused: %v", fast.misused)
	}
}

// What others do to a follower's tables is undone: soon where there is evidence of it, and by
// an audit where there is none. The base is not told of it.
func TestFollowerHeals(t *testing.T) {
	for name, c := range map[string]struct {
		audit  time.Duration
		change func(*fakeDriver)
	}{
		"tampering": {time.Hour, (*fakeDriver).flush},
		"audit": {20 * time.Millisecond, func(d *fakeDriver) {
			d.mu.Lock()
			defer d.mu.Unlock()
			clear(d.kernel)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fast, use := newNetwork()
				close(fast.held)
				b := start(t, apart, use, func(conf *Config) { conf.AuditInterval = c.audit })
				b.source.deliver(node(1, "node-a"), node(2, "node-b"))
				b.source.sync()
				eventually(t, "the follower is in step", func() bool { return b.Status().Followers[0].InStep })
				held := fast.backends()
				c.change(fast.fakeDriver)
				eventually(t, "it is put right", func() bool { return slices.Equal(fast.backends(), held) && len(held) == 2 })
				healed := "put right\" follower=fake foundBy=" + name
				eventually(t, "it is said", func() bool { return strings.Contains(b.log.String(), healed) })
				if s := b.Status(); s.Heals > 0 || !s.OK {
					t.Errorf("status: %+v", s)
				}
			})
		})
	}
}

// weak is a driver without affinity.
type weak struct{ *fakeDriver }

func (d weak) Capabilities() driver.Capabilities {
	c := d.fakeDriver.Capabilities()
	c.Can &^= driver.Affinity | driver.LocalTraffic
	return c
}

// If a service asks for what the driver lacks, the status names it. Everything else works.
func TestLackingCapabilities(t *testing.T) {
	b := start(t, func(c *Config) { c.Driver = weak{c.Driver.(*fakeDriver)} })
	sticky := web(1, "10.1.0.1")
	sticky[0].Object.(*model.Service).Affinity = time.Hour
	b.source.deliver(append(sticky, web(2, "10.1.0.2")...)...)
	b.source.sync()
	b.holds(t, web1, web2)
	issues := b.Status().Issues
	if len(issues) != 1 || issues[0].String() != "Service shop/web-1: the driver fake cannot do what it asks for: session affinity; in force: the rest of it" {
		t.Errorf("issues: %v", issues)
	}
}

// What carries out the fabric matters to users: sync waits for it, and what it fails at
// is a problem.
func TestFabricIsWaitedFor(t *testing.T) {
	d, use := newNetwork()
	b := start(t, use)
	b.source.deliver(append(web(1, "10.1.0.1"), node(1, "node-a"), node(2, "node-b"))...)
	b.source.sync()
	b.holds(t, web1)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := b.client.Sync(ctx); err == nil {
		t.Error("sync ended before the fabric was there")
	}
	close(d.held)
	if err := b.client.Sync(t.Context()); err != nil || len(d.backends()) != 2 {
		t.Errorf("sync: %v, with %v", err, d.backends())
	}
	d.breaks(errKernel)
	b.source.deliver(node(3, "node-c"))
	if err := b.client.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), "tunnels and routes to other nodes: "+errKernel.Error()) {
		t.Errorf("sync: %v", err)
	}
	if s := b.Status(); s.OK || !strings.Contains(s.Problems[0], "tunnels and routes to other nodes could not be programmed") {
		t.Errorf("status: %+v", s)
	}
}
