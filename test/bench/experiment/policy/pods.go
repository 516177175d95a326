package policy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/testbed"
)

// PodsOnNode is how many pods the node has in experiments with policies.
const PodsOnNode = 30

// newNode builds a node with pods and programs the tenants' policies, in a mode.
func newNode(ctx context.Context, r *harness.Run, mode peer.Mode, t cluster.Tenants) (*testbed.Testbed, *peer.Node, error) {
	l, err := testbed.NewPods(r.NextPrefix(), t.Local)
	if err != nil {
		return nil, nil, err
	}
	cfg := peer.Config()
	cfg.Policy = true
	n, err := peer.NewNode(l.Node, mode, cfg)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	took, err := n.Apply(ctx, t.Events())
	if err != nil {
		return nil, nil, errors.Join(err, n.Close(), l.Close())
	}
	r.Logf("programmed %s, %d services, with %s: %s", t, t.Services, mode.Name(), took)
	return l, n, nil
}

// CheckInForce checks that the tenants' policies are in force: of two ports that a pod serves,
// another pod of the node reaches the one that they open and not the other one.
func CheckInForce(ctx context.Context, l *testbed.Testbed, t cluster.Tenants) error {
	for port, open := range map[uint16]bool{cluster.TargetPort: true, cluster.TargetPort + 1: false} {
		target := netip.AddrPortFrom(cluster.PodAddr(1, t.Local), port)
		var listener net.Listener
		err := l.Backend.Do(func() (err error) {
			listener, err = new(net.ListenConfig).Listen(ctx, "tcp", target.String())
			return err
		})
		if err != nil {
			return fmt.Errorf("listen in a pod: %w", err)
		}
		err = l.Client.Do(func() error {
			conn, err := (&net.Dialer{Timeout: 300 * time.Millisecond}).DialContext(ctx, "tcp", target.String())
			if err == nil {
				_ = conn.Close() // it has served its purpose
			}
			return err
		})
		_ = listener.Close()
		if (err == nil) != open {
			return fmt.Errorf("policies do not hold: a connection to port %d, which is open: %t, came to: %w", port, open, err)
		}
	}
	return nil
}
