package policy

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// ports are the ports that a rule asks for. A nil one asks for nothing.
type ports struct {
	ranges *ranges // nil: none
	named  []*namedPorts
}

// ports resolves a list of ports of a rule; local says that only pods of this node can
// be meant. It returns nil where none of them can be met: they are of another protocol than the
// rule, or of none that has ports.
func (c *Compiler) ports(p *part, of *model.PolicyRule, in []model.PolicyPort, local bool) *ports {
	var all ports
	var plain []state.PortRange
	for _, port := range in {
		for _, proto := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
			switch {
			case port.Protocol != 0 && port.Protocol != proto, of.Protocol != 0 && model.Protocol(of.Protocol) != proto:
			case port.Name != "":
				n := c.holdNamed(port.Name, proto, local)
				p.named = append(p.named, n)
				all.named = append(all.named, n)
			case port.First <= port.Last:
				plain = append(plain, state.PortRange{Protocol: proto, First: port.First, Last: port.Last})
			}
		}
	}
	if len(plain) > 0 {
		all.ranges = c.holdRanges(merged(plain))
		p.ranges = append(p.ranges, all.ranges)
	}
	if all.ranges == nil && all.named == nil {
		return nil
	}
	slices.SortFunc(all.named, func(a, b *namedPorts) int { return strings.Compare(a.key, b.key) })
	all.named = slices.Compact(all.named)
	return &all
}

// resolve returns the ports under their present ids.
func (p *ports) resolve() *state.Ports {
	if p == nil {
		return nil
	}
	var s state.Ports
	var text []string
	if p.ranges != nil {
		s = p.ranges.content
		s.ID = p.ranges.id
		text = append(text, s.Text)
	}
	for _, n := range p.named {
		s.Named = append(s.Named, n.id)
		text = append(text, n.protocol.String()+" "+n.name)
	}
	s.Text = strings.Join(text, ", ")
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

// rangeTexts writes ranges as "TCP 80, 8000-8100, UDP 53".
func rangeTexts(list []state.PortRange) string {
	var b strings.Builder
	for i, r := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == 0 || list[i-1].Protocol != r.Protocol {
			b.WriteString(r.Protocol.String() + " ")
		}
		b.WriteString(strconv.Itoa(int(r.First)))
		if r.Last != r.First {
			b.WriteString("-" + strconv.Itoa(int(r.Last)))
		}
	}
	return b.String()
}
