package verdict

import (
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// A client is taken to send from one of the ports that Linux picks where a program asks for none
// (net.ipv4.ip_local_port_range, as it is by default).
const firstClientPort, lastClientPort = 32768, 60999

// byClientPort is what a step says whose outcome depends on the port that the client sends from.
const byClientPort = "it depends on the port that the client sends from: rules ask for that"

// evaluateAny is Evaluate for a flow whose source port may not be known (0). Where it depends on
// that port, it is Unknown.
func evaluateAny(p *state.Policy, id state.RulesID, f Flow) (v Verdict, depends bool) {
	if f.SourcePort != 0 || !f.Ported() {
		return Evaluate(p, id, f), false
	}
	for i, port := range clientPorts(p, p.Rules[id], f) {
		f.SourcePort = port
		next := Evaluate(p, id, f)
		if i > 0 && next.Outcome != v.Outcome {
			return Verdict{Outcome: Unknown}, true
		}
		v = next
	}
	return v, false
}

// clientPorts returns a port of each range of which none of the rules tells one from another.
func clientPorts(p *state.Policy, rules *state.Rules, f Flow) []uint16 {
	list := []uint16{firstClientPort}
	if rules == nil {
		return list
	}
	from := func(port int) {
		if port > firstClientPort && port <= lastClientPort {
			list = append(list, uint16(port))
		}
	}
	for _, t := range rules.Tiers {
		for _, own := range t.Policies {
			for i := range own.Rules {
				for _, ports := range []*state.Ports{own.Rules[i].Source.Ports, own.Rules[i].Source.NotPorts} {
					eachRange(p, ports, f, func(first, last uint16) {
						from(int(first))
						from(int(last) + 1)
					})
				}
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// eachRange passes the ranges of ports of the flow's protocol, and the named ports of its source.
func eachRange(p *state.Policy, ports *state.Ports, f Flow, call func(first, last uint16)) {
	if ports == nil {
		return
	}
	for _, r := range ports.Ranges {
		if r.Protocol == model.Protocol(f.Protocol) {
			call(r.First, r.Last)
		}
	}
	for _, id := range ports.Named {
		for at := range p.NamedPorts[id] {
			if at.Addr == f.Source && at.Protocol == model.Protocol(f.Protocol) {
				call(at.Port, at.Port)
			}
		}
	}
}
