package upkeep

import (
	"cmp"
	"context"
	"hash/maphash"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// farms finds the farm that a connection was opened to. It follows what the driver holds, and is
// safe for concurrent use.
type farms struct {
	mu     sync.Mutex
	names  map[string]*state.Farm
	exact  map[state.FrontendKey]*state.Farm
	ranges map[string]*state.Farm // those that are found by ranges of ports, or at every address
}

func newFarms() *farms {
	return &farms{names: map[string]*state.Farm{}, exact: map[state.FrontendKey]*state.Farm{}, ranges: map[string]*state.Farm{}}
}

// translates reports whether connections to the farm have a backend in connection tracking.
func translates(f *state.Farm) bool { return f.Mode == model.SNAT || f.Mode == model.DNAT }

// keys are the addresses and ports of a farm that is found by single ones; none of one that is
// found by ranges.
func keys(f *state.Farm) (all []state.FrontendKey) {
	if f.InRanges() {
		return nil
	}
	f.Each(func(addr netip.Addr, _ bool, p model.Protocol, ports model.PortSpan) {
		all = append(all, state.FrontendKey{Addr: addr, Protocol: p, Port: ports.First})
	})
	return all
}

func (x *farms) put(name string, f *state.Farm) {
	if old := x.names[name]; old != nil {
		for _, k := range keys(old) {
			delete(x.exact, k)
		}
		delete(x.ranges, name)
		delete(x.names, name)
	}
	if f == nil {
		return
	}
	x.names[name] = f
	single := keys(f)
	for _, k := range single {
		x.exact[k] = f
	}
	if single == nil {
		x.ranges[name] = f
	}
}

// find returns the farm that a flow was opened to; nil: none.
func (x *farms) find(flow *conntrack.Flow) *state.Farm {
	if f := x.exact[state.FrontendKey{Addr: flow.Orig.Dst.Addr(), Protocol: flow.Protocol, Port: flow.Orig.Dst.Port()}]; f != nil {
		return f
	}
	for _, f := range x.ranges {
		if found(f, flow) {
			return f
		}
	}
	return nil
}

// found reports whether a flow was opened to an address and port of a farm.
func found(f *state.Farm, flow *conntrack.Flow) (is bool) {
	f.Each(func(addr netip.Addr, is4 bool, p model.Protocol, ports model.PortSpan) {
		is = is || p == flow.Protocol && is4 == flow.Orig.Dst.Addr().Is4() && (addr == flow.Orig.Dst.Addr() || !addr.IsValid()) &&
			ports.First <= flow.Orig.Dst.Port() && flow.Orig.Dst.Port() <= ports.Last
	})
	return is
}

// serves reports whether connections of a farm to a backend may go on.
func serves(f *state.Farm, backend netip.AddrPort) bool {
	return slices.ContainsFunc(f.Backends, func(b model.FarmBackend) bool {
		return b.State != model.BackendDown && b.Addr == backend.Addr() && (b.Port == 0 || b.Port == backend.Port())
	})
}

// stale reports whether a flow goes where its farm does not send it.
func (x *farms) stale(flow *conntrack.Flow) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := x.find(flow)
	switch {
	case f == nil || !translates(f):
		return false
	case !flow.Translated():
		return !flow.Answered() && len(f.Backends) > 0
	}
	return !serves(f, flow.Reply.Src)
}

// abandoned reports whether a flow goes to a backend of one of the former farms, by an address and
// port where no farm translates any more. What was answered, except for UDP, goes on.
func (x *farms) abandoned(were []*state.Farm, flow *conntrack.Flow) bool {
	if !flow.Translated() || flow.Protocol != model.UDP && flow.Answered() {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if f := x.find(flow); f != nil && translates(f) {
		return false
	}
	return slices.ContainsFunc(were, func(f *state.Farm) bool { return found(f, flow) && serves(f, flow.Reply.Src) })
}

// served reports whether a flow goes where a farm sends it.
func (x *farms) served(flow *conntrack.Flow) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := x.find(flow)
	return f != nil && serves(f, flow.Reply.Src)
}

