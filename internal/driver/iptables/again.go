package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
)

// After a change of policy, connections that it forbids are found and labelled, which takes some
// tens of milliseconds. Meanwhile packets of established connections that the change may be about
// are judged again, as if they were the first: those that go the way of the first one, as rules are
// about that way alone. What is denied gets the label by the rule. A set has the addresses that the
// change is about. It gets them after the change, as sets and tables do not change at once: what is
// allowed before and after it could be denied in between, and labelled.

// setAgain has addresses, or all, for a while.
const setAgain = "P-AGAIN"

// again adds rules by which packets come to a chain that judges, in a built-in chain, once.
func (f family) again(i *image, builtin, judges string) {
	for _, end := range []string{f.in(setAgain, "src"), f.in(setAgain, "dst") + " " + f.notIn(setAgain, "src")} {
		i.rule("filter", builtin, "-m conntrack --ctstate ESTABLISHED --ctdir ORIGINAL "+end+" -j "+judges)
	}
}

// established are the rules of a chain that drops for a reason, for packets that are judged again.
func established(reason state.Drop) []string {
	const is = "-m conntrack --ctstate ESTABLISHED "
	switch reason {
	case state.DropUnknownPod, state.DropUnknownDevice, state.DropTunnel:
		return []string{is + "-j RETURN"} // no policy forbids the connection
	case state.DropPolicy, state.DropHost: // answers, too
		return []string{fmt.Sprintf(`%s-m connlabel --label "%d" --set`, is, state.CutLabel), fmt.Sprintf(`%s-m connlabel --label "%d" --set`, is, state.CutByRuleLabel)}
	}
	return nil
}

// everything is all addresses.
func (f family) everything() []netip.Prefix {
	if f.v6 {
		return halves(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	}
	return halves(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
}

// judgeAgain has packets of the connections judged again that a change may be about. The change is
// carried out without that, too: what it forbids is found and labelled in any case.
func (d *Driver) judgeAgain(f family, about state.About) {
	var all []netip.Prefix
	for a := range about.Addresses {
		if f.holds(a) {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if about.All || d.again+len(all) > driver.MostAgain {
		all = f.everything()
	}
	for _, p := range all {
		d.again++
		m := membership{set: f.name(setAgain), element: element{net: p}, left: driver.JudgeAgain}
		if err := d.ns.IpsetAdd(m.set, m.entry()); err != nil {
			d.log.Warn("requests on connections that policy forbids now go on until these are found", "ipset", m.set, "error", err)
			return
		}
	}
}

// Calm implements driver.Rejudger.
func (d *Driver) Calm(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.again == 0 {
		return nil
	}
	for _, f := range d.families {
		if err := d.ns.IpsetFlush(f.name(setAgain)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("flush ipset %s: %w", f.name(setAgain), err)
		}
	}
	d.again = 0
	return nil
}
