package takeover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// findProxy tells what kube-proxy has programmed.
func (o *Options) findProxy(ctx context.Context) error {
	footprints, err := find(ctx)
	if err != nil {
		return o.stop("%v", err)
	}
	if len(footprints) == 0 {
		return o.nothingFrom()
	}
	for _, fp := range footprints {
		o.ok("found %s", fp.what)
		for _, a := range fp.losses {
			o.note("%s", a) // also where no agent is yet: it tells what its start would break
		}
	}
	return nil
}

// nothingFrom ends where kube-proxy has no rules.
func (o *Options) nothingFrom() error {
	running, err := o.proxies()
	if err != nil {
		return o.stop("%v", err)
	}
	if len(running) > 0 {
		return o.stop("%s runs on this node and has not programmed anything yet: stop it first\n%s", running[0], running[0].stop("kube-proxy", o.Node))
	}
	o.ok("nothing of kube-proxy is on this node: nothing to do")
	return errDone
}

func (o *Options) agentReady(ctx context.Context) error { return o.agentProgrammed(ctx, 0) }

// agentReadyIfThere is agentReady, except that the agent need not run.
func (o *Options) agentReadyIfThere(ctx context.Context) error {
	err := o.Sync(ctx)
	if _, alive := agentAt(o.Socket); err == nil || alive || o.Minor(err) {
		return o.agentReady(ctx)
	}
	o.agentless = true
	o.note("no agent answers on %s: only what kube-proxy has is looked at; start the agent beside it before the take-over", o.Socket)
	return nil
}

// agentStillReady asks again, as the agent may have ended meanwhile. The ports of kube-proxy are
// free now, so the agent gets some time to listen on them.
func (o *Options) agentStillReady(ctx context.Context) error {
	return o.agentProgrammed(ctx, settleFor)
}

// agentProgrammed waits until the agent has programmed all that is declared. Faulty objects
// do not stop the take-over, but it waits up to patience for them to become right.
func (o *Options) agentProgrammed(ctx context.Context, patience time.Duration) error {
	var minor error
	begun := time.Now()
	err := o.wait(ctx, func() (string, error) {
		minor = o.Sync(ctx)
		for ; o.Minor(minor) && time.Since(begun) < patience && ctx.Err() == nil; minor = o.Sync(ctx) {
			time.Sleep(poll)
		}
		if minor == nil || o.Minor(minor) {
			return "", ctx.Err()
		}
		return fmt.Sprintf("the agent has not programmed all that is declared: %v", minor), ctx.Err()
	})
	if err != nil {
		return err
	}
	if minor != nil {
		o.note("the agent has programmed all but objects that are at fault: %v", minor)
		return nil
	}
	o.ok("the agent has programmed all that is declared")
	return nil
}

// coversProxy compares what both serve.
func (o *Options) coversProxy(ctx context.Context) error {
	var c comparison
	compare := func() (_ string, err error) {
		if c, err = o.compare(ctx); err != nil || o.agentless { // then nobody is at work on it
			return "", err
		}
		return strings.Join(c.lacks, "\n"), nil
	}
	// One program may have seen a change that the other has not.
	if err := o.settle(ctx, compare); err != nil {
		return err
	}
	for _, f := range c.gone {
		o.note("kube-proxy has %s still, of a Service that the cluster does not have any more", f)
	}
	if err := o.differ(c.lacks, c.giveUp...); err != nil {
		return err
	}
	switch {
	case o.agentless:
		o.note("kube-proxy serves %s; whether the agent would serve each is not known before it runs", frontendCount(c.theirs))
	case len(c.lacks) == 0:
		o.ok("sluice serves all %s that kube-proxy does (it has %d)", frontendCount(c.theirs), c.ours)
	}
	return nil
}

// comparison compares what kube-proxy serves with what the agent does.
type comparison struct {
	theirs, ours int          // addresses and ports
	gone         []Frontend   // that kube-proxy had not removed yet when it stopped
	lacks        []string     // what only kube-proxy does
	giveUp       []netip.Addr // of the node, that would have to be given up
}

func (o *Options) compare(ctx context.Context) (c comparison, err error) {
	footprints, ours, host, err := o.both(ctx)
	if err != nil {
		return c, err
	}
	localnet, err := sysctl.Read("net.ipv4.conf.all.route_localnet")
	if err != nil {
		return c, err
	}
	givenUp := func(a netip.Addr) bool { return model.Within(a, o.GiveUp) }
	ofNode := func(f Frontend) bool { return host[f.Key.Addr] || f.Key.Addr.IsLoopback() }
	theirs := slices.DeleteFunc(frontendsOf(footprints), func(f Frontend) bool { return ofNode(f) && givenUp(f.Key.Addr) })
	theirs, c.gone = o.present(ctx, theirs)
	c.theirs, c.ours = len(theirs), len(ours)
	compared := theirs
	if o.agentless = o.agentless && len(ours) == 0; o.agentless {
		ours = likely(theirs)
		compared = slices.DeleteFunc(slices.Clone(theirs), func(f Frontend) bool { return !ofNode(f) })
	}
	c.giveUp = slices.DeleteFunc(elsewhere(theirs, ours, host, localnet == "1"), givenUp)
	c.lacks = append(missing(compared, ours, host), unserved(c.giveUp)...)
	for _, fp := range footprints {
		c.lacks = append(c.lacks, fp.losses...)
	}
	for _, f := range compared {
		if _, there := ours[f.Key]; ofNode(f) && !there {
			c.giveUp = append(c.giveUp, f.Key.Addr)
		}
	}
	slices.SortFunc(c.giveUp, netip.Addr.Compare)
	c.giveUp = slices.Compact(c.giveUp)
	return c, nil
}

