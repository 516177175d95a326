// Package agent keeps the kernel in step with the store: it collects what changed, compiles it,
// applies it through the driver, retries failures, and audits the kernel. Around this loop it
// serves people and machines: the Unix-socket API with its Client, metrics, health, and the
// services' own health checks.
//
// One goroutine owns the driver, and only this goroutine changes the compiler; all others read.
package agent

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/internal/agent/nslock"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/reconcile"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Config holds the parts of an Agent. All of them must be set, except where noted.
type Config struct {
	Node    string
	Version string
	Mode    string // in which services are carried out, as /proxyMode answers

	Store    *store.Store
	Source   source.Source // delivers to Store
	Compiler *compile.Compiler
	Driver   driver.Driver // the base driver; the caller closes it after Run
	// Fabric, if set, carries out the ways to other nodes' pods, in a goroutine of its own; the
	// caller closes it after Run.
	Fabric driver.Driver

	// Accelerators say how what makes Driver faster fares. They are safe for concurrent use.
	Accelerators []func() driver.Accelerator

	// FlowsCut, if set, counts the established connections that were cut because policy came to
	// forbid them, or that were allowed again.
	FlowsCut func() uint64
	// AwaitCuts, if set, returns once all established connections are cut that the kernel's ruleset
	// forbids. It is safe for concurrent use.
	AwaitCuts func(context.Context) error
	// Flows, if set, counts the flows that this node has from frontends to their backends, in
	// connection tracking.
	Flows func(context.Context, []state.FrontendKey) (Flows, error)
	// Sockets, if set, are translated before packets are.
	Sockets Sockets

	// FarmCounter, if set, counts what the farms of a balancer serve.
	FarmCounter FarmCounter
	// ChecksFailed, set with it, returns how many checks of a farm's backend have failed.
	ChecksFailed func(farm, backend string) uint64

	Socket         string // path of the Unix socket
	MetricsAddress string // empty: no metrics server
	HealthzAddress string // empty: no health server

	// MustServe lets Run fail if one of these addresses is taken. Otherwise the agent works without
	// it, and serves there once the address is free.
	MustServe bool
	// Pages, if set, serves all other paths at MetricsAddress.
	Pages http.Handler

	// UnhealthyAfter is how long a change may wait for the kernel before the agent counts as
	// unhealthy; 0 means a minute.
	UnhealthyAfter time.Duration
	// NodeNeeded lets /healthz fail while there is no Node object, as in kube-proxy.
	NodeNeeded bool

	// AuditInterval is the time between two comparisons of the whole state with the kernel.
	AuditInterval time.Duration

	// HostAddresses, if set, delivers all addresses of the host, with their subnets, after each
	// change, for Compiler. It may be closed.
	HostAddresses <-chan []netip.Prefix

	// Links, if set, delivers the node's interfaces and routes after each change, for Compiler.
	// Nothing is programmed before the first delivery. It may be closed.
	Links <-chan model.Links

	// Reroute, if set, puts back the route to an address of an attached pod, and reports whether it
	// was gone. It is called with the index of the interface.
	Reroute func(device int, a netip.Addr) (bool, error)

	// Underlay, if set, delivers the host's addresses that other nodes are reached from after each
	// change, for Compiler. Nothing is programmed before the first delivery. It may be closed.
	Underlay <-chan []model.HostAddress

	// Paths, if set, finds out whether the network carries what the underlay's interfaces say.
	Paths PathProber

	// Heard, if set, finds out whether packets to other nodes' pods get there, and answers back.
	Heard Hearer

	// Route, if set, finds the way to an address. It is safe for concurrent use.
	Route func(netip.Addr) verdict.Way
	// Lost, if set, says why the node does not send a packet on its way, and the command that shows
	// it; "": it does, as far as routes and interfaces tell. It is safe for concurrent use.
	Lost func(Passing) (why, shown string)

	// Drops, if set, opens the kernel's log of dropped packets. What it returns is gone through
	// once: it yields packets until ctx ends, and then closes the log.
	Drops func(ctx context.Context) (iter.Seq[Packet], error)

	// Connect, if set, opens a TCP connection from this node and closes it.
	Connect func(ctx context.Context, to netip.AddrPort) error

	// OtherRules, if set, reads the rules of other programs, which may drop what is accepted here.
	OtherRules func(ctx context.Context) (foreign.Rules, error)

	// KubeProxy, if set, reports whether kube-proxy runs beside the agent, as during a take-over.
	// It takes long.
	KubeProxy func() bool

	// Report, if set, gets all issues of objects, twice a second. It must neither block nor change
	// them.
	Report func([]model.Issue)

	// Addresses, if set, carries out what Compiler says of the addresses of Services.
	Addresses Addresses

	// Contests, if set, shows which settings other programs go on overwriting.
	Contests *contest.Board

	// Speaker, if set, carries out what Compiler says of BGP.
	Speaker Speaker

	// Lock, if set, is the right to be the only agent of this namespace; the caller releases it
	// after Run.
	Lock *nslock.Lock

	// Prepare, if set, is called once, right before the first change of the kernel: an agent that
	// can read nothing changes nothing.
	Prepare func()
	// InStep, if set, is called once, in a goroutine of its own, when the kernel has all objects
	// and the sources lack nothing. It returns when ctx ends.
	InStep func(ctx context.Context)

	Log *slog.Logger

	sockets sockets // nil: the kernel's; tests have others, in which a clock of theirs goes on
}

