package agent

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
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

// A follower that is late or fails costs the base nothing. It catches up with everything it
// missed, and then follows changes.
func TestFollower(t *testing.T) {
	fast := slow{newFakeDriver(), make(chan struct{})}
	b := start(t, func(c *Config) { c.Fabric = fast })
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	b.holds(t, web1)
	b.source.deliver(web(2, "10.1.0.2")...)
	b.holds(t, web1, web2)
	if s := b.Status(); !s.OK || len(s.Followers) != 1 || s.Followers[0].InStep {
		t.Errorf("status while the follower waits: %+v", s)
	}
	fast.breaks(errKernel)
	close(fast.held)
	eventually(t, "the failure is told", func() bool { return strings.Contains(b.Status().Followers[0].Error, errKernel.Error()) })
	b.source.deliver(slices.Concat(gone(1), web(2, "10.1.0.2"), web(3, "10.1.0.3"))...)
	b.holds(t, web2, "TCP 10.0.0.3:80 -> [10.1.0.3:8080]")
	if why := b.health.unready(); why != "" {
		t.Errorf("while the follower fails: %q", why)
	}
	fast.breaks(nil)
	inStep := func() bool { return b.Status().Followers[0].InStep }
	eventually(t, "the follower catches up", inStep)
	if got := fast.backends(); !slices.Equal(got, b.driver.backends()) || len(got) != 2 {
		t.Errorf("the follower holds %v", got)
	}
	applied := fast.applied()
	b.source.deliver(gone(3)...)
	eventually(t, "the follower follows", func() bool { return len(fast.backends()) == 1 && inStep() })
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
				fast := newFakeDriver()
				b := start(t, apart, func(conf *Config) { conf.Fabric, conf.AuditInterval = fast, c.audit })
				b.source.deliver(web(1, "10.1.0.1")...)
				b.source.sync()
				eventually(t, "the follower is in step", func() bool { return b.Status().Followers[0].InStep })
				c.change(fast)
				eventually(t, "it is put right", func() bool { return slices.Equal(fast.backends(), []string{web1}) })
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

// network is a driver that says that it carries out the fabric, too.
type network struct{ slow }

func (d network) Capabilities() driver.Capabilities {
	c := d.slow.Capabilities()
	c.Can |= driver.Fabric
	return c
}

// What carries out the fabric matters to users: sync waits for it, and what it fails at
// is a problem.
func TestFabricIsWaitedFor(t *testing.T) {
	d := network{slow{newFakeDriver(), make(chan struct{})}}
	b := start(t, func(c *Config) { c.Fabric = d })
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	b.holds(t, web1)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := b.client.Sync(ctx); err == nil {
		t.Error("sync ended before the fabric was there")
	}
	close(d.held)
	if err := b.client.Sync(t.Context()); err != nil || !slices.Equal(d.backends(), []string{web1}) {
		t.Errorf("sync: %v, with %v", err, d.backends())
	}
	d.breaks(errKernel)
	b.source.deliver(web(2, "10.1.0.2")...)
	if err := b.client.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), "tunnels and routes to other nodes: "+errKernel.Error()) {
		t.Errorf("sync: %v", err)
	}
	if s := b.Status(); s.OK || !strings.Contains(s.Problems[0], "tunnels and routes to other nodes could not be programmed") {
		t.Errorf("status: %+v", s)
	}
}