// present tells the frontends of Services that the cluster has from those of others: a kube-proxy
// that has stopped no longer follows. One that runs does, so that what it serves is there. All are
// taken for present if the agent reads other objects than the cluster's.
func (o *Options) present(ctx context.Context, theirs []Frontend) (there, gone []Frontend) {
	if o.Services == nil || o.agentless {
		return theirs, nil
	}
	running, err := o.proxies()
	if err != nil || len(running) > 0 {
		return theirs, nil
	}
	services, err := o.Services(ctx)
	if err != nil || !services["default/kubernetes"] { // each cluster has this one
		return theirs, nil
	}
	for _, f := range theirs {
		if name, _, _ := strings.Cut(f.Service, ":"); name == "" || services[name] {
			there = append(there, f)
		} else {
			gone = append(gone, f)
		}
	}
	return there, gone
}

// likely returns the frontends that an agent is likely to serve on addresses of the node, if it is
// not told otherwise: mostly, the first address of a family is the one that packets leave by.
func likely(theirs []Frontend) map[state.FrontendKey]bool {
	served := map[state.FrontendKey]bool{}
	// Nobody has a route of its own for addresses of documentation.
	for _, far := range []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")} {
		way, err := link.Here.Route(far)
		if err != nil || !way.Source.IsValid() {
			continue // without a route, there is no such address
		}
		served[state.FrontendKey{Addr: way.Source}] = true
		for _, f := range theirs {
			if f.Key.Addr == way.Source {
				served[f.Key] = f.Served
			}
		}
	}
	return served
}

// both finds what kube-proxy and the agent have programmed, and the addresses on which node ports
// are served.
func (o *Options) both(ctx context.Context) (theirs []footprint, ours map[state.FrontendKey]bool, host map[netip.Addr]bool, err error) {
	if theirs, err = find(ctx); err != nil {
		return nil, nil, nil, err
	}
	if ours, err = o.Kernel.Frontends(ctx); err != nil {
		return nil, nil, nil, err
	}
	host, _, err = addresses()
	return theirs, ours, host, err
}

// unserved says what happens to node ports on addresses where the agent serves none.
func unserved(addrs []netip.Addr) []string {
	if len(addrs) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("kube-proxy has node ports on %s and sluice has not: choose addresses with the agent's --nodeport-addresses "+
		"(never loopback), or say with --give-up CIDRs where nobody uses them", model.Join(addrs, ", "))}
}

// proxyGone waits until no kube-proxy runs on the node: it would put its rules back.
func (o *Options) proxyGone(ctx context.Context) error {
	err := o.wait(ctx, func() (string, error) {
		running, err := o.proxies()
		if err != nil || len(running) == 0 {
			return "", errors.Join(err, ctx.Err())
		}
		return fmt.Sprintf("%s runs on this node and would put its rules back: stop it\n%s", running[0], running[0].stop("kube-proxy", o.Node)), ctx.Err()
	})
	if err != nil {
		return err
	}
	o.ok("no kube-proxy runs on this node")
	return nil
}

func (o *Options) wouldStopProxy(context.Context) error {
	running, err := o.proxies()
	if err != nil {
		return o.stop("%v", err)
	}
	for _, p := range running {
		o.line("would", "wait until %s is stopped:\n%s", p, p.stop("kube-proxy", o.Node))
	}
	return nil
}

func (o *Options) wouldRemoveProxy(ctx context.Context) error {
	footprints, err := find(ctx)
	if err != nil {
		return o.stop("%v", err)
	}
	for _, fp := range footprints {
		o.line("would", "remove %s", fp.what)
		for _, n := range fp.notes {
			o.note("%s", n)
		}
	}
	return nil
}

// removeProxy removes all that kube-proxy has left.
func (o *Options) removeProxy(ctx context.Context) error {
	footprints, err := find(ctx)
	if err != nil {
		return o.stop("%v", err)
	}
	for _, fp := range footprints {
		for _, n := range fp.notes {
			o.note("%s", n)
		}
		err := fp.remove(ctx, drain{o.Drain, func(format string, args ...any) { o.line("wait", format, args...) }})
		if errors.Is(err, errUndrained) {
			return o.stop("%v\nrun this again to wait for them once more (--drain-timeout), or end them", err)
		}
		if err != nil {
			return o.stop("%v", err)
		}
		o.ok("removed %s", fp.what)
	}
	return nil
}

// proxyRemoved checks that nobody has restored rules meanwhile.
func (o *Options) proxyRemoved(ctx context.Context) error {
	left, err := find(ctx)
	if err != nil {
		return o.stop("%v", err)
	}
	if len(left) > 0 {
		return o.stop("there are rules of kube-proxy again: %s: see what runs kube-proxy on this node", left[0].what)
	}
	o.ok("nothing of kube-proxy is left in this network namespace")
	return nil
}
