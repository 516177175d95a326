package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// Traffic returns what backends have got, except for their connections at present and what is sent
// in connections. Connections of clients that stay on their backend do not count. It is safe for
// concurrent use.
func (d *Driver) Traffic(ctx context.Context) (map[driver.Backend]driver.Traffic, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[driver.Backend]driver.Traffic{}
	if d.state == nil {
		return all, nil
	}
	for _, t := range d.tables() {
		of := d.slotsOf(t.ruleset)
		for _, s := range t.ruleset.Sets {
			if !s.Counted {
				continue
			}
			err := t.Sock.ReadSet(ctx, TableName, s, func(e nft.Element) {
				if b, known := of[elementKey{s, e.ElementKey}]; known {
					sum := all[b]
					sum.Chosen += e.Packets
					all[b] = sum
					d.tally.Count(elementKey{s, e.ElementKey}, b, driver.Counts{Times: e.Packets, Bytes: e.Bytes})
				}
			})
			if err != nil && !errors.Is(err, nft.ErrInterrupted) {
				return nil, fmt.Errorf("read set %s: %w", s.Name, err)
			}
		}
	}
	d.tally.End(d.state.Farms, func(b driver.Backend, f *state.Farm, got driver.Counts) {
		sum := all[b]
		sum.TotalChosen, sum.Untracked = got.Times, f.Mode.Stateless()
		if sum.Untracked { // of a connection, the first packet alone is counted
			sum.TotalBytes = got.Bytes
		}
		all[b] = sum
	})
	return all, nil
}

// slotsOf are the backends that the elements of a table's slots lead to.
func (d *Driver) slotsOf(rs *ruleset) map[elementKey]driver.Backend {
	of := map[elementKey]driver.Backend{}
	for name, f := range d.state.Farms {
		c := content{rs, d.numbers, nil, func(e *nft.Element) {
			if e.Set.Counted {
				if i := leadsTo(f, e); i >= 0 {
					of[elementKey{e.Set, e.ElementKey}] = driver.Backend{Farm: name, Name: f.Backends[i].Name}
				}
			}
		}, func(string, func() nft.Chain) {}}
		c.farm(f)
	}
	return of
}

// leadsTo is the index of the backend that an element of slots leads to; -1: none.
func leadsTo(f *state.Farm, e *nft.Element) int {
	slot := int(nft.NativeUint32(e.Key[:4]))
	of6 := slices.ContainsFunc(e.Set.Data, func(d nft.Field) bool { return d.Size == 16 })
	slots := f.Table(!of6).Slots
	if slot >= len(slots) {
		return -1
	}
	return int(slots[slot])
}
