package nftables

import (
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Farms whose servers answer clients themselves (DSR) are served as packets arrive by an interface,
// before routing and connection tracking: a packet goes to the backend as it is, except for the
// Ethernet addresses and a TTL that is lower by one. The kernel finds out the backend's Ethernet
// address, and holds the first packet until it has it.
//
// This is a table of its own, as only the family netdev can forward so.

// newIngress is the ruleset of the table of family netdev.
func newIngress(mayMiss bool) *ruleset {
	rs := &ruleset{Layout: table.Layout{NFProto: unix.NFPROTO_NETDEV, MayMiss: mayMiss}, before: []nft.Rule{
		rule("for other machines: this one only listens").PacketType(expr.CmpOpNeq, unix.PACKET_HOST).Accept(),
		rule("of a VLAN: it arrives again by the interface of that").Is(expr.CmpOpEq, nft.EtherType, []byte{0x81, 0x00}).Accept(),
		rule("the same, 802.1ad").Is(expr.CmpOpEq, nft.EtherType, []byte{0x88, 0xa8}).Accept(),
	}}
	for i, ip := range []nft.Family{nft.IPv4, nft.IPv6} {
		fp := &family{ip: ip}
		rs.families[i] = fp
		for k := range kinds {
			byDest := func(name, comment string, s nft.Set) *nft.Set {
				s.Key, s.Ranges = append(s.Key, fp.dest()...), k != exact
				return rs.set(ip.Name+"-"+name+k.String(), comment, s)
			}
			fp.ways[k] = byDest("ways", "slot . place : interface and address of the backend", nft.Set{Key: []nft.Field{nft.Mark}, Data: []nft.Field{nft.OIF, ip.Daddr}, Counted: true})
			fp.direct[k] = byDest("direct", "place where clients find a farm : the chain that forwards to a backend", nft.Set{Verdict: true})
			rs.arrivals = append(rs.arrivals, arrivalName(fp, k))
		}
	}
	rs.Notes = rs.set("notes", "what the agent needs to know when it starts", nft.Set{Key: []nft.Field{nft.Mark}})
	return rs
}

func arrivalName(fp *family, k kind) string { return fp.ip.Name + "-arrival" + k.String() }

// arrivalChain looks for farms of a kind.
func arrivalChain(fp *family, k kind) nft.Chain {
	return nft.Chain{Name: arrivalName(fp, k), Comment: "packets to farms", Rules: []nft.Rule{
		rule().Protocol(fp.ip).Load(0, fp.dest()...).Follow(fp.direct[k], 0),
	}}
}

// forward is a chain that forwards packets to one of a farm's backends.
type forward struct {
	pick
	tunnels bool // to some of them
}

func (c forward) name(fp *family) string {
	if c.tunnels {
		return c.pick.name(fp) + "-tunnel"
	}
	return c.pick.name(fp)
}

func (c forward) chain(fp *family) nft.Chain {
	const device, addr = 0, 1
	chain := nft.Chain{Name: c.name(fp), Comment: fmt.Sprintf("one of %d slots, packet by packet", c.slots), Rules: []nft.Rule{
		c.slot(fp, rule()).Load(atDest, fp.dest()...).Find(fp.ways[c.kind], atSlot, device).Forward(fp.ip, device, addr),
		rule("nothing goes elsewhere").Drop(),
	}}
	if c.tunnels {
		chain.Rules = slices.Insert(chain.Rules, 0, rule("what gets too long in a tunnel travels in fragments").MayFragment())
	}
	return chain
}

// forwarded yields what a farm becomes at ingress. Without a backend that serves it becomes nothing
// there: the other table has what clients are told.
func (h *half) forwarded() {
	if h.Mode != model.DSR || len(h.slots) == 0 {
		return
	}
	c := forward{h.steady(), false}
	c.hosts = false // ports stay for all
	for i, b := range h.Backends {
		c.tunnels = c.tunnels || h.fp.holds(b.Addr) && h.Tunnelled(i)
	}
	h.chain(c.name(h.fp), func() nft.Chain { return c.chain(h.fp) })
	for _, p := range h.addrs {
		h.chain(arrivalName(h.fp, p.kind), func() nft.Chain { return arrivalChain(h.fp, p.kind) })
		h.put(h.fp.direct, p, nft.Goto(c.name(h.fp)))
		for slot, index := range h.slots {
			if index == state.Empty {
				continue
			}
			e := h.fp.at(h.fp.ways, p, uint32(slot))
			e.SetData(append(uint32Bytes(uint32(h.Devices[index])), h.fp.ip.Addr(h.Backends[index].Addr)...))
			h.element(&e)
		}
	}
}
