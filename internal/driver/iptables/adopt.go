package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Adopt implements driver.Driver. Where the kernel has frontends that are to be kept, the plan
// changes nothing: frontends share chains, and one alone can't be had from them.
func (d *Driver) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if want.Services == nil {
		return &plan{d: d}, nil
	}
	return d.planAdoption(ctx, want.Services.Clone(), keep)
}

func (d *Driver) planAdoption(ctx context.Context, want *state.Services, keep driver.Keep) (*plan, error) {
	p := &plan{d: d, want: want}
	v, err := d.variant(ctx)
	if err != nil {
		return nil, err
	}
	sets, foreign, err := d.readSets()
	if err := errors.Join(foreign, err); err != nil {
		return nil, err
	}
	if p.kept = d.keeps(sets, want); keep.Services && p.kept > 0 {
		return p, nil
	}
	p.kept = 0
	var next [2]*shared
	for i, f := range d.families {
		have, wanted := &image{sets: sets[i]}, (*image)(nil)
		if have.chains, _, err = d.save(ctx, v, f.v6); err != nil {
			return nil, err
		}
		wanted, next[i] = f.whole(want)
		c := difference(f.v6, have, wanted)
		if len(sets[0])+len(sets[1]) == 0 {
			c.add = append(c.add, d.rememberOthers(ctx, f, want)...)
		}
		p.changes = append(p.changes, c)
		leave, err := d.removal(ctx, v.other(), f.v6)
		if err != nil {
			d.log.Debug("cannot look for rules of ours in the other variant of iptables", "variant", v.other(), "error", err)
		}
		p.leave[i] = leave
	}
	p.trees = [2]*tree{next[0].tree, next[1].tree}
	p.done = func() {
		d.state, d.adopted, d.aside = &state.State{Services: want}, true, nil
		d.compared, d.doubt = time.Now(), false
		for i, s := range next {
			d.trees[i], d.uses[i] = s.tree, s.uses
		}
	}
	return p, nil
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
	if d.remembered == nil {
		return nil
	}
	list, err := d.remembered(ctx)
	if err != nil {
		d.log.Warn("clients with session affinity may be balanced anew: what another program remembers of them cannot be read", "error", err)
	}
	for k, fe := range s.Frontends {
		timeout := fe.Affinity.Truncate(time.Second)
		if timeout == 0 || !f.holds(k.Addr) {
			continue
		}
		for _, r := range list {
			own := r.Service == model.Name{} || r.Service == fe.Service && r.Port == fe.Port
			if own && r.Protocol == k.Protocol && f.holds(r.Client) && (state.Has(fe.Backends, r.Backend) || state.Has(fe.Local, r.Backend)) {
				client := element{addr: k.Addr, protocol: k.Protocol, port: k.Port, net: netip.PrefixFrom(r.Client, f.bits())}
				all = append(all, membership{f.clients(r.Backend), client, min(timeout, cmp.Or(r.Left, timeout))})
			}
		}
	}
	return all
}

// removal returns what removes our rules in a variant; "": there are none.
func (d *Driver) removal(ctx context.Context, v Variant, v6 bool) (string, error) {
	chains, _, err := d.save(ctx, v, v6)
	if err != nil {
		return "", err
	}
	return difference(v6, &image{chains: chains}, newImage()).restore, nil
}

// leave removes our rules in a variant, and the tables of nftables that were made for them alone.
func (d *Driver) leave(ctx context.Context, v Variant, v6 bool, removal string) error {
	if removal == "" {
		return nil
	}
	err := d.restore(ctx, v, v6, removal)
	if err == nil && v == NFTables {
		err = d.deleteEmpty(v6)
	}
	if err != nil {
		return fmt.Errorf("remove our rules in the variant %s: %w", v, err)
	}
	return nil
}

// deleteEmpty deletes those of our tables in nftables that nobody has a rule in, and that are as
// iptables makes them.
func (d *Driver) deleteEmpty(v6 bool) error {
	return d.ns.Do(func() error { return deleteEmpty(v6) })
}

func deleteEmpty(v6 bool) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	family := nftables.TableFamilyIPv4
	if v6 {
		family = nftables.TableFamilyIPv6
	}
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
			rules, err := c.GetRules(t, chain)
			empty = err == nil && len(rules) == 0 && chain.Hooknum != nil && chain.Policy != nil && *chain.Policy == nftables.ChainPolicyAccept
		}
		if sets, err := c.GetSets(t); empty && err == nil && len(sets) == 0 {
			c.DelTable(t)
		}
	}
	return c.Flush()
}

// Purge implements driver.Driver.
func (d *Driver) Purge(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state, d.adopted = nil, false
	var errs []error
	for _, v := range []Variant{Legacy, NFTables} {
		for _, f := range d.families {
			if _, err := locate(ctx, v, f.v6, "save"); err != nil {
				continue // what is not there has no rules
			}
			removal, err := d.removal(ctx, v, f.v6)
			if err == nil {
				err = d.leave(ctx, v, f.v6, removal)
			}
			errs = append(errs, err)
		}
	}
	sets, _, err := d.readSets()
	errs = append(errs, err)
	for i, f := range d.families {
		errs = append(errs, d.carryOut(ctx, "", difference(f.v6, &image{sets: sets[i]}, newImage())))
	}
	return errors.Join(errs...)
}
