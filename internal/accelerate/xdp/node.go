package xdp

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file is about what a node drops: packets from addresses on deny lists, those that doNotTrack
// policies deny, and those for load balancers' addresses from outside of their source ranges. Such
// an address is served as a farm is that has no backends, and two lists: one of the ranges, which
// lets pass, and one of everything.

// Names of lists, beside those of policies and of frontends.
const (
	denyList     = "deny lists"
	sourceRanges = "source ranges"
)

// work is what the program is to do.
type work struct {
	farms    map[string]*state.Farm
	lists    map[string]*list
	arrivals map[int]arrival // where packets arrive, by interface
}

// arrival is an interface that packets arrive by, and that there is something to do at.
type arrival struct {
	serves   bool     // farms
	denies   bool     // what deny lists do
	policies []string // doNotTrack policies with lists
	node     bool     // the first and the last only for packets that come to IP by it itself
}

// judges are the lists that all packets are looked up in.
func (a arrival) judges() []string {
	if a.denies {
		return append([]string{denyList}, a.policies...)
	}
	return a.policies
}

// node has the work be what a node drops, as the base holds it after a plan.
func (d *Driver) node(p *plan, held *state.State) {
	w := &d.work
	if p.all {
		*w, d.policies = work{farms: map[string]*state.Farm{}, lists: map[string]*list{}}, policies{}
	}
	w.arrivals = map[int]arrival{}
	if held.Policy == nil || d.Driver.Capabilities().Can&driver.UntrackedPolicy == 0 {
		return
	}
	if held.Services != nil && !d.unsure {
		if p.all {
			p.frontends = slices.Collect(maps.Keys(held.Services.Frontends))
		}
		for _, k := range p.frontends {
			p.restrict(k, held.Services.Frontends[k])
		}
	}
	if p.denied || p.all {
		w.lists[denyList] = denied(held.Policy.Denied)
		p.lists = append(p.lists, denyList)
	}
	if p.hosts || p.all {
		p.untracked(held.Policy)
	}
	for _, device := range held.Policy.Denied.Devices {
		if len(w.lists[denyList].ranges) > 0 {
			w.arrivals[device.Index] = arrival{denies: true}
		}
	}
	for index := range held.Policy.HostDevices {
		a, h := w.arrivals[index], held.Policy.Hosts[index]
		// Where there are doNotTrack policies, they may have packets pass services by.
		a.serves = d.restricts && (h == nil || h.UntrackedIn == "")
		if h != nil {
			a.policies = d.policies.at[h.UntrackedIn]
		}
		if a.serves || len(a.policies) > 0 {
			a.node = true
			w.arrivals[index] = a
		}
	}
}

// reason is why a list drops.
func reason(list string) state.Drop {
	switch list {
	case denyList:
		return state.DropDenyList
	case sourceRanges:
		return state.DropSourceRanges
	}
	return state.DropHost
}

// denied are deny lists as one list.
func denied(d state.Denied) *list {
	var all []netip.Prefix
	for _, l := range d.Lists {
		all = append(all, l.Prefixes...)
	}
	return listOf(all, shown)
}

// listOf makes a list of networks.
func listOf(all []netip.Prefix, then uint8) *list {
	l := &list{then: then, ranges: make([]model.AddressRange, 0, len(all))}
	for _, p := range all {
		l.ranges = append(l.ranges, model.AddressRange{First: p.Addr(), Last: model.Last(p)})
	}
	slices.SortFunc(l.ranges, func(a, b model.AddressRange) int { return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last)) })
	l.ranges = slices.Compact(l.ranges)
	return l
}

// restricted reports whether a frontend has other source ranges than the program knows.
func (d *Driver) restricted(k state.FrontendKey, f *state.Frontend) bool {
	l := d.work.lists[k.String()]
	if f == nil || len(f.SourceRanges) == 0 || l == nil {
		return (f != nil && len(f.SourceRanges) > 0) != (l != nil)
	}
	return !slices.Equal(listOf(f.SourceRanges, allowed).ranges, l.ranges)
}

// restrict has the work close a frontend to all but its source ranges; nil: there is none.
func (p *plan) restrict(k state.FrontendKey, f *state.Frontend) {
	w, name := &p.d.work, k.String()
	if f == nil || len(f.SourceRanges) == 0 {
		if w.farms[name] == nil {
			return
		}
		delete(w.farms, name)
		delete(w.lists, name)
	} else {
		w.lists[name] = listOf(f.SourceRanges, allowed)
		w.farms[name] = &state.Farm{Farm: &model.Farm{Name: name, Lists: []string{name, sourceRanges}, Addresses: []model.FarmAddress{{
			Addr: k.Addr, IPv4: k.Addr.Is4(), IPv6: k.Addr.Is6(), Protocols: []model.Protocol{k.Protocol}, Ports: []model.PortSpan{{First: k.Port, Last: k.Port}}}}}}
		if p.lists = append(p.lists, sourceRanges); w.lists[sourceRanges] == nil {
			w.lists[sourceRanges] = listOf([]netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}, unlessKnown)
		}
		p.d.restricts = true
	}
	p.farms, p.lists = append(p.farms, name), append(p.lists, name)
}

