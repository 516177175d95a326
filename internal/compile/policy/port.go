package policy

import (
	"cmp"
	"slices"
	"strconv"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// ports are the ports that a rule asks for. A nil one asks for nothing.
type ports struct {
	ranges *ranges // nil: none
	named  []*namedPorts
}

// namedPort is a port that a rule asks for by name.
type namedPort struct {
	name     string
	protocol model.Protocol // 0: any
	local    bool           // of pods of this node alone
}

// ports resolves a list of ports of a rule; local says that only pods of this node can
// be meant. It returns nil where none of them can be met: they are of another protocol than the
// rule, or of none that has ports.
func (c *Compiler) ports(p *part, of *model.PolicyRule, in []model.PolicyPort, local bool) *ports {
	var plain []state.PortRange
	var named []namedPort
	for _, port := range in {
		if port.Name != "" && port.Protocol == 0 && of.Protocol == 0 {
			named = append(named, namedPort{port.Name, 0, local})
			continue
		}
		for _, proto := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
			switch {
			case port.Protocol != 0 && port.Protocol != proto, of.Protocol != 0 && model.Protocol(of.Protocol) != proto:
			case port.Name != "":
				named = append(named, namedPort{port.Name, proto, local})
			case port.First <= port.Last:
				plain = append(plain, state.PortRange{Protocol: proto, First: port.First, Last: port.Last})
			}
		}
	}
	if len(plain) == 0 && len(named) == 0 {
		return nil
	}
	all := &ports{}
	if len(plain) > 0 {
		all.ranges = c.holdRanges(merged(plain))
		p.ranges = append(p.ranges, all.ranges)
	}
	slices.SortFunc(named, func(a, b namedPort) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.protocol, b.protocol))
	})
	for _, port := range slices.Compact(named) {
		all.named = append(all.named, c.holdNamed(port))
	}
	p.named = append(p.named, all.named...)
	return all
}

// resolve returns the ports under their present ids.
func (p *ports) resolve() *state.Ports {
	if p == nil {
		return nil
	}
	var s state.Ports
	if p.ranges != nil {
		s.ID, s.Ranges = p.ranges.id, p.ranges.content.Ranges
	}
	for _, n := range p.named {
		s.Named = append(s.Named, n.id)
	}
	return &s
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
