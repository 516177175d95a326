package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/inject"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/netns"
	"sluice.dev/sluice/internal/store"
)

// Sluice is this program: its own store, compiler and driver, in this process.
type Sluice struct{}

// Name implements Dataplane.
func (Sluice) Name() string { return "sluice" }

// Limit implements Dataplane.
func (Sluice) Limit() (int, string) { return 0, "" }

// NodePorts implements Dataplane.
func (Sluice) NodePorts() bool { return true }

// Target implements Dataplane.
func (Sluice) Target(_ cluster.Cluster, first, count int) inject.Target {
	return services(first, count)
}

// Load implements Dataplane. The time is from a full store to the kernel's
// acknowledgement: compile, compare with the empty kernel, apply.
func (Sluice) Load(ctx context.Context, node *netns.NS, c cluster.Cluster) (*Loaded, error) {
	objects := fill(c)
	compiler := compile.New(compile.Config{
		Node: cluster.Node, ClusterCIDRs: []netip.Prefix{pods}, ServiceCIDRs: []netip.Prefix{cluster.Services},
	})
	var d *nftables.Driver
	err := node.Do(func() error {
		var err error
		d, err = nftables.Open(nftables.Options{Log: slog.New(slog.DiscardHandler)})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open sluice's driver: %w", err)
	}
	runtime.GC() // the store's making is not part of what is timed
	began := time.Now()
	compiler.Update(objects, objects.Take())
	compiled := time.Now()
	p, err := d.Adopt(ctx, compiler.State())
	planned := time.Now()
	if err == nil {
		err = p.Apply(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load sluice: %w", err), d.Close())
	}
	done := time.Now()
	return &Loaded{
		Took: done.Sub(began),
		Note: fmt.Sprintf("compile %d ms, plan %d ms, apply %d ms",
			compiled.Sub(began).Milliseconds(), planned.Sub(compiled).Milliseconds(), done.Sub(planned).Milliseconds()),
		Close: d.Close,
	}, nil
}

// fill makes a store that holds the cluster and its one node.
func fill(c cluster.Cluster) *store.Store {
	s := store.New()
	events := []store.Event{{
		Kind: store.Nodes, Name: model.Name{Name: cluster.Node},
		Object: &model.Node{Name: cluster.Node, IPs: []netip.Addr{cluster.NodeAddr}},
	}}
	for i := range c.Services {
		name := cluster.ServiceName(i)
		events = append(events,
			store.Event{Kind: store.Services, Name: name, Object: c.Service(i)},
			store.Event{Kind: store.EndpointSlices, Name: name, Object: c.Slice(i, c.Endpoints)})
	}
	s.Apply(events)
	s.SetSynced()
	return s
}
