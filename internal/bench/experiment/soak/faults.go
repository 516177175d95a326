package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/bench/api"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/experiment/kubeproxy"
	"sluice.dev/sluice/internal/bench/harness"
	"sluice.dev/sluice/internal/bench/hostile"
	"sluice.dev/sluice/internal/lab/control"
)

// fault is something bad that lasts for a while, after which all is as before.
type fault struct {
	name   string
	inject func(ctx context.Context, lasting time.Duration) error
}

// injectFaults makes every kind of fault in turns, in an order that is drawn anew each time, until ctx ends; then all runs again.
func (t *soakRun) injectFaults(ctx context.Context) error {
	kinds := []fault{
		{"the API server is killed and away", t.withoutAPI},
		{"the API server is killed and comes back", func(ctx context.Context, _ time.Duration) error { return t.withoutAPI(ctx, 0) }},
		{"etcd is compacted", func(ctx context.Context, _ time.Duration) error { return t.stand.Compact(ctx) }},
		{"the agent is stopped", func(ctx context.Context, d time.Duration) error {
			return t.whileStopped(func() error { return harness.Wait(ctx, d) })
		}},
		{"the agent is stopped, and what it has missed is forgotten", func(ctx context.Context, d time.Duration) error {
			return t.whileStopped(func() error { return errors.Join(t.withoutAPI(ctx, 0), harness.Wait(ctx, d), t.stand.Compact(ctx)) })
		}},
		{"the agent is killed", t.withoutAgent},
		{"hostile objects come and go", t.withHostile},
	}
	draw := rand.New(rand.NewPCG(soakSeed, 2))
	for {
		for _, k := range draw.Perm(len(kinds)) {
			if harness.Wait(ctx, t.length/50+time.Duration(draw.Int64N(int64(t.length/100)))) != nil {
				return nil
			}
			lasting := 200*time.Millisecond + time.Duration(draw.Int64N(int64(3*time.Second)))
			t.Logf("%s (for %s, if that lasts)", kinds[k].name, lasting.Round(time.Millisecond))
			// Once begun it is brought to its end, that of the trial or not.
			if err := kinds[k].inject(context.WithoutCancel(ctx), lasting); err != nil {
				return fmt.Errorf("%s: %w", kinds[k].name, err)
			}
			t.faults++
		}
	}
}

func (t *soakRun) withoutAPI(ctx context.Context, lasting time.Duration) error {
	if err := t.stand.Kill(control.APIServer); err != nil {
		return err
	}
	return errors.Join(harness.Wait(ctx, lasting), t.stand.Restart(ctx, control.APIServer))
}

// whileStopped does something while the agent stands still.
func (t *soakRun) whileStopped(meanwhile func() error) error {
	if err := t.process.Pause(); err != nil {
		return err
	}
	return errors.Join(meanwhile(), t.process.Resume())
}

func (t *soakRun) withoutAgent(ctx context.Context, lasting time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.process.Kill()
	return errors.Join(harness.Wait(ctx, lasting), t.process.Start())
}

// soakCrowd is how many pods are on other nodes.
const soakCrowd = hostile.Crowd(500)

// createHostilePods makes the tenants' namespaces and their pods, whose addresses are nobody else's, and the crowd.
func createHostilePods(ctx context.Context, st *kubeproxy.ApiCluster) error {
	var addrs [hostile.Pods]netip.Addr
	for i := range addrs {
		addrs[i] = netip.AddrFrom4([4]byte{10, 63, 255, byte(1 + i)})
	}
	files := hostile.Ground(addrs)
	for i := range soakCrowd.Files() {
		files = append(files, soakCrowd.Pods(i, 0)...)
	}
	var errs []error
	for _, f := range files {
		switch f.Kind() {
		case "Namespace":
			errs = append(errs, st.Create(ctx, f))
		case "Pod":
			errs = append(errs, st.CreateRunning(ctx, f))
		}
	}
	return errors.Join(errs...)
}

// withHostile has the API hold some hostile objects for a while, under which pods come and go. What this API server refuses, as one
// of another make or size would not, is passed over.
func (t *soakRun) withHostile(ctx context.Context, lasting time.Duration) error {
	objects := hostile.Objects{Seed: soakSeed, Most: 100_000, Addresses: soakCrowd.Addresses()}
	const each = 60
	var errs []error
	var there []cluster.File
	kinds := map[string]int{}
	for until := t.hostile + each; t.hostile < until; t.hostile++ {
		for _, f := range objects.Draw(t.hostile, 0) {
			kind := f.Kind()
			if !slices.Contains([]string{"Service", "EndpointSlice", "NetworkPolicy", "ServiceAccount"}, kind) || isCalico(f) {
				continue // the API server knows none of the others, or nobody would end what they begin
			}
			switch err := t.stand.Create(ctx, f); {
			case err == nil:
				there = append(there, f)
				kinds[kind]++
			case !errors.Is(err, api.ErrInvalid):
				errs = append(errs, err)
			}
		}
	}
	t.Logf("hostile objects are there: %v", kinds)
	step := t.hostile / each
	file, was := (step-1)%soakCrowd.Files(), (step-1)/soakCrowd.Files()
	for _, f := range soakCrowd.Pods(file, was) {
		errs = append(errs, t.stand.Delete(ctx, f))
	}
	for _, f := range soakCrowd.Pods(file, was+1) {
		errs = append(errs, t.stand.CreateRunning(ctx, f))
	}
	errs = append(errs, harness.Wait(ctx, lasting))
	for _, f := range there {
		errs = append(errs, t.stand.Delete(ctx, f))
	}
	return errors.Join(errs...)
}

// isCalico are objects whose kinds are called like those of Kubernetes.
func isCalico(f cluster.File) bool { return bytes.Contains(f.JSON, []byte(`"projectcalico.org/v3"`)) }
