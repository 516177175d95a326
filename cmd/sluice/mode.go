package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/agent/nslock"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/iptables"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/driver/userspace"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/nflog"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/internal/state"
)

// mode is a way to carry out services on a node: a driver, and what it needs of the kernel.
type mode struct {
	name     string
	services []*probe.Requirement // of services
	policy   []*probe.Requirement // of policy; nil: it carries out none
	optional []*probe.Requirement
	open     func(*modeFlags, driver.Options) (driver.Driver, error)
}

// openNFTables opens the driver of the mode nftables; tests replace it with a fake kernel.
var openNFTables = func(o driver.Options) (driver.Driver, error) {
	return nftables.Open(nftables.Options{Options: o})
}

// defaultMode is the mode without --mode. In userspaceMode an agent may lack all privileges.
const (
	defaultMode   = "nftables"
	userspaceMode = "userspace"
)

// modes are all modes, in the order in which they are cleaned up.
var modes = []*mode{
	{
		// First, as the table of nftables is its, too.
		name:     "ipvs",
		services: slices.Concat(ipvs.Requirements, nftables.Requirements, []*probe.Requirement{conntrack.Requirement}),
		policy:   append(slices.Clone(nftables.PolicyRequirements), nflog.Requirement),
		optional: []*probe.Requirement{table.Protection},
		open: func(f *modeFlags, o driver.Options) (driver.Driver, error) {
			return ipvs.Open(ipvs.Options{Options: o, Scheduler: f.scheduler, Record: f.record})
		},
	},
	{
		name:     defaultMode,
		services: append(slices.Clone(nftables.Requirements), conntrack.Requirement),
		policy:   append(slices.Clone(nftables.PolicyRequirements), nflog.Requirement),
		optional: []*probe.Requirement{table.Protection},
		open:     func(_ *modeFlags, o driver.Options) (driver.Driver, error) { return openNFTables(o) },
	},
	{
		name:     "iptables",
		services: append(slices.Clone(iptables.Requirements), conntrack.Requirement),
		policy:   append(slices.Clone(iptables.PolicyRequirements), nflog.Requirement),
		open: func(f *modeFlags, o driver.Options) (driver.Driver, error) {
			return iptables.Open(iptables.Options{Options: o, Variant: xtables.Variant(f.variant), LockWait: xtablesWait})
		},
	},
	{
		name:     userspaceMode,
		services: userspace.Requirements,
		open: func(f *modeFlags, o driver.Options) (driver.Driver, error) {
			return userspace.Open(userspace.Options{Options: o, Bind: unprivileged(), ClientAddress: f.client, Connections: f.connections})
		},
	},
}

// xtablesWait is how long a change waits for the lock of xtables; 0: as long as the driver does.
// Tests shorten it.
var xtablesWait time.Duration

// automatic are the modes that --mode auto chooses from: the first that works.
var automatic = []string{defaultMode, "iptables", userspaceMode}

func modeNames() []string {
	var names []string
	for _, m := range modes {
		names = append(names, m.name)
	}
	slices.Sort(names)
	return names
}

// modeFlags set the mode, and what single modes have beside.
type modeFlags struct {
	mode        string
	scheduler   string
	variant     string
	client      string
	connections int
	record      string // where former kernel parameters are noted
}

func (f *modeFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.mode, "mode", defaultMode, "`mode` in which services are carried out: "+strings.Join(modeNames(), ", ")+", or auto for the first of "+strings.Join(automatic, ", ")+" that works on this node")
	fl.StringVar(&f.scheduler, "ipvs-scheduler", "rr", "with --mode ipvs: how backends are chosen for services without the annotation sluice.dev/ipvs-scheduler: "+strings.Join(model.IPVSSchedulers, ", "))
	fl.StringVar(&f.variant, "iptables-variant", "", "with --mode iptables: legacy or nft (default: the one that holds rules already)")
	fl.StringVar(&f.client, "userspace-client-address", "", "with --mode userspace: how backends learn of the client's address: proxy-protocol, or transparent (default: they see the node's)")
	fl.IntVar(&f.connections, "userspace-connections", 0, "with --mode userspace: most connections at once (default: as the limit of open files allows)")
}

