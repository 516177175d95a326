package peer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/netns"
)

// Sluice is this program: its own store, compiler and driver, in this process.
type Sluice struct {
	Mode Mode // AtSocket needs the testbed's client to be a pod
}

// Name implements Dataplane.
func (s Sluice) Name() string { return s.Mode.Name() }

// Limit implements Dataplane.
func (Sluice) Limit() (int, string) { return 0, "" }

// NodePorts implements Dataplane.
func (Sluice) NodePorts() bool { return true }

// Target implements Dataplane.
func (Sluice) Target(_ cluster.Cluster, first, count int) inject.Target {
	return services(first, count)
}

// Load implements Dataplane. The time is from a full store to the kernel's acknowledgement:
// compile, compare with the empty kernel, apply.
func (s Sluice) Load(ctx context.Context, node *netns.NS, c cluster.Cluster) (*Loaded, error) {
	n, err := NewNode(node, s.Mode, Config())
	if err != nil {
		return nil, err
	}
	fill(n.store, c)
	runtime.GC() // filling the store is not measured
	took, err := n.Apply(ctx, nil)
	if err != nil {
		_ = n.Close() // nothing more to say than err does
		return nil, fmt.Errorf("load sluice: %w", err)
	}
	if n.sockets != nil {
		if err := n.awaitPods(ctx, 1); err != nil {
			return nil, errors.Join(fmt.Errorf("accelerate sluice: %w", err), n.Close())
		}
	}
	return &Loaded{Took: took.Sum(), Note: took.String(), Close: n.Close}, nil
}

// fill brings the cluster and its one node into a store.
func fill(s *store.Store, c cluster.Cluster) {
	events := []store.Event{{
		Kind: model.NodeKind, Name: model.Name{Name: cluster.Node},
		Object: &model.Node{Name: cluster.Node, IPs: []netip.Addr{cluster.NodeAddr}},
	}}
	for i := range c.Services {
		name := cluster.ServiceName(i)
		events = append(events,
			store.Event{Kind: model.ServiceKind, Name: name, Object: c.Service(i)},
			store.Event{Kind: model.EndpointSliceKind, Name: name, Object: c.Slice(i, c.Endpoints)})
	}
	s.Apply(events)
}
