package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/internal/accelerate/xdp"
	"sluice.dev/sluice/internal/agent"
	nftlb "sluice.dev/sluice/internal/balancer/config"
	"sluice.dev/sluice/internal/balancer/health"
	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/lib/lock"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/list"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/internal/upkeep"
)

const balanceHelp = `Serve virtual services (farms) on a plain Linux machine, from a JSON file, an HTTP API, or both. File
and API are those of nftlb, with health checks and more beside (docs/balancer.md). It needs
CAP_NET_ADMIN. When it ends, what it programmed stays and goes on working; 'sluice cleanup' removes
it.

The API is served where --api says, on loopback by default. Its clients send a key in the header
Key; it is the one of --key, or in the variable SLUICE_KEY, or else a random one that is printed.
An answer to a change means that the kernel has it; one that is refused changes nothing.`

type balanceOptions struct {
	config, state string
	mode          string
	accelerate    accelerators
	api           apiFlags
	agent         agent.Config
	clients       uint32
	lenient       bool
	setSysctls    bool
	logLevel      slog.Level
	logFormat     string
}

func newBalanceCommand() *cobra.Command {
	var o balanceOptions
	cmd := &cobra.Command{
		Use:     "balance [--config FILE] [--state FILE] [--api ADDR:PORT]",
		Short:   "Balance load on a plain Linux machine: nftlb's configuration and API",
		Long:    balanceHelp,
		Example: "  sluice balance --config farms.json\n  sluice balance --config farms.json --state /var/lib/sluice/farms.json --api 127.0.0.1:5555 --key secret",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return balance(cmd, o) },
	}
	cmd.AddCommand(newBalanceKeepalivedCommand())
	fl := cmd.Flags()
	fl.StringVar(&o.config, "config", "", "`file` of farms, backends, addresses and policies, in nftlb's JSON")
	fl.StringVar(&o.state, "state", "", "`file` that changes by the API are written to; where it is there, it is read in place of --config")
	fl.StringVar(&o.mode, "mode", defaultMode, "`mode` in which farms are carried out: "+strings.Join(farmModes, " or "))
	o.accelerate = accelerators{known: []string{xdp.DSR, xdp.Drop}, auto: []string{xdp.DSR, xdp.Drop}}
	o.accelerate.register(fl)
	o.api.register(fl)
	fl.BoolVar(&o.lenient, "lenient", false, "go on with a default where nftlb does, with a warning, in place of an error")
	fl.Uint32Var(&o.clients, "max-clients", 1<<20, "how many clients the kernel may remember for each purpose: persistence, and each kind of limit")
	fl.StringVar(&o.agent.MetricsAddress, "metrics-address", "127.0.0.1:10249", "address to serve Prometheus metrics on; '' to serve none")
	fl.StringVar(&o.agent.HealthzAddress, "healthz-address", "127.0.0.1:10256", "address to serve /healthz, /livez and /readyz on; '' to serve none")
	fl.DurationVar(&o.agent.AuditInterval, "audit-interval", 5*time.Minute, "interval between full comparisons with the kernel")
	fl.BoolVar(&o.setSysctls, "set-sysctls", true, "turn on forwarding if it is off, and have the kernel count bytes of connections")
	fl.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "lowest `level` to log: debug, info, warn or error")
	fl.StringVar(&o.logFormat, "log-format", "text", "text or json")
	socketFlag(cmd, &o.agent.Socket)
	return cmd
}

func balance(cmd *cobra.Command, o balanceOptions) error {
	if o.config == "" && o.state == "" && o.api.address == "" {
		return cli.Usage(errors.New("name a file of farms with --config, or serve the API with --api"))
	}
	log, err := newLogger(cmd.ErrOrStderr(), o.logFormat, o.logLevel)
	if err != nil {
		return err
	}
	if err := o.api.chooseKey(); err != nil {
		return err
	}
	nsLock, err := lockNamespace(cmd.Context(), log)
	if err != nil {
		if cmd.Context().Err() != nil {
			return nil // a signal came while it waited
		}
		return err
	}
	defer nsLock.Release()
	if o.state != "" {
		release, err := lockState(o.state)
		if err != nil {
			return err
		}
		defer release()
	}
	b, err := newBalancer(cmd.Context(), o, cmd.OutOrStdout(), log)
	if err != nil {
		return err
	}
	defer func() { _ = b.close() }()
	b.agent.Lock = nsLock
	return privilege(b.run(cmd.Context()))
}