// check refuses values that no node can carry out, in whatever mode.
func (f *modeFlags) check() error {
	var err error
	one := func(flag, value string, of ...string) {
		if err == nil && !slices.Contains(of, value) {
			err = cli.Usage(fmt.Errorf("--%s %s: choose one of %s", flag, value, strings.Join(of, ", ")))
		}
	}
	one("ipvs-scheduler", f.scheduler, model.IPVSSchedulers...)
	if f.variant != "" {
		one("iptables-variant", f.variant, string(xtables.Legacy), string(xtables.NFTables))
	}
	if f.client != "" {
		one("userspace-client-address", f.client, userspace.ProxyProtocol, userspace.Transparent)
	}
	if err == nil && f.connections < 0 {
		err = cli.Usage(fmt.Errorf("--userspace-connections %d: must not be negative", f.connections))
	}
	return err
}

// choose returns the mode that the flags name. Where they leave it to the node, why says for people
// what was chosen for which reason.
func (f *modeFlags) choose(ctx context.Context) (m *mode, why string, err error) {
	if err := f.check(); err != nil {
		return nil, "", err
	}
	if f.mode != "auto" {
		if m := findMode(f.mode); m != nil {
			return m, "", nil
		}
		return nil, "", cli.Usage(fmt.Errorf("--mode %s: choose %s or auto", f.mode, strings.Join(modeNames(), ", ")))
	}
	if unprivileged() {
		return findMode(userspaceMode), "CAP_NET_ADMIN is missing, and all others need it", nil
	}
	var reasons []string
	for _, name := range automatic {
		m := findMode(name)
		err := probe.Missing(ctx, m.requirements())
		switch {
		case err == nil:
			return m, strings.Join(append(reasons, name+" works here"), "; "), nil
		case errors.Is(err, unix.EPERM): // as for the others
			return nil, "", privilege(fmt.Errorf("--mode auto: %w", unix.EPERM))
		}
		reasons = append(reasons, fmt.Sprintf("%s does not: %s", name, strings.ReplaceAll(err.Error(), "\n", ", ")))
	}
	return nil, "", fmt.Errorf("--mode auto: no mode works on this node: %s", strings.Join(reasons, "; "))
}

func findMode(name string) *mode {
	if i := slices.IndexFunc(modes, func(m *mode) bool { return m.name == name }); i >= 0 {
		return modes[i]
	}
	return nil
}

// requirements are what the mode needs of the kernel for services. The proxy needs nothing where it
// has no privileges, as it serves less then.
func (m *mode) requirements() []*probe.Requirement {
	if m.name == userspaceMode && unprivileged() {
		return nil
	}
	return m.services
}

func unprivileged() bool {
	has, err := preflight.HasNetAdmin()
	return err == nil && !has
}

// openDriver opens the driver of a mode in the calling thread's network namespace. Of policy it is
// told where it can carry it out.
func (f *modeFlags) openDriver(m *mode, o driver.Options) (driver.Driver, error) {
	o.Policy = o.Policy && m.policy != nil
	if o.FlowOffload && m.name != defaultMode {
		return nil, cli.Usage(fmt.Errorf("--flow-offload needs --mode %s", defaultMode))
	}
	d, err := m.open(f, o)
	if err != nil {
		return nil, fmt.Errorf("mode %s: %w", m.name, err)
	}
	return d, nil
}

// programmed is what agents have programmed in the calling thread's network namespace, in whatever
// mode.
type programmed struct{ flags *modeFlags }

var _ driver.Lister = programmed{}

// each calls f with a driver of each mode, also after one failed. A mode whose programs are not
// installed has nothing in the kernel.
func (p programmed) each(f func(*mode, driver.Driver) error) error {
	var all []error
	for _, m := range modes {
		d, err := m.open(p.flags, driver.Options{Log: slog.New(slog.DiscardHandler)})
		if err == nil {
			err = errors.Join(f(m, d), d.Close())
		}
		if err != nil && !errors.Is(err, exec.ErrNotFound) {
			all = append(all, fmt.Errorf("mode %s: %w", m.name, err))
		}
		if errors.Is(err, unix.EPERM) {
			break // the others need the same capability
		}
	}
	return errors.Join(all...)
}

// Frontends implements driver.Lister.
func (p programmed) Frontends(ctx context.Context) (map[state.FrontendKey]bool, error) {
	all := map[state.FrontendKey]bool{}
	err := p.each(func(_ *mode, d driver.Driver) error {
		lister := d.Capabilities().Lister
		if lister == nil {
			return nil
		}
		found, err := lister.Frontends(ctx)
		for k, served := range found {
			all[k] = all[k] || served
		}
		return err
	})
	return all, err
}

// purge removes all of it.
func (p programmed) purge(ctx context.Context) error {
	return p.each(func(_ *mode, d driver.Driver) error { return d.Purge(ctx) })
}

