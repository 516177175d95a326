// Package balancer holds the experiments about `sluice balance`, beside others that balance load on
// a plain Linux machine: iptables by hand, nftlb, HAProxy.
package balancer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// backends is how many backends each farm has.
const backends = 3

// farmCase is a program with so many farms, of which the last one is used.
type farmCase struct {
	harness.ServiceCase
	routed bool // backends are behind a router
}

// NewTestbed implements harness.Case. The backends of the last farm are neighbours of the node.
func (f farmCase) NewTestbed(prefix string) (*testbed.Testbed, error) {
	l, err := testbed.New(prefix)
	if err != nil || f.routed {
		return l, err
	}
	var used []netip.Addr
	for j := range f.Cluster.Endpoints {
		used = append(used, f.Cluster.Endpoint(f.Cluster.Services-1, j).Addr())
	}
	if err := l.Direct(used...); err != nil {
		_ = l.Close() // nothing more to say than err does
		return nil, err
	}
	return l, nil
}

// target is where clients find the last farm.
func (f farmCase) target() netip.AddrPort {
	if _, plain := f.Dataplane.(peer.Plain); plain {
		return f.Cluster.Endpoint(f.Cluster.Services-1, 0)
	}
	return netip.AddrPortFrom(cluster.ServiceAddr(f.Cluster.Services-1), cluster.ServicePort)
}

// port is the backends' port that connections arrive at.
func (f farmCase) port() uint16 {
	if b, ok := f.Dataplane.(peer.Balance); ok && b.Mode == peer.DSR {
		return cluster.ServicePort // packets are as the client sent them
	}
	return cluster.TargetPort
}

// cases pairs each program with each number of farms. What a program can't do is left out, with the
// reason, by the harness.
func cases(farms []int, planes ...peer.Dataplane) []farmCase {
	var specs []farmCase
	for _, n := range farms {
		for _, d := range planes {
			specs = append(specs, farmCase{ServiceCase: harness.ServiceCase{Dataplane: d, Cluster: cluster.Cluster{Services: n, Endpoints: backends}}})
		}
	}
	return specs
}

// compare adds a goal: the ratio of a quantity of two programs in the same rounds.
func compare(r *harness.Run, own, other string, farms int, metric string, least float64) {
	a, b := r.Find(own, farms, "", metric), r.Find(other, farms, "", metric)
	if a == nil || b == nil {
		return
	}
	got := report.Ratios(a, b)
	r.Goal(fmt.Sprintf("%s, %s over %s, %s", metric, own, other, farmCount(farms)), "≥ "+chart.Number(least), got.String(), got.Median >= least)
}

func farmCount(n int) string {
	if n == 1 {
		return "1 farm"
	}
	return chart.Number(float64(n)) + " farms"
}

// start starts the case's program without farms.
func (f farmCase) start(ctx context.Context, l *testbed.Testbed, flags ...string) (*peer.FarmServer, error) {
	if b, own := f.Dataplane.(peer.Balance); own {
		return peer.StartBalance(ctx, l.Node, b.Program, flags...)
	}
	return peer.StartNftlb(ctx, l.Node, flags...)
}

// farms are the case's farms.
func (f farmCase) farms() peer.Farms { return peer.FarmsOf(f.Cluster, peer.DNAT, "") }

// changing is a program with farms that are changed.
type changing struct {
	farmCase
	*testbed.Testbed
	*peer.FarmServer
}

// inTurns measures programs that are changed while they run, each once a round.
func inTurns(ctx context.Context, r *harness.Run, specs []farmCase, measure func(context.Context, *harness.Run, *changing) error) error {
	for round := range r.Options.Rounds {
		for _, s := range specs {
			if why := s.SkipReason(); why != "" {
				r.Skip("%s: %s", s, why)
				continue
			}
			r.Logf("round %d of %d: %s", round+1, r.Options.Rounds, s)
			err := withFarms(ctx, r, s, func(c *changing) error { return measure(ctx, r, c) })
			if errors.Is(err, peer.ErrMissing) {
				r.Skip("%s", err)
			} else if err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
	}
	return nil
}

// withFarms calls f with a program that has the case's farms, in a testbed of its own.
func withFarms(ctx context.Context, r *harness.Run, s farmCase, f func(*changing) error) (err error) {
	l, err := s.NewTestbed(r.NextPrefix())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	server, err := s.start(ctx, l)
	if err != nil {
		return err
	}
	c := &changing{s, l, server}
	defer func() { err = errors.Join(err, c.FarmServer.Close()) }() // it may be another one by then
	if _, err := c.Call(ctx, http.MethodPost, "/farms", s.farms()); err != nil {
		return err
	}
	return f(c)
}

// set sets a backend's state.
func (c *changing) set(ctx context.Context, farm, backend int, state string) error {
	_, err := c.Call(ctx, http.MethodPut, "/farms", peer.Farms{Farms: []peer.Farm{{
		Name: peer.FarmName(farm), Backends: []peer.FarmBackend{{Name: peer.BackendName(backend), State: state}},
	}}})
	return err
}
