package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/state"
)

// Adopt implements driver.Driver. Where the kernel has frontends that are to be kept, the plan
// changes nothing of services: frontends share chains, and one alone can't be had from them.
func (d *Driver) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.planAdoption(ctx, want.Clone(), keep)
}

func (d *Driver) planAdoption(ctx context.Context, want *state.State, keep driver.Keep) (*plan, error) {
	p := &plan{d: d, want: want, of: d.partsOf(want), keep: keep, kept: driver.Kept{
		Senders: map[netip.Addr]bool{}, Receivers: map[netip.Addr]bool{}, Hosts: map[int]bool{}, Members: map[netip.Prefix]bool{},
	}}
	if p.of == (parts{}) {
		return p, nil
	}
	v, err := d.variant(ctx)
	if err != nil {
		return nil, err
	}
	sets, foreign, err := d.readSets()
	if err := errors.Join(foreign, err); err != nil {
		return nil, err
	}
	var have [2]*image
	there := parts{policy: !d.policy}
	for i, f := range d.families {
		have[i] = &image{sets: sets[i]}
		if have[i].chains, _, err = d.save(ctx, v, f.v6); err != nil {
			return nil, err
		}
		for c := range have[i].chains {
			if c.builtin() {
				continue
			}
			there.set(parts{!isPolicy(c.name), isPolicy(c.name)}, true)
		}
		if !asks(have[i].chains, sets[i]) {
			for _, c := range f.foreign(have[i].chains) {
				foreign = errors.Join(foreign, fmt.Errorf("chain %s of table %s is another program's, as it has rules that are not Sluice's and nothing there asks an ipset of Sluice's; remove it, or run that program without it", c.name, c.table))
			}
		}
	}
	if foreign != nil {
		return nil, foreign
	}
	elsewhere := false
	for i, f := range d.families {
		if p.leave[i], err = d.removal(ctx, v.Other(), f, sets[i]); err != nil {
			d.log.Debug("cannot look for rules of ours in the other variant of iptables", "variant", v.Other(), "error", err)
		}
		elsewhere = elsewhere || p.leave[i] != ""
	}
	if p.of.services && keep.Services {
		p.kept.Services = d.keeps(sets, want.Services)
		p.of.services = p.kept.Services == 0
	}
	switch missing := (parts{!p.of.services, !p.of.policy}); {
	case elsewhere && keep.Any() && there == parts{policy: !d.policy}:
		p.kept.Services, p.kept.Policy = max(1, p.kept.Services), 1 // rules of the other variant can't be kept in part
		p.of = parts{}
	case p.of != parts{} && !there.hold(missing):
		return nil, driver.ErrWhole
	}
	if p.of == (parts{}) {
		p.leave = [2]string{}
		return p, nil
	}
	return p, d.compare(p, have, func(f family) []membership { return d.rememberOthers(ctx, f, want.Services) })
}

// compare plans what leads from what there is to what is wanted.
func (d *Driver) compare(p *plan, have [2]*image, clients func(family) []membership) error {
	of := p.of
	of.policy = of.policy || of.services && !d.policy // what an agent has left that judged
	if of.policy {
		if err := d.nameDevices(); err != nil {
			return err
		}
	}
	var enforced [2]*enforced
	var last *state.Policy
	if d.state != nil {
		last = d.state.Policy
	}
	for i, f := range d.families {
		wanted := newImage()
		if p.of.services {
			p.shared[i] = f.whole(p.want.Services, wanted)
		}
		if p.of.policy {
			kept := d.judges[i].keeps(have[i], p.want.Policy, last, p.keep)
			kept.note(&p.kept, d.judges[i].names)
			enforced[i] = d.judges[i].whole(p.want.Policy, kept, wanted)
		}
		c := diffImages(f.v6, have[i].of(of), wanted)
		if p.of.policy && p.keep.Policy {
			d.judges[i].keepMembers(c, last, &p.kept)
		}
		if p.of.services && len(have[0].sets)+len(have[1].sets) == 0 {
			c.add = append(c.add, clients(f)...)
		}
		p.changes = append(p.changes, c)
	}
	p.done = func() {
		if d.state == nil {
			d.state = &state.State{}
		}
		d.adopted.set(p.of, true)
		d.adopted.set(parts{p.kept.Services > 0, p.kept.Policy > 0}, false)
		d.compared, d.doubt = time.Now(), false
		if p.of.services {
			d.state.Services, d.shared, d.aside = p.want.Services, p.shared, nil
		}
		if p.of.policy {
			d.state.Policy, d.rulesAside = p.want.Policy, nil
			d.enforcing(enforced)
		}
	}
	return nil
}

// keeps is how many frontends, and addresses that others serve, the sets have and services lack.
func (d *Driver) keeps(sets [2]map[string]*set, s *state.Services) (n int) {
	for key := range d.frontends(sets) {
		if s.Frontends[key] == nil {
			n++
		}
	}
	for i, f := range d.families {
		if others := sets[i][f.name(setOthers)]; others != nil {
			for e := range others.elements {
				if _, is := s.OtherIPs[e.addr]; !is {
					n++
				}
			}
		}
	}
	return n
}

