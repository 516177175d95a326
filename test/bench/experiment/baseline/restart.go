package baseline

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/testbed"
)

// replace kills the agent under load and starts an agent of that program in its place. It records
// what clients noticed, as variant, and the time until the new agent is ready, as metric unless
// that is "".
func replace(ctx context.Context, r *harness.Run, x *runningAgent, c cluster.Cluster, binary, variant, metric string) error {
	before, err := stickyEndpoints(ctx, x.testbed, c.Services)
	if err != nil {
		return err
	}
	res, err := whileLoaded(ctx, r, x.testbed, c, func() error {
		if err := harness.Wait(ctx, 500*time.Millisecond); err != nil {
			return err
		}
		x.Kill()
		if err := harness.Wait(ctx, 500*time.Millisecond); err != nil {
			return err
		}
		if err := x.startOn(ctx, x.Site, binary, metric); err != nil {
			return err
		}
		return harness.Wait(ctx, 500*time.Millisecond)
	})
	if err != nil {
		return err
	}
	after, err := stickyEndpoints(ctx, x.testbed, c.Services)
	if err != nil {
		return err
	}
	others := 0
	for i := range before {
		if before[i] != after[i] {
			others++
		}
	}
	x.record(variant, harness.Failed, "", float64(res.Failed))
	x.record(variant, moved, "", float64(others))
	if res.Failed > 0 {
		r.Note("%s, %s: %d of %d requests failed %v.", x.name, variant, res.Failed, res.Failed+res.Requests, res.Reasons)
	}
	return nil
}

// upgrade replaces the baseline's agent with one of this program, and back. It does nothing with
// this program's agent.
func upgrade(ctx context.Context, r *harness.Run, x *runningAgent, c cluster.Cluster) error {
	if x.name != baselineName {
		return nil
	}
	if err := replace(ctx, r, x, c, r.Binary, upgraded, ""); err != nil {
		return err
	}
	return replace(ctx, r, x, c, r.Baseline, downgraded, "")
}

// whileLoaded runs f under 1,000 requests a second to the last service and returns their results.
func whileLoaded(ctx context.Context, r *harness.Run, l *testbed.Testbed, c cluster.Cluster, f func() error) (*load.Result, error) {
	under, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		res *load.Result
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		res, err := r.Load(under, l, load.Config{
			Target: netip.AddrPortFrom(cluster.ServiceAddr(c.Services-1), cluster.ServicePort),
			Rate:   1_000, Duration: 10 * time.Minute,
		})
		answers <- answer{res, err}
	}()
	err := f()
	cancel()
	a := <-answers
	return a.res, errors.Join(err, a.err)
}

// stickyEndpoints connects to the service with session affinity once from each address of the
// client and returns the endpoints that accepted.
func stickyEndpoints(ctx context.Context, l *testbed.Testbed, services int) ([]netip.Addr, error) {
	var listener net.Listener
	err := l.Backend.Do(func() (err error) {
		listener, err = new(net.ListenConfig).Listen(ctx, "tcp4", fmt.Sprintf(":%d", cluster.StickyPort))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for clients with session affinity: %w", err)
	}
	defer listener.Close()
	sticky := netip.AddrPortFrom(cluster.ServiceAddr(services), cluster.ServicePort).String()
	var endpoints []netip.Addr
	for _, client := range testbed.ClientAddrs() {
		var asked net.Conn
		err := l.Client.Do(func() (err error) {
			d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(client, 0))}
			asked, err = d.DialContext(ctx, "tcp4", sticky)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("ask the service with session affinity from %s: %w", client, err)
		}
		answered, err := listener.Accept()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("accept a client with session affinity: %w", err), asked.Close())
		}
		endpoints = append(endpoints, answered.LocalAddr().(*net.TCPAddr).AddrPort().Addr())
		_ = errors.Join(answered.Close(), asked.Close()) // they have served their purpose
	}
	return endpoints, nil
}
