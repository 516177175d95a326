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

	"sluice.dev/sluice/test/bench/api"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/experiment/kubeproxy"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/hostile"
	"sluice.dev/sluice/test/lab/control"
)

// fault is a fault that lasts for a while.
type fault struct {
	name   string
	inject func(ctx context.Context, lasting time.Duration) error
}

// injectFaults injects every kind of fault in turns, in a new random order each time, until ctx
// ends. When it returns, everything runs again.
func (t *soakRun) injectFaults(ctx context.Context) error {
	kinds := []fault{
		{"the API server is killed and away", t.withoutAPI},
		{"the API server is killed and comes back", func(ctx context.Context, _ time.Duration) error { return t.withoutAPI(ctx, 0) }},
		{"etcd is compacted", func(ctx context.Context, _ time.Duration) error { return t.cluster.Compact(ctx) }},
		{"the agent is stopped", func(ctx context.Context, d time.Duration) error {
			return t.whileStopped(func() error { return harness.Wait(ctx, d) })
		}},
		{"the agent is stopped, and what it has missed is forgotten", func(ctx context.Context, d time.Duration) error {
			return t.whileStopped(func() error { return errors.Join(t.withoutAPI(ctx, 0), harness.Wait(ctx, d), t.cluster.Compact(ctx)) })
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
			// A fault that has begun is ended properly, even if ctx ends meanwhile.
			if err := kinds[k].inject(context.WithoutCancel(ctx), lasting); err != nil {
				return fmt.Errorf("%s: %w", kinds[k].name, err)
			}
			t.faults++
		}
	}
}

func (t *soakRun) withoutAPI(ctx context.Context, lasting time.Duration) error {
	if err := t.cluster.Kill(control.APIServer); err != nil {
		return err
	}
	return errors.Join(harness.Wait(ctx, lasting), t.cluster.Restart(ctx, control.APIServer))
}

// whileStopped runs a function while the agent is stopped (SIGSTOP).
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

// soakRemotePods is how many pods are on other nodes.
const soakRemotePods = hostile.RemotePods(500)

// createHostilePods creates the tenants' namespaces and pods, with addresses that no other object
// has, and the pods of other nodes.
func createHostilePods(ctx context.Context, st *kubeproxy.APICluster) error {
	var addrs [hostile.Pods]netip.Addr
	for i := range addrs {
		addrs[i] = netip.AddrFrom4([4]byte{10, 63, 255, byte(1 + i)})
	}
	files := hostile.Prerequisites(addrs)
	for i := range soakRemotePods.Files() {
		files = append(files, soakRemotePods.Pods(i, 0)...)
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

// withHostile creates hostile objects, changes pods under them, and deletes them after a while. It
// passes over objects that this API server refuses, though another version or size of it would not.
func (t *soakRun) withHostile(ctx context.Context, lasting time.Duration) error {
	objects := hostile.Objects{Seed: soakSeed, Most: 100_000, Addresses: soakRemotePods.Addresses()}
	const each = 60
	var errs []error
	var there []cluster.File
	kinds := map[string]int{}
	for until := t.hostile + each; t.hostile < until; t.hostile++ {
		for _, f := range objects.Draw(t.hostile, 0) {
			kind := f.Kind()
			if !slices.Contains([]string{"Service", "EndpointSlice", "NetworkPolicy", "ServiceAccount"}, kind) || isCalico(f) {
				continue // the API server does not know the others, or they would have to be cleaned up
			}
			switch err := t.cluster.Create(ctx, f); {
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
	file, was := (step-1)%soakRemotePods.Files(), (step-1)/soakRemotePods.Files()
	for _, f := range soakRemotePods.Pods(file, was) {
		errs = append(errs, t.cluster.Delete(ctx, f))
	}
	for _, f := range soakRemotePods.Pods(file, was+1) {
		errs = append(errs, t.cluster.CreateRunning(ctx, f))
	}
	errs = append(errs, harness.Wait(ctx, lasting))
	for _, f := range there {
		errs = append(errs, t.cluster.Delete(ctx, f))
	}
	return errors.Join(errs...)
}

// isCalico reports whether an object is Calico's: some of its kinds have the names of Kubernetes'.
func isCalico(f cluster.File) bool { return bytes.Contains(f.JSON, []byte(`"projectcalico.org/v3"`)) }
