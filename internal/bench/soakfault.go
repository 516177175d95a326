package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"sluice.dev/sluice/internal/bench/api"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/hostile"
	"sluice.dev/sluice/internal/lab/control"
)

// fault is something bad that lasts for a while, after which all is as before.
type fault struct {
	name string
	do   func(ctx context.Context, lasting time.Duration) error
}

// breakThings makes every kind of fault in turns, in an order that is drawn anew each time, until ctx ends; then all runs again.
func (t *trial) breakThings(ctx context.Context) error {
	kinds := []fault{
		{"the API server is killed and away", t.withoutAPI},
		{"the API server is killed and comes back", func(ctx context.Context, _ time.Duration) error { return t.withoutAPI(ctx, 0) }},
		{"etcd is compacted", func(ctx context.Context, _ time.Duration) error { return t.stand.Compact(ctx) }},
		{"the agent is stopped", func(ctx context.Context, d time.Duration) error {
			return t.stopped(func() error { return wait(ctx, d) })
		}},
		{"the agent is stopped, and what it has missed is forgotten", func(ctx context.Context, d time.Duration) error {
			return t.stopped(func() error { return errors.Join(t.withoutAPI(ctx, 0), wait(ctx, d), t.stand.Compact(ctx)) })
		}},
		{"the agent is killed", t.withoutAgent},
		{"hostile objects come and go", t.withHostile},
	}
	draw := rand.New(rand.NewPCG(soakSeed, 2))
	for {
		for _, k := range draw.Perm(len(kinds)) {
			if wait(ctx, t.length/50+time.Duration(draw.Int64N(int64(t.length/100)))) != nil {
				return nil
			}
			lasting := 200*time.Millisecond + time.Duration(draw.Int64N(int64(3*time.Second)))
			t.progress("%s (for %s, if that lasts)", kinds[k].name, lasting.Round(time.Millisecond))
			// Once begun it is brought to its end, that of the trial or not.
			if err := kinds[k].do(context.WithoutCancel(ctx), lasting); err != nil {
				return fmt.Errorf("%s: %w", kinds[k].name, err)
			}
			t.faults++
		}
	}
}

func (t *trial) withoutAPI(ctx context.Context, lasting time.Duration) error {
	if err := t.stand.Kill(control.APIServer); err != nil {
		return err
	}
	return errors.Join(wait(ctx, lasting), t.stand.Restart(ctx, control.APIServer))
}

// stopped does something while the agent stands still.
func (t *trial) stopped(meanwhile func() error) error {
	if err := t.seat.Pause(); err != nil {
		return err
	}
	return errors.Join(meanwhile(), t.seat.Resume())
}

func (t *trial) withoutAgent(ctx context.Context, lasting time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seat.Kill()
	return errors.Join(wait(ctx, lasting), t.seat.Start())
}

// withHostile has the API hold some hostile services and slices for a while. What this API server refuses, as one of another
// make or size would not, is passed over.
func (t *trial) withHostile(ctx context.Context, lasting time.Duration) error {
	objects := hostile.Objects{Seed: soakSeed, Most: 100_000}
	var errs []error
	if t.hostile == 0 {
		for _, f := range hostile.Ground([hostile.Pods]netip.Addr{}) {
			if kindOf(f) == "Namespace" {
				errs = append(errs, t.stand.Create(ctx, f))
			}
		}
	}
	var there []cluster.File
	for until := t.hostile + 60; t.hostile < until; t.hostile++ {
		for _, f := range objects.Draw(t.hostile, 0) {
			if kind := kindOf(f); kind != "Service" && kind != "EndpointSlice" {
				continue // the agent does not read it here
			}
			switch err := t.stand.Create(ctx, f); {
			case err == nil:
				there = append(there, f)
			case !errors.Is(err, api.ErrInvalid):
				errs = append(errs, err)
			}
		}
	}
	t.progress("%d hostile objects are there", len(there))
	errs = append(errs, wait(ctx, lasting))
	for _, f := range there {
		errs = append(errs, t.stand.Delete(ctx, f))
	}
	return errors.Join(errs...)
}
