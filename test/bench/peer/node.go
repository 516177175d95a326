package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"sluice.dev/sluice/internal/accelerate/established"
	"sluice.dev/sluice/internal/accelerate/sockets"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/iptables"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	servicecompile "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/internal/upkeep"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/drivertest"
	"sluice.dev/sluice/test/netns"
)

// Node is Sluice on one node, in this process: its store, compiler and driver without the agent's
// loop around them. It is not safe for concurrent use.
type Node struct {
	store    *store.Store
	compiler *compile.Compiler
	driver   *upkeep.Driver
	adopted  bool
	sockets  *sockets.Driver // nil: services are served in packets alone
}

// Mode is one of the agent's modes that judge packets themselves. The zero Mode is nftables.
type Mode string

// The modes beside nftables.
const (
	IptablesLegacy Mode = "iptables legacy"
	IptablesNft    Mode = "iptables nft"
	AtSocket       Mode = "at the socket" // nftables, accelerated
	SocketsAlone   Mode = "sockets alone" // for the time that their maps take: nothing serves packets
	Established    Mode = "established"   // so is this
)

// Name is how results name the mode.
func (m Mode) Name() string {
	if m == "" {
		return "sluice"
	}
	return "sluice " + string(m)
}

// open opens the mode's driver in the calling thread's network namespace.
func (m Mode) open(o driver.Options) (driver.Driver, error) {
	variant := xtables.Legacy
	switch m {
	case SocketsAlone:
		return sockets.Open(drivertest.Nothing(), o.Log), nil
	case "", AtSocket, Established:
		d, err := nftables.Open(nftables.Options{Options: o})
		if m == "" || err != nil {
			return d, err
		}
		if m == Established {
			return established.Open(d, o.Log), nil
		}
		return sockets.Open(d, o.Log), nil
	case IptablesNft:
		variant = xtables.NFTables
	}
	if err := need("iptables", "iptables"); err != nil {
		return nil, err
	}
	return iptables.Open(iptables.Options{Options: o, Variant: variant})
}

// Config is the configuration of the cluster's agent, without policy.
func Config() compile.Config {
	return compile.Config{Config: servicecompile.Config{Node: cluster.Node, ClusterCIDRs: []netip.Prefix{pods}, ServiceCIDRs: []netip.Prefix{cluster.Services}}}
}

// NewNode opens a mode's driver in a namespace; nothing is programmed before the first Apply. Close
// it.
func NewNode(ns *netns.NS, mode Mode, cfg compile.Config) (*Node, error) {
	n := &Node{store: store.New(), compiler: compile.New(cfg)}
	var links model.Links
	err := ns.Do(func() error {
		var err error
		if links, err = link.Here.Links(); err != nil {
			return err
		}
		o := driver.Options{Log: slog.New(slog.DiscardHandler), Policy: cfg.Policy}
		d, err := mode.open(o)
		if err != nil {
			return err
		}
		n.sockets, _ = d.(*sockets.Driver)
		n.driver, err = upkeep.Open(d, o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open sluice's driver: %w", err)
	}
	n.compiler.SetLinks(links)
	return n, nil
}

// Close ends the driver; what it programmed stays in the kernel, except for what would outlast
// the namespace.
func (n *Node) Close() error {
	if n.sockets != nil {
		return errors.Join(n.sockets.Purge(context.Background()), n.driver.Close())
	}
	return n.driver.Close()
}

// Maps is how much memory the accelerator's maps take, in bytes.
func (n *Node) Maps() (sum uint64, err error) {
	if n.sockets == nil {
		return 0, nil
	}
	return n.sockets.Memory()
}

// awaitPods returns once the sockets of so many pods are served.
func (n *Node) awaitPods(ctx context.Context, pods int) error {
	for {
		s := n.sockets.Status()
		if s.Off != "" {
			return errors.New(s.Off)
		}
		if strings.Contains(s.Note, "of "+model.Count(pods, "pod")) {
			return nil
		}
		if !wake.Sleep(ctx, time.Millisecond) {
			return ctx.Err()
		}
	}
}

// Took says how long the parts of a change took.
type Took struct {
	Store   time.Duration // the objects and their indexes
	Compile time.Duration // the change of the node's state
	Plan    time.Duration // the change of the kernel
	Apply   time.Duration // until the kernel has acknowledged it

	Operations int // of the kernel
}

// Sum is all of it.
func (t Took) Sum() time.Duration { return t.Store + t.Compile + t.Plan + t.Apply }

// String returns "store 1 ms, compile 2 ms, plan 3 ms, apply 4 ms".
func (t Took) String() string {
	return fmt.Sprintf("store %d ms, compile %d ms, plan %d ms, apply %d ms",
		t.Store.Milliseconds(), t.Compile.Milliseconds(), t.Plan.Milliseconds(), t.Apply.Milliseconds())
}

// Apply applies events to the store and the change to the kernel. The first call adopts the kernel.
func (n *Node) Apply(ctx context.Context, events []store.Event) (Took, error) {
	var took Took
	began := time.Now()
	lap := func(of *time.Duration) {
		now := time.Now()
		*of, began = now.Sub(began), now
	}
	n.store.Apply(events)
	n.store.SetSynced()
	lap(&took.Store)
	delta := n.compiler.Update(n.store, n.store.Take())
	lap(&took.Compile)
	var plan driver.Plan
	var err error
	if n.adopted {
		plan, err = n.driver.Update(ctx, delta)
	} else {
		plan, err = n.driver.Adopt(ctx, n.compiler.State(), driver.Keep{})
	}
	lap(&took.Plan)
	if err == nil {
		took.Operations = plan.Len()
		err = plan.Apply(ctx)
	}
	lap(&took.Apply)
	if err != nil {
		return took, fmt.Errorf("program the kernel: %w", err)
	}
	n.adopted = true
	return took, nil
}

// AwaitCuts returns once what was applied has ended the connections that may not go on.
func (n *Node) AwaitCuts(ctx context.Context) error { return n.driver.AwaitCuts(ctx) }

// Start makes a Node that has a cluster in its store and nothing programmed.
func Start(ns *netns.NS, mode Mode, c cluster.Cluster) (*Node, error) {
	n, err := NewNode(ns, mode, Config())
	if err == nil {
		fill(n.store, c)
	}
	return n, err
}

// start makes a Node and applies the events.
func start(ctx context.Context, ns *netns.NS, mode Mode, cfg compile.Config, events []store.Event) (*Node, Took, error) {
	n, err := NewNode(ns, mode, cfg)
	if err != nil {
		return nil, Took{}, err
	}
	took, err := n.Apply(ctx, events)
	if err != nil {
		return nil, took, errors.Join(err, n.Close())
	}
	return n, took, nil
}
