package nftables

import (
	"fmt"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
)

// What is left to be done for a connection once it has its backend: that is remembered, and counted
// where the backend may have so many connections only.

// mostPorts is the most ports of a farm at which the connections of a backend without a port of its
// own are counted.
const mostPorts = 1024

// afterwards is the chain of what is left to be done; without a name: nothing is.
func (h *half) afterwards() nft.Chain {
	c := nft.Chain{Name: h.fp.ip.Name + "-after", Comment: "the connection has its backend"}
	rules := []nft.Rule{rule("the farm's number").Load(0, h.fp.origDest()...).Find(h.fp.numbers[kindOf(h.Farm)], 0, 0).SetPriority(0)}
	if h.bounded() {
		c.Name += "-count"
		rules = append(rules, rule("backends that may have so many connections").Load(0, h.fp.backend()...).FollowAnd(h.fp.backendLimits, 0))
	}
	if h.Persist != 0 {
		c.Name += fmt.Sprintf("-keep-%02x-%d", uint8(h.Persist), int(h.PersistFor.Seconds()))
		rules = append(rules, h.learn()...)
	}
	if len(rules) == 1 {
		return nft.Chain{}
	}
	c.Name += kindOf(h.Farm).String()
	c.Rules = append(rules, rule().ClearPriority())
	return c
}

// backend are the fields of the key of the backend that a connection has.
func (fp *family) backend() []nft.Field { return []nft.Field{nft.Priority, fp.ip.Daddr, nft.Dport} }

// bounded reports whether a backend may have so many connections only.
func (h *half) bounded() bool {
	for _, b := range h.Backends {
		if b.EstLimit > 0 {
			return true
		}
	}
	return false
}

// bounds yields how many connections backends may have.
func (h *half) bounds() {
	seen := map[nft.ElementKey]bool{}
	for i := range h.Backends {
		b := &h.Backends[i]
		if b.EstLimit == 0 || !h.fp.holds(b.Addr) {
			continue
		}
		c := h.limited(h.limit("backend", h.fp.backendCounts, model.FarmRate{}, b.EstLimit))
		h.chain(c.Name, func() nft.Chain { return c })
		for _, port := range h.portsOf(b) {
			e := nft.Element{Set: h.fp.backendLimits, Verdict: nft.Jump(c.Name)}
			e.AppendUint32(h.numbers.number(h.Name))
			e.Append(h.fp.ip.Addr(b.Addr)...)
			e.AppendPort(port)
			if !seen[e.ElementKey] {
				seen[e.ElementKey] = true
				h.element(&e)
			}
		}
	}
}

// portsOf are the ports that a backend is reached at.
func (h *half) portsOf(b *model.FarmBackend) (ports []uint16) {
	if h.HasPorts() && b.Port != 0 {
		return []uint16{b.Port}
	}
	for _, p := range h.addrs {
		for port := int(p.ports.First); port <= int(p.ports.Last) && len(ports) < mostPorts; port++ {
			ports = append(ports, uint16(port))
		}
	}
	return ports
}
