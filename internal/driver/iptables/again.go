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

// againChain is where they come from a built-in chain.
func againChain(builtin string) string { return policyPrefix + "AGAIN-" + builtin }

// again adds that chain, and the rules by which packets come there, once.
func (f family) again(i *image, builtin string) {
	for _, end := range []string{f.in(setAgain, "src"), f.in(setAgain, "dst") + " " + f.notIn(setAgain, "src")} {
		i.rule("filter", builtin, "-m conntrack --ctstate ESTABLISHED "+end+" -j "+againChain(builtin))
	}
	i.rule("filter", againChain(builtin), "-p udp -m conntrack --ctdir REPLY -g "+answersChain)
}

// judgedBy has a chain judge them.
func (i *image) judgedBy(builtin, judges string) {
	i.rule("filter", againChain(builtin), "-m conntrack --ctdir ORIGINAL -g "+judges)
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

// Answers are not judged again. Those of UDP may come alone, as a stream of datagrams, so it is
// noted whose they are. No ipset holds the four parts of a tuple, so two have three each: where an
// answer comes from, with the other's address, and where it goes.
const (
	setAnswers  = "P-ANSWERS"
	setAnswered = "P-ANSWERED"
)

var answering = []string{setAnswers, setAnswered}

// answers adds the chain that notes them.
func (f family) answers(i *image) {
	note := func(set, fields string) string {
		return fmt.Sprintf("-j SET --add-set %s %s --exist --timeout %d", f.name(set), fields, int(driver.JudgeAgain.Seconds()))
	}
	i.rule("filter", answersChain, note(setAnswers, "src,src,dst"), note(setAnswered, "dst,dst,src"))
}

// Answering implements driver.Answerer. Of two hosts that have several connections it tells of all
// that their ports can make up. It does not know one that is translated at both ends.
func (d *Driver) Answering(_ context.Context, yield func(from, to netip.AddrPort)) error {
	type hosts struct{ from, to netip.Addr }
	for _, f := range d.families {
		to, told := map[hosts][]uint16{}, 0
		err := d.noted(f.name(setAnswered), func(e element) {
			h := hosts{e.net.Addr(), e.addr}
			to[h] = append(to[h], e.port)
		})
		if err != nil {
			return err
		}
		err = d.noted(f.name(setAnswers), func(e element) {
			source, client := netip.AddrPortFrom(e.addr, e.port), e.net.Addr()
			for _, port := range to[hosts{e.addr, client}] {
				if told++; told > driver.MostAnswering {
					return
				}
				yield(netip.AddrPortFrom(client, port), source) // if what the client asked is not translated
				yield(source, netip.AddrPortFrom(client, port)) // if the client is not
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// noted calls f with each element that packets have put into a set.
func (d *Driver) noted(set string, f func(element)) error {
	list, err := d.ns.IpsetList(set)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list ipset %s: %w", set, err)
	}
	for _, e := range list.Entries {
		f(elementOf(clientsKind, e))
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
		for _, name := range append([]string{setAgain}, answering...) {
			if err := d.ns.IpsetFlush(f.name(name)); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("flush ipset %s: %w", f.name(name), err)
			}
		}
	}
	d.again = 0
	return nil
}
