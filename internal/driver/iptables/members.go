package iptables

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"sluice.dev/sluice/internal/state"
)

// lookup is a set that rules of policy look something up in. There is one for each set of the state
// that rules name.
type lookup struct {
	kind byte
	id   state.SetID
}

// The kinds of lookups.
const (
	groupLookup = 'G'
	listLookup  = 'L'
	namedLookup = 'N'
	denyLookup  = 'D' // of all deny lists, whose number is 0
)

var lookupKinds = map[byte]string{groupLookup: "hash:ip", listLookup: "hash:net", namedLookup: "hash:ip,port", denyLookup: "hash:net"}

// lookupName is the name of the set.
func (f family) lookupName(l lookup) string {
	return f.name(fmt.Sprintf("P-%c-%06x", l.kind, uint32(l.id)))
}

// lookupOf is the type of the set for lookups that has the name, less that of its family; "": it is
// another.
func lookupOf(name string) string {
	if _, kind, is := strings.Cut(name, "P-"); is && len(kind) > 1 && kind[1] == '-' {
		return lookupKinds[kind[0]]
	}
	return ""
}

// elements yields those of a lookup.
func (f family) elements(p *state.Policy, l lookup, yield func(element)) {
	switch l.kind {
	case groupLookup:
		for a := range p.Groups[l.id] {
			if f.holds(a) {
				yield(element{addr: a})
			}
		}
	case namedLookup:
		for n := range p.NamedPorts[l.id] {
			if f.holds(n.Addr) {
				yield(element{addr: n.Addr, protocol: n.Protocol, port: n.Port})
			}
		}
	case listLookup:
		if list := p.Lists[l.id]; list != nil {
			f.prefixes(list.Prefixes, yield)
		}
	case denyLookup:
		for _, list := range p.Denied.Lists {
			f.prefixes(list.Prefixes, yield)
		}
	}
}

// prefixes yields what a set has of prefixes.
func (f family) prefixes(all []netip.Prefix, yield func(element)) {
	for _, p := range all {
		if f.holds(p.Addr()) {
			for _, p := range halves(p) {
				yield(element{net: p})
			}
		}
	}
}

// touched is the policy with only those members of sets that a change is about, or may be.
func touched(p *state.Policy, d state.PolicyDelta) *state.Policy {
	part := &state.Policy{Groups: map[state.SetID]map[netip.Addr]struct{}{}, NamedPorts: map[state.SetID]map[state.NamedPort]struct{}{},
		Lists: map[state.SetID]*state.List{}}
	pick(part.Groups, p.Groups, d.Groups)
	pick(part.NamedPorts, p.NamedPorts, d.NamedPorts)
	for id := range d.Lists {
		part.Lists[id] = p.Lists[id]
	}
	if d.Denied != nil {
		part.Denied = p.Denied
	}
	return part
}

func pick[M comparable](to, from map[state.SetID]map[M]struct{}, changed map[state.SetID]map[M]bool) {
	for id, members := range changed {
		to[id] = map[M]struct{}{}
		for m := range members {
			if _, is := from[id][m]; is {
				to[id][m] = struct{}{}
			}
		}
	}
}

// after is the policy after a change, which shares with the one before what does not change.
func after(p *state.Policy, d state.PolicyDelta) *state.Policy {
	next := *p
	next.Rules, next.Workloads, next.Hosts = maps.Clone(p.Rules), maps.Clone(p.Workloads), maps.Clone(p.Hosts)
	next.Lists, next.PortSets = maps.Clone(p.Lists), maps.Clone(p.PortSets)
	next.PodDevices, next.HostDevices = maps.Clone(p.PodDevices), maps.Clone(p.HostDevices)
	next.Groups, next.NamedPorts = maps.Clone(p.Groups), maps.Clone(p.NamedPorts)
	for id := range d.Groups {
		next.Groups[id] = maps.Clone(next.Groups[id])
	}
	for id := range d.NamedPorts {
		next.NamedPorts[id] = maps.Clone(next.NamedPorts[id])
	}
	next.Apply(d)
	return &next
}
