package sets

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/lib/multimap"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/state"
)

// ports are the ports that a rule asks for. A nil one asks for nothing.
type ports struct {
	ranges *ranges // nil: none
	named  []*namedPorts
}

// portRanges are the sets of port ranges that rules refer to.
type portRanges struct {
	shared[string, ranges, *ranges]
	table diff.Map[state.SetID, state.Ports]
}

// ranges holds port ranges.
type ranges struct {
	handle
	list []state.PortRange
}

func (x *portRanges) hold(list []state.PortRange) *ranges {
	r, _ := x.shared.hold("ports " + abridged(list, rangeText))
	r.list = list
	return r
}

// portNames are the sets of the ports to which pods give a name.
type portNames struct {
	shared[namedPort, namedPorts, *namedPorts]
	items map[string]objects.ItemSet // by the names that they give to ports
	table memberTable[state.NamedPort]
}

// namedPort is a port that a rule asks for by name.
type namedPort struct {
	name     string
	protocol model.Protocol // 0: any
	local    bool           // of pods of this node alone
	service  model.Name     // the endpoints of this Service, in place of all that; see services
}

// namedPorts holds the ports to which pods give a name, or those of the endpoints of a Service. All
// rules that ask for the name share it, so that what these sets come to is bounded by the pods'
// ports.
type namedPorts struct {
	dynamic[state.NamedPort]
	of      namedPort
	service *service // that it is of; nil: of none
}

func (n *namedPorts) name(of namedPort) {
	if n.of, n.key = of, fmt.Sprintf("port %s %q here: %t", of.protocol, of.name, of.local); of.service != (model.Name{}) {
		n.key = "ports of service " + of.service.String()
	}
}

func (n *namedPorts) under() namedPort { return n.of }

// hold holds the ports of a name.
func (x *portNames) hold(of namedPort) *namedPorts {
	n, created := x.shared.hold(of)
	if !created {
		return n
	}
	for it := range x.items[of.name] {
		if of.local && !it.Local {
			continue
		}
		for _, p := range it.PortsNamed(of.name) {
			for _, a := range it.Addrs {
				if p.Port != 0 && (of.protocol == 0 || of.protocol == p.Protocol) {
					n.members.Add(state.NamedPort{Addr: a, Protocol: p.Protocol, Port: p.Port})
				}
			}
		}
	}
	return n
}

// set puts the ports that the item names into the sets, or takes them out.
func (x *portNames) set(it *objects.Item, in bool) {
	for name, at := range it.PortNames {
		if in {
			multimap.Add(x.items, name, it)
		} else {
			multimap.Remove(x.items, name, it)
		}
		for _, protocol := range []model.Protocol{0, at.Protocol} {
			for _, local := range []bool{false, true} {
				n := x.all[namedPort{name: name, protocol: protocol, local: local}]
				if n != nil && (it.Local || !local) {
					n.set(at, in)
					x.touch(n)
				}
			}
		}
	}
}

// ports resolves a list of ports of a rule, and has the rules hold their sets. Local says that
// only pods of this node can be meant. It returns nil where none of them can be met: they are of
// another protocol than the rule, or of none that has ports.
func (s *Sets) ports(rs *Rules, of *model.PolicyRule, in []model.PolicyPort, local bool) *ports {
	var plain []state.PortRange
	var named []namedPort
	var services []model.Name
	for _, port := range in {
		if port.Service != (model.Name{}) {
			services = append(services, port.Service)
			continue
		}
		if port.Name != "" && port.Protocol == 0 && of.Protocol == 0 {
			named = append(named, namedPort{name: port.Name, local: local})
			continue
		}
		for _, proto := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
			switch {
			case port.Protocol != 0 && port.Protocol != proto, of.Protocol != 0 && model.Protocol(of.Protocol) != proto:
			case port.Name != "":
				named = append(named, namedPort{name: port.Name, protocol: proto, local: local})
			case port.First <= port.Last:
				plain = append(plain, state.PortRange{Protocol: proto, First: port.First, Last: port.Last})
			}
		}
	}
	if len(plain)+len(named)+len(services) == 0 {
		return nil
	}
	all := &ports{}
	if len(plain) > 0 {
		all.ranges = s.ranges.hold(merged(plain))
		rs.ranges = append(rs.ranges, all.ranges)
	}
	slices.SortFunc(named, func(a, b namedPort) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.protocol, b.protocol))
	})
	for _, port := range slices.Compact(named) {
		all.named = append(all.named, s.named.hold(port))
	}
	slices.SortFunc(services, model.Name.Compare)
	for _, name := range slices.Compact(services) {
		n, cost := s.Services.holdPorts(name)
		all.named = append(all.named, n)
		rs.Units += cost
	}
	rs.named = append(rs.named, all.named...)
	return all
}

// resolve returns the ports under their present ids.
func (p *ports) resolve() *state.Ports {
	if p == nil {
		return nil
	}
	var all state.Ports
	if p.ranges != nil {
		all.ID, all.Ranges = p.ranges.id, p.ranges.list
	}
	for _, n := range p.named {
		all.Named = append(all.Named, n.id)
	}
	return &all
}

// merged returns the ranges sorted, with those that overlap or touch made one.
func merged(list []state.PortRange) []state.PortRange {
	slices.SortFunc(list, func(a, b state.PortRange) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	kept := list[:1]
	for _, r := range list[1:] {
		last := &kept[len(kept)-1]
		if r.Protocol == last.Protocol && int(r.First) <= int(last.Last)+1 {
			last.Last = max(last.Last, r.Last)
		} else {
			kept = append(kept, r)
		}
	}
	return kept
}

// rangeText writes a range as "TCP 8000-8100".
func rangeText(r state.PortRange) string {
	text := r.Protocol.String() + " " + strconv.Itoa(int(r.First))
	if r.Last != r.First {
		text += "-" + strconv.Itoa(int(r.Last))
	}
	return text
}
