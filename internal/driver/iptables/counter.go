package iptables

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

var _ driver.Counter = (*Driver)(nil)

// counted is how many packets policies have decided on, allowed and denied.
type counted map[model.PolicyKey]*driver.PolicyCounter

func (c counted) add(d decision, packets uint64) {
	for _, k := range d.of {
		if c[k] == nil {
			c[k] = &driver.PolicyCounter{Policy: k}
		}
		if d.allowed {
			c[k].Allowed += packets
		} else {
			c[k].Denied += packets
		}
	}
}

func (c counted) addAll(more counted) {
	for k, m := range more {
		c.add(decision{of: []model.PolicyKey{k}, allowed: true}, m.Allowed)
		c.add(decision{of: []model.PolicyKey{k}}, m.Denied)
	}
}

// PolicyCounters implements driver.Counter. Another driver begins with what the rules have counted
// that are there.
func (d *Driver) PolicyCounters(ctx context.Context) ([]driver.PolicyCounter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := counted{}
	for k, c := range d.counted {
		now[k] = &driver.PolicyCounter{Policy: k, Allowed: c.Allowed, Denied: c.Denied}
	}
	for i := range d.families {
		if err := d.count(ctx, i, now, func(string) bool { return true }); err != nil {
			return nil, err
		}
	}
	list := []driver.PolicyCounter{}
	if d.state != nil && d.state.Policy != nil {
		for _, p := range d.state.Policy.Rules {
			for _, k := range p.Declared() {
				list = append(list, *cmp.Or(now[k], &driver.PolicyCounter{Policy: k}))
			}
		}
	}
	slices.SortFunc(list, func(a, b driver.PolicyCounter) int { return a.Policy.Compare(b.Policy) })
	return slices.Compact(list), nil
}

// DropCounts implements driver.Counter.
func (d *Driver) DropCounts(ctx context.Context) (map[state.Drop]uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := map[state.Drop]uint64{}
	for i := range d.families {
		err := d.eachCounter(ctx, i, func(at ruleAt, rule string, packets uint64) {
			if _, reason, is := strings.Cut(at.chain, dropInfix); is && rule == "-j DROP" {
				counts[state.Drop(reason)] += packets
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// count adds what the rules of some chains have counted.
func (d *Driver) count(ctx context.Context, family int, to counted, some func(chain string) bool) error {
	decide := map[ruleAt]decision{}
	for _, w := range d.judges[family].written {
		for at, by := range w.decide {
			if some(at.chain) {
				decide[at] = by
			}
		}
	}
	if len(decide) == 0 {
		return nil
	}
	return d.eachCounter(ctx, family, func(at ruleAt, _ string, packets uint64) { to.add(decide[at], packets) })
}

// eachCounter yields the rules of our chains in the table filter, and in others that have some of
// policy, with how many packets each has matched.
func (d *Driver) eachCounter(ctx context.Context, family int, yield func(at ruleAt, rule string, packets uint64)) error {
	v, err := d.variant(ctx)
	if err != nil {
		return err
	}
	path, err := locate(ctx, v, family == 1, "save")
	if err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	used := map[string]bool{"filter": true}
	if now := d.enforced[family]; now != nil {
		for c := range now.chains {
			used[c.table] = true
		}
	}
	for table := range used {
		out, err := d.run(ctx, path, "", "-c", "-t", table)
		if err != nil {
			return fmt.Errorf("read counters: %w", err)
		}
		for _, c := range xtables.Parse(out) {
			if !strings.HasPrefix(c.Name, prefix) {
				continue
			}
			for i, r := range c.Rules {
				yield(ruleAt{c.Name, i}, r.Text, r.Packets)
			}
		}
	}
	return nil
}

// countsOf is what is counted in chains that a change removes.
func (d *Driver) countsOf(ctx context.Context, c *imageDiff) counted {
	counts := counted{}
	family := 0
	if c.v6 {
		family = 1
	}
	if err := d.count(ctx, family, counts, func(chain string) bool { return c.chains[chain] }); err != nil {
		d.log.Debug("what policies have counted begins anew", "error", err)
	}
	return counts
}
