package baseline

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
)

const (
	passed  = "denied connections that passed"
	refused = "allowed connections that failed"
)

// upgradePolicies replaces the baseline's agent with one of this program, and back, while a pod
// keeps opening connections that policies deny and others that they allow. It does nothing with
// this program's agent.
func upgradePolicies(ctx context.Context, r *harness.Run, x *runningAgent, t cluster.Tenants) error {
	if x.name != baselineName {
		return nil
	}
	for _, to := range []struct{ binary, variant string }{{r.Binary, upgraded}, {r.Baseline, downgraded}} {
		tried, err := watchPolicies(ctx, x, t, func() error {
			x.Kill()
			if err := harness.Wait(ctx, 500*time.Millisecond); err != nil {
				return err
			}
			if err := x.startOn(ctx, x.Site, to.binary, ""); err != nil {
				return err
			}
			return harness.Wait(ctx, 500*time.Millisecond)
		})
		if err != nil {
			return err
		}
		x.record(to.variant, passed, "", float64(tried[false].passed))
		x.record(to.variant, refused, "", float64(tried[true].tried-tried[true].passed))
		r.Logf("%s: %d denied and %d allowed connections were tried", to.variant, tried[false].tried, tried[true].tried)
	}
	return nil
}

type attempts struct{ tried, passed int }

// watchPolicies runs f while one pod connects to two ports of another, of which policies allow one.
func watchPolicies(ctx context.Context, x *runningAgent, t cluster.Tenants, f func() error) (map[bool]attempts, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	counts := map[bool]attempts{}
	var failed error
	for port, open := range map[uint16]bool{cluster.TargetPort: true, cluster.TargetPort + 1: false} {
		target := netip.AddrPortFrom(cluster.PodAddr(1, t.Local), port)
		var listener net.Listener
		err := x.testbed.Backend.Do(func() (err error) {
			listener, err = new(net.ListenConfig).Listen(ctx, "tcp", target.String())
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("listen in a pod: %w", err)
		}
		defer listener.Close()
		go func() {
			for c, err := listener.Accept(); err == nil; c, err = listener.Accept() {
				_ = c.Close()
			}
		}()
		patience := 20 * time.Millisecond // a denied one is dropped: what passes takes far less
		if open {
			patience = 2 * time.Second
		}
		all.Go(func() {
			a, err := keepConnecting(ctx, x, target, patience)
			mu.Lock()
			defer mu.Unlock()
			counts[open], failed = a, errors.Join(failed, err)
		})
	}
	err := f()
	cancel()
	all.Wait()
	return counts, errors.Join(err, failed)
}

// keepConnecting opens one connection after the other until ctx ends.
func keepConnecting(ctx context.Context, x *runningAgent, target netip.AddrPort, patience time.Duration) (a attempts, err error) {
	err = x.testbed.Client.Do(func() error {
		for ctx.Err() == nil {
			// Not with ctx: a connection that is being opened when it ends is no failure.
			conn, err := (&net.Dialer{Timeout: patience}).Dial("tcp", target.String())
			a.tried++
			if err == nil {
				a.passed++
				_ = conn.Close() // it has served its purpose
			}
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	return a, err
}