// rememberOthers returns what another program remembers of clients, so that those stay where they
// are: an adoption that finds nothing of ours begins with that.
func (d *Driver) rememberOthers(ctx context.Context, f family, s *state.Services) (all []membership) {
	driver.Recall(ctx, d.log, d.remembered, s, func(k state.FrontendKey, fe *state.Frontend, r state.Remembered) {
		if f.holds(k.Addr) {
			timeout := fe.Affinity.Truncate(time.Second)
			client := element{addr: k.Addr, protocol: k.Protocol, port: k.Port, net: netip.PrefixFrom(r.Client, f.bits())}
			all = append(all, membership{f.clients(r.Backend), client, min(timeout, cmp.Or(r.Left, timeout))})
		}
	})
	return all
}

// asks reports whether a rule asks one of sets of ours. They are there for both variants, so that a
// set alone does not tell whose chains are.
func asks(chains map[chain][]string, sets map[string]*set) bool {
	for _, rules := range chains {
		if len(sets) > 0 && slices.ContainsFunc(rules, func(r string) bool { return strings.Contains(r, "-set "+prefix) }) {
			return true
		}
	}
	return false
}

// foreign returns the chains that have rules which are not ours, sorted, where no rule asks a set
// of ours: chains of our names may be another program's then, or what a clean-up by hand left. Ours
// are rules that lead to chains of ours, that return, that translate addresses, that are written
// alike on every node, and those of chains that are named after them.
func (f family) foreign(chains map[chain][]string) (list []chain) {
	always := (&judge{family: f, written: map[writtenAt]*written{}}).enforce(&state.Policy{
		Hosts:  map[int]*state.Host{0: {UntrackedIn: "any"}},
		Denied: state.Denied{Devices: []state.Device{{}}, Lists: []*state.List{{}}},
	}, nil).image
	f.settings(state.Settings{}, always)
	translates := map[chain]string{{"nat", treeChain}: " -j DNAT --to-destination ", {"nat", masqueradeChain}: " -j SNAT --to-source "}
	for c, rules := range chains {
		digest := strings.LastIndexByte(c.name, '-') == len(c.name)-len(named("", ""))+len(prefix)
		if c.builtin() || digest {
			continue
		}
		if slices.ContainsFunc(rules, func(r string) bool {
			return !strings.Contains(r, " "+prefix) && !strings.HasSuffix(r, "-j RETURN") && !slices.Contains(always.chains[c], r) &&
				(translates[c] == "" || !strings.Contains(r, translates[c]))
		}) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b chain) int { return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.name, b.name)) })
	return list
}

// removal returns what removes our rules of a family in a variant; "": there are none. Sets are
// those of ours in the family.
func (d *Driver) removal(ctx context.Context, v xtables.Variant, f family, sets map[string]*set) (string, error) {
	chains, _, err := d.save(ctx, v, f.v6)
	if err != nil || !asks(chains, sets) && len(f.foreign(chains)) > 0 {
		return "", err
	}
	return diffImages(f.v6, &image{chains: chains}, newImage()).restore, nil
}

// leave removes our rules in a variant, and the tables of nftables that were made for them alone.
func (d *Driver) leave(ctx context.Context, v xtables.Variant, v6 bool, removal string) error {
	if removal == "" {
		return nil
	}
	err := d.restore(ctx, v, v6, removal)
	if err == nil && v == xtables.NFTables {
		err = d.ns.Do(func() error { return deleteEmpty(v6) })
	}
	if err != nil {
		return fmt.Errorf("remove our rules in the variant %s: %w", v, err)
	}
	return nil
}

// deleteEmpty deletes those of our tables in nftables that nobody has a rule in, and that are as
// iptables makes them.
func deleteEmpty(v6 bool) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	family := tableFamily(v6)
	found, err := c.ListTablesOfFamily(family)
	if err != nil {
		return err
	}
	chains, err := c.ListChainsOfTableFamily(family)
	if err != nil {
		return err
	}
	for _, t := range found {
		empty := slices.Contains(tables, t.Name)
		for _, chain := range chains {
			if !empty || chain.Table.Name != t.Name {
				continue
			}
			rules, err := nft.ForeignRules(t, chain.Name)
			empty = err == nil && len(rules) == 0 && chain.Hooknum != nil && chain.Policy != nil && *chain.Policy == nftables.ChainPolicyAccept
		}
		if sets, err := c.GetSets(t); empty && err == nil && len(sets) == 0 {
			c.DelTable(t)
		}
	}
	return c.Flush()
}

// Purge implements driver.Driver. Chains go before the sets that they ask; where some can't go, the
// sets stay, by which they are known to be ours.
func (d *Driver) Purge(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state, d.adopted = nil, parts{}
	sets, _, err := d.readSets()
	if err != nil {
		return err
	}
	var errs []error
	for i, f := range d.families {
		var failed error
		for _, v := range []xtables.Variant{xtables.Legacy, xtables.NFTables} {
			if _, err := locate(ctx, v, f.v6, "save"); err != nil {
				continue // what is not there has no rules
			}
			removal, err := d.removal(ctx, v, f, sets[i])
			if err == nil {
				err = d.leave(ctx, v, f.v6, removal)
			}
			failed = errors.Join(failed, err)
		}
		if failed == nil {
			failed = d.carryOut(ctx, "", diffImages(f.v6, &image{sets: sets[i]}, newImage()))
		}
		errs = append(errs, failed)
	}
	return errors.Join(errs...)
}