// lockState makes this the only balancer that writes a state file: one of another network namespace
// would write over what this one was told.
func lockState(state string) (release func(), err error) {
	release, err = lock.File(filepath.Join(filepath.Dir(state), "."+filepath.Base(state)+".lock"))
	switch {
	case errors.Is(err, lock.ErrHeld):
		return nil, fmt.Errorf("another balancer has the state file %s, as in another network namespace: give each a --state of its own", state)
	case err != nil: // where nothing can be written, nobody does; the first change says so
		return func() {}, nil
	}
	return release, nil
}

// balancer is what 'sluice balance' runs.
type balancer struct {
	agent      *agent.Agent
	source     *nftlb.Source
	driver     farmDriver
	kernel     *upkeep.Driver
	checks     *health.Checker
	neighbours *link.Neighbours
	here       *netns.NS
	api        net.Listener // nil: none
	tls        *tls.Config  // nil: it speaks plain HTTP
	log        *slog.Logger
}

// newBalancer makes a balancer, which prints a random key to out once all that it serves is open.
func newBalancer(ctx context.Context, o balanceOptions, out io.Writer, log *slog.Logger) (b *balancer, err error) {
	objects := store.New()
	b = &balancer{log: log}
	if b.driver, err = o.openFarms(o.mode, log); err != nil {
		return nil, privilege(err)
	}
	options := nftlb.Options{
		Key: o.api.key, ReadKeys: o.api.readKeys, Lenient: o.lenient, State: o.state, ReadList: list.Read, Log: log,
		Check: b.driver.Check, LoadAll: o.mode == ipvsFarms, DSRTracks: o.mode == ipvsFarms, Prepare: func(f *model.Farm) { prepareFarm(f, o, log) },
		Own:       served(o.api.address, o.agent.MetricsAddress, o.agent.HealthzAddress),
		HasDevice: func(name string) bool { _, err := net.InterfaceByName(name); return err == nil },
	}
	if d, ok := b.driver.(*farms.Driver); ok {
		options.Listed = d.Listed
	}
	b.source = nftlb.New(objects, options)
	if err := b.source.Load(ctx, o.config); err != nil {
		return nil, privilege(errors.Join(err, b.driver.Close()))
	}
	if b.neighbours, err = link.OpenNeighbours(); err != nil {
		return nil, errors.Join(err, b.driver.Close())
	}
	if b.here, err = netns.OpenPath("/proc/thread-self/ns/net"); err != nil {
		return nil, errors.Join(err, b.driver.Close(), b.neighbours.Close())
	}
	b.checks = health.New(health.Options{Log: log, Report: b.source.Report, Ask: b.neighbours.Ask})
	kernel, fast, err := o.accelerated(b.driver, log)
	if err != nil {
		return nil, privilege(errors.Join(err, b.neighbours.Close(), b.here.Close()))
	}
	if b.kernel, err = upkeep.Open(kernel, driver.Options{Log: log}); err != nil {
		return nil, privilege(err)
	}
	c := o.agent
	c.Node, _ = os.Hostname()
	c.Version, c.Mode, c.Store, c.Source, c.Log = cli.Version(), o.mode, objects, b.source, log
	config := compile.Config{Farms: true}
	switch d := b.driver.(type) {
	case *farms.Driver:
		config.IPIP, c.FarmCounter = d.IPIP, ruleCounter{d, b.kernel}
		if fast != nil {
			c.FarmCounter, c.Accelerators = ruleCounter{fast, b.kernel}, append(c.Accelerators, fast.Status)
		}
	case *ipvs.Farms: // it sends in IPIP itself
		c.FarmCounter = d
	}
	c.ChecksFailed = func(farm, backend string) uint64 { return b.checks.Failed(health.Key{Farm: farm, Backend: backend}) }
	c.Compiler, c.Driver, c.AwaitCuts = compile.New(config), b.kernel, b.kernel.AwaitCuts
	c.InStep = func(ctx context.Context) {
		_, _ = c.FarmCounter.Traffic(ctx) // what metrics count begins here
		if err := o.purgeFarms(ctx, o.mode, log); err != nil && ctx.Err() == nil {
			log.Warn("what a balancer in another mode left in the kernel could not be removed: stop this one, run 'sluice cleanup', and start it again", "error", err)
		}
	}
	if o.setSysctls {
		c.Contests = &contest.Board{}
	}
	c.Prepare = func() {
		if o.api.random {
			_ = printf(out, "Key: %s\n", o.api.key)
		}
		if o.setSysctls {
			want := forwardingSysctls(log, true, true)
			want[sysctl.CountPackets] = "1" // and bytes
			record := sysctl.RecordPath(o.agent.Socket)
			if err := b.here.Do(func() error { applySysctls(log, record, want); return nil }); err != nil {
				log.Warn("kernel parameters are not set", "error", err)
			}
			f := &forwarding{families: b.agent.Families, record: record, contests: c.Contests, node: c.Node, log: log}
			go f.keep(ctx, b.here)
		}
	}
	if c.Links, err = link.WatchLinks(ctx, log); err != nil {
		return nil, errors.Join(err, b.close())
	}
	if b.api, b.tls, err = o.api.listen(); err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.agent = agent.New(c)
	b.source.Use(b)
	b.source.UseChecker(b.checks)
	return b, nil
}