// policies are what doNotTrack policies deny for sure.
type policies struct {
	at        map[state.RulesID][]string // the policies with lists, by rules of host endpoints
	names     map[string]model.PolicyKey // of these lists
	uses      map[state.SetID]struct{}   // the lists of networks that they are made of
	failsafes [4 * (1 << 16) / 8]byte    // see drop.h
}

// untracked has the work deny what doNotTrack policies do.
func (p *plan) untracked(held *state.Policy) {
	w, before := &p.d.work, p.d.policies.names
	now := policies{at: map[state.RulesID][]string{}, names: map[string]model.PolicyKey{}, uses: map[state.SetID]struct{}{}}
	for _, h := range held.Hosts {
		if r := held.Rules[h.UntrackedIn]; r != nil && !p.d.unsure && now.at[r.ID] == nil {
			now.add(r, held.Lists, w.lists)
		}
	}
	p.lists = slices.AppendSeq(slices.AppendSeq(p.lists, maps.Keys(before)), maps.Keys(now.names))
	for name := range before {
		if _, is := now.names[name]; !is {
			delete(w.lists, name)
		}
	}
	p.d.policies = now
}

// add makes lists of the policies of some rules.
func (x *policies) add(r *state.Rules, of map[state.SetID]*state.List, to map[string]*list) {
	x.at[r.ID] = []string{}
	for _, t := range r.Tiers {
		for _, own := range t.Policies {
			if t.Failsafe() {
				x.spare(own.Rules)
				continue
			}
			nets, all := x.certain(own.Rules, of)
			if name := own.Policy.String(); len(nets) > 0 {
				to[name], x.names[name] = listOf(nets, unlessFailsafe), own.Policy
				x.at[r.ID] = append(x.at[r.ID], name)
			}
			if !all {
				return
			}
		}
	}
}

// certain returns networks from which rules deny packets whatever else there is about these; all:
// none of the rules lets a packet pass, or writes down that it is there.
func (x *policies) certain(rules []state.Rule, of map[state.SetID]*state.List) (nets []netip.Prefix, all bool) {
	for _, r := range rules {
		if r.Action != model.Deny {
			return nets, false
		}
		in, family := r.Source.In, r.Family
		r.Name, r.Family, r.Source.In = "", 0, nil
		if len(in) != 1 || !reflect.DeepEqual(r, state.Rule{Action: model.Deny}) {
			continue
		}
		for _, ref := range in[0].Lists {
			if x.uses[ref.ID] = struct{}{}; of[ref.ID] == nil {
				continue
			}
			for _, n := range of[ref.ID].Prefixes {
				if family == 0 || n.Addr().Is4() == (family == 4) {
					nets = append(nets, n)
				}
			}
		}
	}
	return nets, true
}

// spare has ports stay open that rules let pass.
func (x *policies) spare(rules []state.Rule) {
	for _, r := range rules {
		for source, ports := range []*state.Ports{r.Destination.Ports, r.Source.Ports} {
			if ports == nil {
				continue
			}
			for _, span := range ports.Ranges {
				kind, known := map[model.Protocol]int{model.TCP: 0, model.UDP: 2}[span.Protocol]
				for port := int(span.First); known && port <= int(span.Last); port++ {
					bit := (kind+source)<<16 | port
					x.failsafes[bit/8] |= 1 << (bit % 8)
				}
			}
		}
	}
}

// judge has all packets that arrive by interfaces be looked up in lists, and by no others. What has
// too many lengths of prefixes is left to the base, the last lists first. Its error is errFull
// where an interface's index is beyond what there is room for.
func (p *program) judge(at map[int]arrival, failsafes []byte) error {
	if _, err := p.failsafes.WriteAt(failsafes, 0); err != nil {
		return err
	}
	now := map[int64][]byte{}
	for index, a := range at {
		var b []byte
		for _, is4 := range []bool{true, false} {
			var first, n uint32
			for lists, ok := a.judges(), false; !ok; lists = lists[:max(0, len(lists)-1)] {
				var err error
				if first, n, ok, err = p.checksOf(lists, is4); err != nil {
					return err
				}
			}
			b = binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(b, first), n)
		}
		now[int64(index)] = b
	}
	for index := range p.judged {
		if now[index] == nil {
			now[index] = make([]byte, 16)
		}
	}
	for index, b := range now {
		at := index * int64(len(b))
		if at+int64(len(b)) > int64(p.arrivals.Size()) {
			return errFull
		}
		if _, err := p.arrivals.WriteAt(b, at); err != nil {
			return err
		}
		p.judged[index] = true
	}
	return nil
}
