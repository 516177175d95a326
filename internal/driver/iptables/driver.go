// Package iptables carries out services and policy of the desired state with iptables, of either
// variant, and ipset. iptables has no map from a frontend to a backend, so there is a rule for each
// backend; but a new connection walks a tree of chains and no list of services, and what else is
// asked of a connection are rules of a constant number, over ipsets.
//
// What was programmed outlives the driver in the kernel alone. An adoption compares the text of our
// rules with what iptables-save prints, and the elements of our sets.
package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/state"
)

// Options are those of any driver, and which iptables it uses.
type Options struct {
	driver.Options
	// Variant is whose rules ours stand beside; empty: that which has more rules of others, or of
	// ours, and without any that which the program iptables is of.
	Variant xtables.Variant
	// LockWait is how long a change waits for the lock of xtables; 0: 10 seconds.
	LockWait time.Duration
	// Apart has what rules of policy ask for written as it is for large ones, for tests.
	Apart bool
}

// Driver programs the network namespace of the thread that opened it.
type Driver struct {
	programs
	log      *slog.Logger
	chosen   xtables.Variant // "": it is still to be chosen
	asked    bool            // the kernel, for the rules of each variant
	families [2]family
	policy   bool                   // it judges what may pass
	keep     bool                   // what policy has come to forbid goes on
	refuse   func(*imageDiff) error // tests: what the kernel refuses
	// remembered is that of the options.
	remembered func(context.Context) ([]state.Remembered, error)
	close      func() error

	mu       sync.Mutex // held by every method
	state    *state.State
	adopted  parts     // of which state is what the kernel holds
	seen     trace     // after the last change
	again    int       // so many elements that have packets judged again may be in the kernel
	doubt    bool      // others may have changed what we programmed since the last adoption
	compared time.Time // when the kernel was last compared with what is wanted
	judges   [2]*judge
	enforced [2]*enforced
	counted  counted // in rules that are gone
	shared   [2]*shared
	aside    map[state.FrontendKey]driver.SetAside
	// rulesAside are what the kernel refuses of policies. The state lacks these rules.
	rulesAside map[state.RulesID][]driver.SetAside
}

var _ driver.Driver = (*Driver)(nil)

// Open opens the driver in the calling thread's network namespace, where it stays. It changes
// nothing.
func Open(o Options) (driver.Driver, error) {
	return open(o)
}

func open(o Options) (*Driver, error) {
	switch o.Variant {
	case "", xtables.Legacy, xtables.NFTables:
	default:
		return nil, fmt.Errorf("there is no variant %q of iptables: choose %s or %s", o.Variant, xtables.Legacy, xtables.NFTables)
	}
	ns, err := netns.OpenPath("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	d := &Driver{programs: programs{ns: ns, wait: o.LockWait}, log: o.Log, policy: o.Policy, keep: o.KeepEstablished, counted: counted{}, chosen: o.Variant, remembered: o.Remembered, refuse: nothing,
		again: driver.MostAgain} // an earlier agent may have left so many
	if d.log == nil {
		d.log = slog.Default()
	}
	if d.wait == 0 {
		d.wait = 10 * time.Second
	}
	for i := range d.families {
		d.families[i] = family{v6: i == 1, fabric: o.Fabric, apart: o.Apart}
		d.judges[i] = &judge{family: d.families[i], written: map[writtenAt]*written{}}
	}
	d.close = sync.OnceValue(ns.Close)
	return d, nil
}

// parts are those of a state that are meant.
type parts struct{ services, policy bool }

// partsOf are the parts that a state has, of those that the driver carries out.
func (d *Driver) partsOf(s *state.State) parts {
	return parts{s.Services != nil, s.Policy != nil && d.policy}
}

// hold reports whether these parts include others.
func (p parts) hold(o parts) bool { return (p.services || !o.services) && (p.policy || !o.policy) }

// set says of some parts whether they are meant.
func (p *parts) set(o parts, to bool) {
	if o.services {
		p.services = to
	}
	if o.policy {
		p.policy = to
	}
}

// Capabilities implements driver.Driver.
func (d *Driver) Capabilities() driver.Capabilities {
	c := driver.Capabilities{
		Name:   "iptables",
		Can:    driver.Services | driver.SCTP | driver.Affinity | driver.SourceRanges | driver.LocalTraffic | driver.ClientAddress | driver.LargeDatagrams | driver.SharedPorts | driver.InPackets | driver.Outgoing | driver.Policy | driver.HostPolicy | driver.UntrackedPolicy | driver.Errors | driver.Survives | driver.Outlasts | driver.AuditsCheaply | driver.Keeps,
		Lister: d, Counter: d,
	}
	if d.policy && !d.keep {
		c.Rejudger, c.Answerer = d, d
	}
	return c
}

// Close implements driver.Driver.
func (d *Driver) Close() error { return d.close() }

// Held implements driver.Driver.
func (d *Driver) Held(f func(*state.State)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != nil {
		f(d.state)
	}
}

// Frontends implements driver.Lister.
func (d *Driver) Frontends(context.Context) (map[state.FrontendKey]bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sets, _, err := d.readSets()
	if err != nil {
		return nil, err
	}
	return d.frontends(sets), nil
}

// frontends are those in our sets, with whether they are served.
func (d *Driver) frontends(sets [2]map[string]*set) map[state.FrontendKey]bool {
	found := map[state.FrontendKey]bool{}
	for i, f := range d.families {
		for _, of := range []string{setRefused, setDropped, setFrontends} { // the last one tells
			if s := sets[i][f.name(of)]; s != nil {
				for e := range s.elements {
					found[state.FrontendKey{Addr: e.addr, Protocol: e.protocol, Port: e.port}] = of == setFrontends
				}
			}
		}
	}
	return found
}

// variant chooses the variant once.
func (d *Driver) variant(ctx context.Context) (xtables.Variant, error) {
	if d.asked {
		return d.chosen, nil
	}
	rules, foreign := map[xtables.Variant]int{}, map[xtables.Variant]int{}
	var errs []error
	for _, v := range []xtables.Variant{xtables.Legacy, xtables.NFTables} {
		if v == d.chosen {
			continue // only what the other one has is told
		}
		for v6 := range 2 {
			chains, others, err := d.save(ctx, v, v6 == 1)
			rules[v] += len(chains) + others
			foreign[v] += others
			errs = append(errs, err)
		}
	}
	choice := d.chosen
	if choice == "" {
		choice = xtables.Plain(ctx, "iptables")
	}
	switch {
	case d.chosen != "":
		if n := foreign[choice.Other()]; n > 0 {
			d.log.Warn("other programs have rules in the other variant of iptables: both are asked about each packet, and what one drops is dropped", "variant", choice, "otherRules", n)
		}
	case errors.Join(errs[:2]...) == nil && (errors.Join(errs[2:]...) != nil || rules[xtables.Legacy] > rules[xtables.NFTables]):
		choice = xtables.Legacy
	case errors.Join(errs[2:]...) == nil && (errors.Join(errs[:2]...) != nil || rules[xtables.NFTables] > rules[xtables.Legacy]):
		choice = xtables.NFTables
	case choice == "":
		return "", fmt.Errorf("choose a variant of iptables: %w", errors.Join(errs...))
	}
	if d.chosen == "" {
		d.log.Info("iptables: variant chosen", "variant", choice, "rules", rules[choice], "otherRules", rules[choice.Other()])
	}
	d.chosen, d.asked = choice, true
	return choice, nil
}
