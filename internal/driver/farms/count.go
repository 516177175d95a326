package farms

import (
	"context"
	"errors"
	"fmt"

	"sluice.dev/sluice/internal/driver/nftables/nft"
	"sluice.dev/sluice/internal/state"
)

// backend is the index of one in the list of a farm.
type backend struct {
	farm  string
	index int
}

// Chosen returns how often each backend was chosen since its slots were programmed, by the farm's
// name and the backend's index in its list: by connections, or by packets where no connection is
// tracked. Connections of clients that stay on their backend do not count. It is safe for
// concurrent use.
func (d *Driver) Chosen(ctx context.Context) (map[string]map[int]uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := map[string]map[int]uint64{}
	if d.state == nil {
		return counts, nil
	}
	of := d.slotsOf()
	for _, s := range d.prog.sets {
		if !s.Counted {
			continue
		}
		err := d.sock.ReadSet(ctx, TableName, s, func(e nft.Element) {
			if b, known := of[elementKey{s, e.ElementKey}]; known {
				if counts[b.farm] == nil {
					counts[b.farm] = map[int]uint64{}
				}
				counts[b.farm][b.index] += e.Packets
			}
		})
		if err != nil && !errors.Is(err, nft.ErrInterrupted) {
			return nil, fmt.Errorf("read set %s: %w", s.Name, err)
		}
	}
	return counts, nil
}

// slotsOf are the backends that the elements of slots lead to.
func (d *Driver) slotsOf() map[elementKey]backend {
	of := map[elementKey]backend{}
	for name, f := range d.state.Farms {
		c := content{d.prog, d.numbers, nil, func(e *nft.Element) {
			if e.Set.Counted {
				if i := leadsTo(f, e); i >= 0 {
					of[elementKey{e.Set, e.ElementKey}] = backend{name, i}
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
	slots := f.Table(e.Set.Data[0].Size == 4).Slots
	if slot >= len(slots) {
		return -1
	}
	return int(slots[slot])
}