// drainTimeout is how long connections may go on that another mode carries itself. Tests shorten
// it.
var drainTimeout = 10 * time.Minute

// replaceModes removes what agents in other modes have left, now that this one serves. Connections
// that go on in the kernel do so.
func (f *modeFlags) replaceModes(ctx context.Context, in *netns.NS, now *mode, log *slog.Logger) {
	remove := func(m *mode, d driver.Driver) error {
		virtual, balances := d.(*ipvs.Driver)
		switch {
		case m == now, now.name == "ipvs" && m.name == defaultMode:
			return nil // the table of nftables is now ours
		case !balances || now.name == userspaceMode: // IPVS would take what is led to the proxy
			return purgeAfter(ctx, d)
		}
		if now.name != defaultMode {
			if err := purgeAfter(ctx, virtual.Driver); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, drainTimeout)
		defer cancel()
		return virtual.Withdraw(ctx)
	}
	err := in.Do(func() error { return programmed{f}.each(remove) })
	if err != nil && ctx.Err() == nil {
		log.Warn("what an agent in another mode left in the kernel could not be removed: stop the agent, run 'sluice cleanup', and start it again", "error", err)
	}
}

// purgeAfter has the driver remove what an agent has left, as soon as a proxy that still drains has
// ended, and other programs hold no lock.
func purgeAfter(ctx context.Context, d driver.Driver) error {
	ctx, cancel := context.WithTimeout(ctx, 2*drainTimeout)
	defer cancel()
	for {
		err := d.Purge(ctx)
		if !errors.Is(err, driver.ErrBusy) && !errors.Is(err, driver.ErrLocked) {
			return err
		}
		if !wake.Sleep(ctx, handOverPause) {
			return err
		}
	}
}

const (
	handOverPatience = 30 * time.Second // until the next agent serves
	handOverPause    = 50 * time.Millisecond
)

// handOver lets the next agent in, if one waits, and has the proxy serve until the kernel holds all
// of its services, in another mode; then connections that go through the proxy have time to end.
// Of other modes what was programmed works on by itself.
func handOver(d driver.Driver, nsLock *nslock.Lock, in *netns.NS, log *slog.Logger) {
	proxy, is := d.(*userspace.Driver)
	if !is || nsLock.Waiting() == 0 {
		return
	}
	nsLock.Release()
	log.Info("another agent waits: this one serves until that one does")
	ctx, cancel := context.WithTimeout(context.Background(), handOverPatience)
	defer cancel()
	for {
		served, err := servedBeside(ctx, proxy, in)
		if served {
			break
		}
		if !wake.Sleep(ctx, handOverPause) {
			log.Warn("the other agent does not serve in another mode; ending", "after", handOverPatience, "error", err)
			return
		}
	}
	ctx, cancel = context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	log.Info("the other agent serves; waiting until connections through this one have ended", "patience", drainTimeout)
	forget := func() error { return in.Do(func() error { return forgetDatagrams(ctx, proxy) }) }
	if err := proxy.Drain(ctx, forget); err != nil {
		log.Warn("connections may have been lost", "error", err)
	}
}

// servedBeside reports whether the kernel sends all to backends that the proxy does.
func servedBeside(ctx context.Context, proxy *userspace.Driver, in *netns.NS) (all bool, err error) {
	err = in.Do(func() error {
		frontends, err := programmed{&modeFlags{}}.Frontends(ctx)
		all = err == nil
		proxy.Held(func(s *state.State) {
			for k, f := range s.Services.Frontends {
				serves := len(f.Backends) > 0 && (!f.LocalOnly || len(f.Local) > 0)
				all = all && (frontends[k] || !serves)
			}
		})
		return err
	})
	return all && err == nil, err
}

// forgetDatagrams has connection tracking forget the flows of UDP that went to the proxy: it knows
// them as not translated.
func forgetDatagrams(ctx context.Context, proxy *userspace.Driver) error {
	var flows []conntrack.Filter
	proxy.Held(func(s *state.State) {
		for k := range s.Services.Frontends {
			if k.Protocol == model.UDP {
				at := netip.AddrPortFrom(k.Addr, k.Port)
				flows = append(flows, conntrack.Filter{Protocol: k.Protocol, Frontend: at, Backend: at})
			}
		}
	})
	tracked, err := conntrack.Open()
	if err != nil {
		return err
	}
	_, err = tracked.Delete(ctx, flows, nil)
	return errors.Join(err, tracked.Close())
}
