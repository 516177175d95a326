package upkeep

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// The time between two passes for which nobody waits: patientInterval if all that is to be cut are
// TCP and SCTP connections to backends that are gone, which are lost anyhow and only have to be
// told; otherwise passInterval. A pass walks the whole table, some ten milliseconds even if it is
// empty, whatever the number of filters.
const (
	passInterval    = time.Second
	patientInterval = 4 * time.Second
)

// cleanTime bounds the deletions of a pass; its reading has conntrack's own limit.
const cleanTime = time.Minute

// cleaning is what a pass deletes.
type cleaning struct {
	filters []conntrack.Filter // the flows that any matches
	sweep   bool               // all flows that go where the state does not send them: they began or changed while nothing followed them
	// lost are addresses that the node no longer has: flows masqueraded with one. The next packet
	// of such a flow would get another address, and answers would not find the way back.
	lost []netip.Addr
	// farms are former farms that were found by ranges, and are not found at all of them now.
	farms []*state.Farm
}

func (c *cleaning) merge(o cleaning) {
	c.filters, c.lost, c.farms = append(c.filters, o.filters...), append(c.lost, o.lost...), append(c.farms, o.farms...)
	c.sweep = c.sweep || o.sweep
}

// clean has the entries of connections deleted that go where nobody serves them.
func (d *Driver) clean(what cleaning) {
	if len(what.filters)+len(what.lost)+len(what.farms) > 0 || what.sweep {
		d.cleaner.Ask(what)
	}
}

// pause is the time until the pass that does it.
func (c cleaning) pause() time.Duration {
	udp := func(f conntrack.Filter) bool { return f.Protocol == model.UDP }
	if c.sweep || len(c.lost)+len(c.farms) > 0 || slices.ContainsFunc(c.filters, udp) {
		return passInterval
	}
	return patientInterval
}

// cleanNow is a pass. By now a backend may have come back, and have new flows: these are left alone.
func (d *Driver) cleanNow(what cleaning) error {
	ctx, cancel := context.WithTimeout(d.life, cleanTime)
	defer cancel()
	n, err := d.ct.Delete(ctx, what.filters, d.stillServed)
	sweep := func(doomed func(conntrack.Flow) bool) {
		swept, failed := d.ct.Sweep(ctx, doomed)
		n, err = n+swept, errors.Join(err, failed)
	}
	if what.sweep {
		sweep(d.goesAstray)
	}
	if len(what.farms) > 0 {
		sweep(func(f conntrack.Flow) bool { return d.farms.abandoned(what.farms, &f) })
	}
	lost, failed := d.stillLost(what.lost)
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

// goesAstray reports whether a connection goes where the state does not send it. Those to a proxy,
// which works while its agent does, go to the proxy, whatever the backend.
func (d *Driver) goesAstray(f conntrack.Flow) (is bool) {
	if f.Translated() && d.Capabilities().Can&driver.Survives == 0 {
		return false
	}
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
	return slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool {
		return slices.ContainsFunc(has, func(h link.Address) bool { return h.Prefix.Addr() == a })
	}), nil
}
