package agent

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// policyFails is a driver whose kernel takes no change of policy while it fails.
type policyFails struct {
	*fakeDriver
	fails *atomic.Bool
}

func (d policyFails) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	if d.fails.Load() && want.Policy != nil {
		return nil, errKernel
	}
	return d.fakeDriver.Adopt(ctx, want, keep)
}

func (d policyFails) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	if d.fails.Load() && delta.Policy.Len() > 0 {
		return nil, errKernel
	}
	return d.fakeDriver.Update(ctx, delta)
}

// While policy fails, services are programmed as ever, also those that take several slices; the
// status says what fails, and all is well once it no longer does.
func TestServicesWhilePolicyFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := &atomic.Bool{}
		b := startPolicy(t, apart, func(c *Config) { c.Driver = policyFails{c.Driver.(*fakeDriver), fails} })
		fails.Store(true)
		b.source.deliver(store.Event{Kind: model.PodKind, Name: model.Name{Namespace: "shop", Name: "late"}, Object: &model.Pod{
			Name: model.Name{Namespace: "shop", Name: "late"}, Node: "node-a", IPs: []netip.Addr{netip.MustParseAddr("10.1.0.7")}}})
		eventually(t, "the failure is told", func() bool {
			s := b.Status()
			return len(s.Failures) == 1 && s.Failures[0].Part == "policy" && b.health.unready() != ""
		})
		const services = 10
		b.source.deliver(largeServices(services)...)
		eventually(t, "all services are programmed", func() bool { return len(b.driver.backends()) == 1+services })
		generation := b.Store.Generation()
		service, policy, pod := model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "web-2"}},
			model.Ref{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: "policy"}},
			model.Ref{Kind: model.PodKind, Name: model.Name{Namespace: "shop", Name: "late"}}
		for _, c := range []struct {
			objects []model.Ref
			fails   bool
		}{{[]model.Ref{service}, false}, {[]model.Ref{policy}, true}, {[]model.Ref{service, policy}, true}, {[]model.Ref{pod}, true}, {nil, true}} {
			if err := b.Wait(t.Context(), generation, c.objects...); (err != nil) != c.fails {
				t.Errorf("wait for %v: %v", c.objects, err)
			}
		}
		fails.Store(false)
		if err := b.client.Sync(t.Context()); err != nil {
			t.Error(err)
		}
		if s := b.Status(); len(s.Failures) > 0 {
			t.Errorf("status: %+v", s)
		}
	})
}

// Who waits for a change gets no answer before the connections have ended that may not go on, and
// an error where they cannot be ended: sync, a pod's attachment, and who asks about objects, also
// if they are at fault, as a balancer does.
func TestWaitForCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, release := make(chan struct{}), make(chan error)
		holds := &atomic.Bool{}
		b := startPolicy(t, apart, func(c *Config) {
			c.AwaitCuts = func(context.Context) error {
				if !holds.Load() {
					return nil
				}
				asked <- struct{}{}
				return <-release
			}
		})
		b.source.deliver(store.Event{Kind: model.PodKind, Name: newPod.Pod, Object: &model.Pod{Name: newPod.Pod, Node: "node-a"}})
		faulty := model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "web-1"}}
		b.driver.setsAside(driver.SetAside{Kind: string(faulty.Kind), Name: faulty.Name, Reason: "refused", InForce: model.InForceRest})
		holds.Store(true)
		for name, c := range map[string]struct {
			call  func() error
			fault bool
		}{
			"sync":          {func() error { return b.client.Sync(t.Context()) }, true},
			"an attachment": {func() error { return b.Attach(t.Context(), newPod) }, false},
			"objects": {func() error {
				return b.Wait(t.Context(), b.Store.Generation(), model.Ref{Kind: model.PodKind, Name: newPod.Pod})
			}, false},
			"objects with a fault": {func() error { return b.Wait(t.Context(), b.Store.Generation(), faulty) }, true},
		} {
			for _, failure := range []error{nil, errKernel} {
				done := make(chan error, 1)
				go func() { done <- c.call() }()
				select {
				case <-asked:
				case err := <-done:
					t.Fatalf("%s: it does not ask whether connections have ended: %v", name, err)
				}
				synctest.Wait()
				select {
				case err := <-done:
					t.Fatalf("%s: it answers before connections have ended: %v", name, err)
				case release <- failure:
				}
				err := <-done
				_, fault := errors.AsType[*FaultError](err)
				if failed := err != nil && strings.Contains(err.Error(), errKernel.Error()); failed != (failure != nil) || !failed && fault != c.fault {
					t.Errorf("%s, once the connections have ended with %v: %v", name, failure, err)
				}
			}
		}
		holds.Store(false)
	})
}