// Agent is one node's agent. Make it with New, and Run it once.
type Agent struct {
	Config
	started time.Time
	health  *health
	metrics *metrics
	farms   farmReading
	limits  limits
	checks  *healthChecks
	drops   dropLog
	nodes   nodeAddresses
	asks    chan func(*loop) // run by the loop between two passes

	fabric   *reconcile.Follower // carries out Config.Fabric; nil: there is none
	subjects []subject

	// Held while Compiler and the following fields change, and while other goroutines than the loop
	// read them.
	compiling  sync.Mutex
	interfaces map[int]string // names by index
	sessions   sessions

	mu     sync.Mutex // of the following fields
	record record
}

// New returns an agent that has not started anything yet.
func New(c Config) *Agent {
	c.sockets = cmp.Or[sockets](c.sockets, kernelSockets{})
	if c.Route == nil {
		c.Route = func(netip.Addr) verdict.Way { return verdict.Way{} }
	}
	a := &Agent{Config: c, started: time.Now(), asks: make(chan func(*loop)), limits: shareDescriptors(), drops: dropLog{open: c.Drops}, sessions: newSessions()}
	a.health = &health{limit: cmp.Or(c.UnhealthyAfter, unhealthyAfter), now: time.Now, eligible: func() bool {
		node := c.Store.Node(c.Node)
		if node == nil {
			return !c.NodeNeeded
		}
		return !node.Leaving
	}}
	a.health.blocked = a.blocked
	a.checks = newHealthChecks(c.Log, a.health.healthy, a.limits, a.sockets)
	a.checks.proxy = c.KubeProxy
	if c.Fabric != nil {
		a.fabric = reconcile.NewFollower(c.Fabric, func() *state.State { return reading(a, c.Compiler.State().Clone) }, c.AuditInterval, c.Log)
	}
	a.subjects = a.subjectsOf()
	a.metrics = newMetrics(a)
	return a
}

// Ready reports, as /readyz does, whether the kernel has been programmed and can be still, and all
// kinds of objects could be read. Safe for concurrent use.
func (a *Agent) Ready() bool { return a.health.unready() == "" }

// reading returns what f reads of the compiler, or of the fields that are held with it. It is safe
// for concurrent use.
func reading[T any](a *Agent, f func() T) T {
	a.compiling.Lock()
	defer a.compiling.Unlock()
	return f()
}

// changing has f change the compiler, or the fields that are held with it.
func (l *loop) changing(f func()) {
	l.compiling.Lock()
	defer l.compiling.Unlock()
	f()
}

// Families reports which address families are in use; safe for concurrent use.
func (a *Agent) Families() (ipv4, ipv6 bool) {
	a.compiling.Lock()
	defer a.compiling.Unlock()
	return a.Compiler.State().Families()
}

// Run works until ctx ends, then returns nil and leaves the kernel as it is. It returns an error if
// the agent cannot work: the socket or (MustServe) an address is taken, the kernel or the
// privileges do not suffice, or the source can never be read.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.Driver.Probe(ctx); err != nil {
		return fmt.Errorf("probe kernel: %w", err)
	}
	servers, err := a.listen()
	if err != nil {
		return err
	}
	defer a.checks.close()
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range servers {
		group.Go(func() error { a.serve(ctx, s); return nil })
	}
	group.Go(func() error {
		<-ctx.Done()
		for _, s := range servers {
			_ = s.Close() // ends listeners and connections; the socket's file goes with its listener
		}
		return nil
	})
	group.Go(func() error {
		if err := a.Source.Run(ctx); err != nil {
			return fmt.Errorf("read source: %w", err)
		}
		return nil
	})
	if a.fabric != nil {
		group.Go(func() error { a.fabric.Run(ctx); return nil })
	}
	for _, s := range a.subjects {
		for _, run := range s.run {
			group.Go(func() error { run(ctx); return nil })
		}
	}
	l := newLoop(a)
	if a.InStep != nil {
		l.inStep = func() { group.Go(func() error { a.InStep(ctx); return nil }) }
	}
	group.Go(func() error { l.run(ctx); return nil })
	a.Log.Info("agent started", "node", a.Node, "version", a.Version, "mode", a.Mode, "pid", os.Getpid(), "socket", a.Socket)
	err = group.Wait()
	stopped := "agent stopped; what is programmed stays in the kernel"
	switch {
	case a.recorded().last == nil && !a.health.ready():
		stopped = "agent stopped; it programmed nothing"
	case a.Driver.Capabilities().Can&driver.Survives == 0:
		stopped = "agent stopped; in its mode nothing stays in the kernel"
	}
	a.Log.Info(stopped, "node", a.Node)
	return err
}
