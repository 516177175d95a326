package nftables

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Sessions returns the clients that a farm remembers now, without those that were given; none if
// there is no such farm, or it remembers nobody. It is safe for concurrent use.
func (d *Driver) Sessions(ctx context.Context, farm string) (sessions []model.LiveSession, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.remembering(farm)
	if f == nil {
		return nil, nil
	}
	err = d.eachClient(ctx, f, func(fp *family, e *nft.Element) {
		c := fp.readClient(f.Persist, e)
		s := model.LiveSession{FarmSession: model.FarmSession{Client: c.FlowValues}, Left: c.left}
		if i := c.backendOf(f); i >= 0 {
			s.Backend = f.Backends[i].Name
		}
		sessions = append(sessions, s)
	})
	return sessions, err
}

// Forget has a farm forget clients. It is safe for concurrent use.
func (d *Driver) Forget(ctx context.Context, farm string, clients []model.FlowValues) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.remembering(farm)
	if f == nil {
		return nil
	}
	gone := map[model.FlowValues]bool{}
	for _, c := range clients {
		gone[c] = true
	}
	return d.forget(ctx, f, func(c client) bool { return gone[c.FlowValues] })
}

// remembering is a farm that remembers clients; nil: there is none of the name.
func (d *Driver) remembering(farm string) *state.Farm {
	if d.state == nil || d.state.Farms[farm] == nil || d.state.Farms[farm].Persist == 0 {
		return nil
	}
	return d.state.Farms[farm]
}

// client is a client that a farm remembers.
type client struct {
	model.FlowValues
	backend netip.AddrPort
	left    time.Duration // until it is forgotten
}

// backendOf is the index of the client's backend in the farm's list; -1: it is gone.
func (c client) backendOf(f *state.Farm) int {
	return slices.IndexFunc(f.Backends, func(b model.FarmBackend) bool {
		return b.Addr == c.backend.Addr() && (b.Port == 0 || b.Port == c.backend.Port())
	})
}

// eachClient yields the elements of a farm's clients. Where tables change all the time, some may be
// missing that came meanwhile.
func (d *Driver) eachClient(ctx context.Context, f *state.Farm, yield func(*family, *nft.Element)) error {
	n := uint32Bytes(d.numbers.number(f.Name))
	for _, fp := range d.ruleset.families {
		var all []nft.Element
		err := nft.Uninterrupted(func() error {
			all = all[:0]
			return d.Sock.ReadSet(ctx, TableName, fp.memory(f.Persist).clients, func(e nft.Element) {
				if slices.Equal(e.Key[:4], n) {
					all = append(all, e)
				}
			})
		})
		if err != nil && !errors.Is(err, nft.ErrInterrupted) {
			return err
		}
		for i := range all {
			yield(fp, &all[i])
		}
	}
	return nil
}

// recall has a fresh table remember the clients that another one does: those of farms that are
// wanted and whose backend serves.
func (c *tableChange) recall(ctx context.Context, name string) error {
	var sets []*nft.Set
	of := map[*nft.Set]*family{}
	for _, fp := range c.rs.families {
		for _, m := range fp.memories {
			sets, of[m.clients] = append(sets, m.clients), fp
		}
	}
	_, err := c.Recall(ctx, name, sets, func(e *nft.Element) bool {
		f, fp := c.fresh.Farms[c.numbers.farms[nft.NativeUint32(e.Key[:4])]], of[e.Set]
		if f == nil || f.Persist == 0 || fp.memory(f.Persist).clients != e.Set {
			return false
		}
		i := fp.readClient(f.Persist, e).backendOf(f)
		return i >= 0 && f.Serves(i)
	})
	return err
}

func (d *Driver) forget(ctx context.Context, f *state.Farm, which func(client) bool) error {
	var gone []nft.Element
	err := d.eachClient(ctx, f, func(fp *family, e *nft.Element) {
		if which(fp.readClient(f.Persist, e)) {
			gone = append(gone, *e)
		}
	})
	if err != nil {
		return err
	}
	return table.Forget(gone, 1000, d.Delete)
}

// forgetStrays has a farm forget the clients whose backend does not serve after a change, or all
// where it goes or remembers by something else; now may be nil.
func (d *Driver) forgetStrays(ctx context.Context, old, now *state.Farm) error {
	if old == nil || old.Persist == 0 {
		return nil
	}
	if now == nil || now.Persist != old.Persist {
		return d.forget(ctx, old, func(client) bool { return true })
	}
	for i, b := range old.Backends {
		if old.Serves(i) && !servesLike(now, b) {
			return d.forget(ctx, now, func(c client) bool {
				i := c.backendOf(now)
				return i < 0 || !now.Serves(i)
			})
		}
	}
	return nil
}

// servesLike reports whether a farm has a backend with the address and port of another one that
// serves.
func servesLike(f *state.Farm, b model.FarmBackend) bool {
	for i, o := range f.Backends {
		if o.Addr == b.Addr && o.Port == b.Port && f.Serves(i) {
			return true
		}
	}
	return false
}

// readClient is what an element of clients says.
func (fp *family) readClient(key model.FlowKey, e *nft.Element) client {
	n := fp.ip.Bits / 8
	addr := func(b []byte) netip.Addr { a, _ := netip.AddrFromSlice(b[:n]); return a }
	port := func(b []byte) uint16 { return uint16(b[0])<<8 | uint16(b[1]) }
	c := client{backend: netip.AddrPortFrom(addr(e.Data[:]), port(e.Data[n:]))}
	if e.Life != nil {
		c.left = e.Life.Expires
	}
	at := e.Key[4:]
	for _, part := range fp.memory(key).parts {
		size := len(fp.partBytes(part, model.FlowValues{}))
		if key&part != 0 {
			switch f := c.Field(part).(type) {
			case *netip.Addr:
				*f = addr(at)
			case *uint16:
				*f = port(at)
			case *[6]byte:
				copy(f[:], at)
			}
		}
		at = at[size:]
	}
	return c
}
