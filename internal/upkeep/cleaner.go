package upkeep

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/internal/conntrack"
	"sluice.dev/sluice/internal/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/passes"
	"sluice.dev/sluice/internal/state"
)

// The time between two passes for which nobody waits: patientInterval if all that is to be cut are
// TCP and SCTP connections to backends that are gone, which are lost anyhow and only have to be told;
// otherwise passInterval. A pass walks the
// whole table, some ten milliseconds even if it is empty, whatever the number of filters.
const (
	passInterval    = time.Second
	patientInterval = 4 * time.Second
)

// cleanTime bounds the deletions of a pass; its reading has conntrack's own limit.
const cleanTime = time.Minute

// cleaner deletes the entries of connections that go where nobody serves them.
type cleaner struct {
	*passes.Passes

	mu   sync.Mutex
	todo cleaning
}

// cleaning is what a pass deletes.
type cleaning struct {
	filters []conntrack.Filter // the flows that any matches
	sweep   bool               // all that are not where the state sends them: what began or changed while nobody followed
	lost    []netip.Addr       // those that were given one of these addresses of the node's
}

func newCleaner(d *Driver) *cleaner {
	c := &cleaner{}
	c.Passes = passes.Start(func() error { return d.clean(c.next()) }, c.interval)
	return c
}

// clean has flows deleted. It takes over the slice.
func (c *cleaner) clean(filters []conntrack.Filter, sweep bool) {
	c.add(cleaning{filters: filters, sweep: sweep})
}

// cleanLost has the flows deleted that have an address which the node does not have any more: the
// next packet of a flow gets another one, where answers would not find the way back.
func (c *cleaner) cleanLost(addresses []netip.Addr) { c.add(cleaning{lost: addresses}) }

func (c *cleaner) add(w cleaning) {
	if len(w.filters)+len(w.lost) == 0 && !w.sweep {
		return
	}
	c.mu.Lock()
	c.todo.filters = append(c.todo.filters, w.filters...)
	c.todo.lost = append(c.todo.lost, w.lost...)
	c.todo.sweep = c.todo.sweep || w.sweep
	c.mu.Unlock()
	c.Ask()
}

// next takes what is to be deleted in a pass.
func (c *cleaner) next() cleaning {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.todo
	c.todo = cleaning{}
	return w
}

// interval is the time to the next pass, by what waits for it.
func (c *cleaner) interval() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	udp := func(f conntrack.Filter) bool { return f.Protocol == model.UDP }
	if c.todo.sweep || len(c.todo.lost) > 0 || slices.ContainsFunc(c.todo.filters, udp) {
		return passInterval
	}
	return patientInterval
}

// clean is a pass. By now a backend may have come back, and have new flows: these are left alone.
func (d *Driver) clean(w cleaning) error {
	ctx, cancel := context.WithTimeout(d.life, cleanTime)
	defer cancel()
	n, err := d.ct.Delete(ctx, w.filters, d.stillServed)
	sweep := func(doomed func(conntrack.Flow) bool) {
		swept, failed := d.ct.Sweep(ctx, doomed)
		n, err = n+swept, errors.Join(err, failed)
	}
	if w.sweep {
		sweep(d.goesAstray)
	}
	lost, failed := d.stillLost(w.lost)
	if err = errors.Join(err, failed); len(lost) > 0 {
		sweep(func(f conntrack.Flow) bool { return sentFrom(f, lost) })
	}
	if n > 0 {
		d.log.Debug("deleted connection tracking entries", "entries", n)
	}
	if err != nil {
		err = fmt.Errorf("delete connection tracking entries: %w", err)
		d.log.Warn("connections that go where nobody serves them may hang until they time out", "error", err)
	}
	return err
}

// goesAstray reports whether a connection goes where the state does not send it.
func (d *Driver) goesAstray(f conntrack.Flow) (is bool) {
	d.Held(func(s *state.State) { is = stale(s, f) })
	return is || d.farms.stale(&f)
}

// stillLost are those of the addresses that the node does not have again.
func (d *Driver) stillLost(addresses []netip.Addr) ([]netip.Addr, error) {
	if len(addresses) == 0 {
		return nil, nil
	}
	has, err := d.links.Addresses()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(addresses, func(a netip.Addr) bool {
		return slices.ContainsFunc(has, func(h link.Address) bool { return h.Prefix.Addr() == a })
	}), nil
}