// follow has x follow a change, and returns which flows may not go on after it.
func (x *farms) follow(changed map[string]*state.Farm) (c cleaning) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name, now := range changed {
		before := x.names[name]
		cut, sweep := farmCuts(before, now)
		c.filters, c.sweep = append(c.filters, cut...), c.sweep || sweep
		if before != nil && translates(before) && before.InRanges() && (now == nil || !translates(now) || !reflect.DeepEqual(before.Addresses, now.Addresses)) {
			c.farms = append(c.farms, before)
		}
		x.put(name, now)
	}
	return c
}

// replace has x follow all farms anew.
func (x *farms) replace(all *state.Farms) {
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.names)
	clear(x.exact)
	clear(x.ranges)
	if all != nil {
		for name, f := range all.Farms {
			x.put(name, f)
		}
	}
}

// farmCuts are the flows that may not go on when a farm changes: those to backends that are down or
// gone, and those that were not answered, or are of UDP, and went astray before the farm was there,
// or are where it is no more. A sweep looks for them where the farm is found by ranges.
func farmCuts(before, after *state.Farm) (cut []conntrack.Filter, sweep bool) {
	was, is := translatedAt(before), translatedAt(after)
	for _, k := range is {
		if !slices.Contains(was, k) {
			cut = append(cut, astray(k))
		}
	}
	for _, k := range was {
		if !slices.Contains(is, k) {
			cut = append(cut, abandoned(k))
		}
	}
	switch {
	case after == nil || !translates(after):
		return cut, false
	case before == nil || !translates(before):
		return cut, after.InRanges()
	}
	sweep = after.InRanges() && !reflect.DeepEqual(before.Addresses, after.Addresses)
	for _, b := range before.Backends {
		if b.State == model.BackendDown {
			continue
		}
		for _, k := range was {
			to := netip.AddrPortFrom(b.Addr, cmp.Or(b.Port, k.Port))
			if b.Addr.Is4() == k.Addr.Is4() && !serves(after, to) {
				cut = append(cut, conntrack.Filter{Protocol: k.Protocol, Frontend: netip.AddrPortFrom(k.Addr, k.Port), Backend: to})
			}
		}
		sweep = sweep || before.InRanges() && !serves(after, netip.AddrPortFrom(b.Addr, b.Port))
	}
	return cut, sweep
}

// translatedAt returns the addresses and ports at which a farm translates connections; none of nil.
func translatedAt(f *state.Farm) []state.FrontendKey {
	if f == nil || !translates(f) {
		return nil
	}
	return keys(f)
}

// FarmTraffic returns the connections of farms' backends, and what is sent in them; of farms whose
// modes track none there are none. It reads the whole table. Safe for concurrent use.
func (d *Driver) FarmTraffic(ctx context.Context) (map[driver.Backend]driver.Traffic, error) {
	d.flows.Lock()
	defer d.flows.Unlock()
	x := d.farms.copy()
	all, find := map[driver.Backend]driver.Traffic{}, map[string]func(netip.AddrPort) int{}
	for name, f := range x.names {
		find[name] = f.Finder()
	}
	err := d.ct.All(ctx, func(flow *conntrack.Flow) {
		f := x.find(flow)
		if f == nil {
			return
		}
		if i := find[f.Name](flow.Reply.Src); i >= 0 {
			b := driver.Backend{Farm: f.Name, Name: f.Backends[i].Name}
			sum := all[b]
			sum.Active, sum.Bytes = sum.Active+1, sum.Bytes+flow.Bytes
			all[b] = sum
			d.tally.Count(maphash.Comparable(d.seed, flowKey{flow.Protocol, flow.Orig}), b, driver.Counts{Bytes: flow.Bytes})
		}
	})
	if err != nil {
		return nil, err
	}
	d.tally.End(x.names, func(b driver.Backend, _ *state.Farm, got driver.Counts) {
		sum := all[b]
		sum.TotalBytes = got.Bytes
		all[b] = sum
	})
	return all, nil
}

// flowKey identifies a flow among those of its time.
type flowKey struct {
	model.Protocol
	conntrack.Tuple
}

// copy is what x has now.
func (x *farms) copy() *farms {
	x.mu.Lock()
	defer x.mu.Unlock()
	return &farms{names: maps.Clone(x.names), exact: maps.Clone(x.exact), ranges: maps.Clone(x.ranges)}
}