// prepareFarm sets what a farm needs of the machine.
func prepareFarm(f *model.Farm, o balanceOptions, log *slog.Logger) {
	if f.Limits.SYNProxy && o.setSysctls && o.mode == defaultMode {
		applySysctls(log, sysctl.RecordPath(o.agent.Socket), map[string]string{"net.netfilter.nf_conntrack_tcp_loose": "0"})
	}
}

// run serves until ctx ends.
func (b *balancer) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { b.checks.Run(ctx); return nil })
	if _, tells := b.driver.(*farms.Driver); tells {
		group.Go(func() error { readRefusals(ctx, b.checks, b.log); return nil })
	}
	if b.api != nil {
		group.Go(func() error { return b.source.Serve(ctx, b.api, b.tls) })
	}
	group.Go(func() error { return b.agent.Run(ctx) })
	return group.Wait()
}

// close leaves what is programmed as it is.
func (b *balancer) close() error {
	return errors.Join(b.kernel.Close(), b.neighbours.Close(), b.here.Close())
}

// Sync implements nftlb.Kernel. What the source itself says of the objects, such as that checks
// fail, does not keep the kernel from having them.
func (b *balancer) Sync(ctx context.Context, objects []model.Ref) error {
	err := b.agent.Wait(ctx, b.agent.Store.Generation(), objects...)
	if fault, ok := errors.AsType[*agent.FaultError](err); ok {
		known := b.source.Status().Issues
		issues := slices.DeleteFunc(slices.Clone(fault.Issues), func(i model.Issue) bool { return slices.Contains(known, i) })
		if len(issues) > 0 {
			return &nftlb.FaultsError{Issues: issues}
		}
		return nil
	}
	return err
}

// Sessions implements nftlb.Kernel.
func (b *balancer) Sessions(ctx context.Context, farm string) ([]model.LiveSession, error) {
	return b.driver.Sessions(ctx, farm)
}

// Forget implements nftlb.Kernel.
func (b *balancer) Forget(ctx context.Context, farm string, clients []model.FlowValues) error {
	return b.driver.Forget(ctx, farm, clients)
}
