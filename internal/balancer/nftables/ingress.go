package nftables

import (
	"fmt"
	"slices"

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
// ICMP errors about what a backend has sent to a client come to the virtual address, too. They go
// to the backend that the client's packets go to, which is found by what they quote.
//
// This is a table of its own, as only the family netdev can forward so.

// newIngress is the ruleset of the table of family netdev.
func newIngress(mayMiss bool) *ruleset {
	rs := &ruleset{Layout: table.Layout{NFProto: unix.NFPROTO_NETDEV, MayMiss: mayMiss}}
	for i, ip := range []nft.Family{nft.IPv4, nft.IPv6} {
		fp := &family{ip: ip}
		rs.families[i] = fp
		ways := func(name string, k kind) *nft.Set {
			return rs.set(ip.Name+"-"+name+k.String(), "slot . place : interface and address of the backend",
				nft.Set{Key: append([]nft.Field{nft.Mark}, fp.dest()...), Ranges: k != exact, Data: []nft.Field{nft.OIF, ip.Daddr}, Counted: true})
		}
		for _, key := range commonKeys {
			c := forward{pick: pick{by: model.Hash, key: key, slots: state.CommonSlots}}
			fp.common = append(fp.common, ways(fmt.Sprintf("ways-%02x-%d", uint8(key), c.slots), exact))
			rs.arrivals = append(rs.arrivals, arrival{chain: c.name(fp), at: fp, shortcut: func(r nft.Rule) nft.Rule { return c.to(fp, r) }})
		}
		for k := range kinds {
			fp.ways[k] = ways("ways", k)
			fp.direct[k] = rs.set(ip.Name+"-direct"+k.String(), "place where clients find a farm : the chain that forwards to a backend",
				nft.Set{Key: fp.dest(), Ranges: k != exact, Verdict: true})
			rs.arrivals = append(rs.arrivals, arrival{chain: arrivalName(fp, k), at: fp})
		}
	}
	rs.Notes = rs.set("notes", "what the agent needs to know when it starts", nft.Set{Key: []nft.Field{nft.Mark}})
	return rs
}

func arrivalName(fp *family, k kind) string { return fp.ip.Name + "-arrival" + k.String() }

// arrivalChain looks for farms of a kind.
func arrivalChain(fp *family, k kind) nft.Chain {
	return nft.Chain{Name: arrivalName(fp, k), Comment: "packets to farms", Rules: []nft.Rule{
		rule().Load(0, fp.dest()...).Follow(fp.direct[k], 0),
		rule("an ICMP error about one").Quotes(fp.ip).Load(0, fp.quoted().dest()...).Follow(fp.direct[k], 0),
	}}
}

// arriving goes on with packets of a family that are for this machine. Frames of a VLAN arrive
// again by its interface.
func arriving(fp *family, ethernet bool) nft.Rule {
	r := rule(fmt.Sprintf("IPv%d, for this machine", fp.ip.Version()))
	if ethernet {
		r = r.Untagged(fp.ip)
	} else {
		r = r.Protocol(fp.ip)
	}
	return r.PacketType(unix.PACKET_HOST)
}

// commonKeys are what most farms choose by. Where such a farm has the common number of slots, its
// chain is not needed for packets that come by an interface: a rule of the interface itself draws
// the slot, and one look-up finds the backend. A packet of any other farm, for which it finds
// nothing, pays for that, so that each family has one such rule, for the first key in use.
var commonKeys = []model.FlowKey{model.SrcIP | model.SrcPort, model.SrcIP}

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

// ways is the map of the backends.
func (c forward) ways(fp *family) *nft.Set {
	if i := slices.Index(commonKeys, c.key); i >= 0 && c.by == model.Hash && c.slots == state.CommonSlots && c.kind == exact && !c.tunnels {
		return fp.common[i]
	}
	return fp.ways[c.kind]
}

// to forwards to the backend in the packet's slot.
func (c forward) to(fp *family, r nft.Rule) nft.Rule {
	const device, addr = 0, 1
	return c.slot(fp, r).Load(atDest, fp.dest()...).Find(c.ways(fp), atSlot, device).Forward(fp.ip, device, addr)
}

func (c forward) chain(fp *family) nft.Chain {
	chain := nft.Chain{Name: c.name(fp), Comment: fmt.Sprintf("one of %d slots, packet by packet", c.slots), Rules: []nft.Rule{
		c.to(fp, rule()),
		c.to(fp.quoted(), rule("ICMP errors").Quotes(fp.ip)),
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
			e.Set = c.ways(h.fp)
			e.SetData(append(uint32Bytes(uint32(h.Devices[index])), h.fp.ip.Addr(h.Backends[index].Addr)...))
			h.element(&e)
		}
	}
}
