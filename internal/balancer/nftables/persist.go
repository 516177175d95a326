package nftables

import (
	"fmt"
	"net/netip"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
)

// Clients that stay on their backend are in maps: sessions, which were given, and clients, which
// packets fill once they have been translated. A key is the farm, and behind it addresses and
// ports, or, in maps of their own, the source with Ethernet addresses: nft lists no key of more
// than five fields. What a farm does not look at is zero.

// memory are the two maps of one form of key.
type memory struct {
	parts             []model.FlowKey // of the key, behind the farm's number
	sessions, clients *nft.Set
}

// forms are the parts of the keys of all memories.
var forms = [][]model.FlowKey{
	{model.SrcIP, model.DstIP, model.SrcPort, model.DstPort},
	{model.SrcIP, model.SrcPort, model.SrcMAC, model.DstMAC},
}

// memory is where farms with a flow key remember.
func (fp *family) memory(key model.FlowKey) memory {
	if key&(model.SrcMAC|model.DstMAC) != 0 {
		return fp.memories[1]
	}
	return fp.memories[0]
}

// field is a part of a packet; of one that has been translated, as it was before.
func (fp *family) field(part model.FlowKey, translated bool) nft.Field {
	switch {
	case part == model.DstIP && translated:
		return fp.ip.OrigDaddr
	case part == model.DstPort && translated:
		return nft.CtOrigDport
	}
	return fp.flow(part)[0]
}

// client are the fields of the key of a packet's client.
func (fp *family) client(key model.FlowKey, translated bool) []nft.Field {
	fields := []nft.Field{nft.Priority}
	for _, part := range fp.memory(key).parts {
		f := fp.field(part, translated)
		if key&part == 0 {
			f = nft.Masked(f, 0)
		}
		fields = append(fields, f)
	}
	return fields
}

// keep is a chain that goes to the backend that the client has.
func (h *half) keep() nft.Chain {
	hosts, m := !h.HasPorts(), h.fp.memory(h.Persist)
	name := fmt.Sprintf("%s-keep-%02x", h.fp.ip.Name, uint8(h.Persist))
	if hosts {
		name += "-host"
	}
	to := func(comment string, in *nft.Set) nft.Rule {
		r := rule(comment).Load(0, h.fp.client(h.Persist, false)...).Find(in, 0, 0).ClearPriority()
		return pick{hosts: hosts}.translate(h.fp, r, 0)
	}
	return nft.Chain{Name: name, Comment: "clients that have a backend", Rules: []nft.Rule{
		to("that they were given", m.sessions), to("that they had before", m.clients),
	}}
}

// learn remembers the backend that a client has been led to, or tells that there is no room.
func (h *half) learn() []nft.Rule {
	clients, fields := h.fp.memory(h.Persist).clients, h.fp.client(h.Persist, true)
	data := nft.Registers(fields...)
	return []nft.Rule{
		rule("the client stays for ", h.PersistFor.String()).Load(0, fields...).
			Load(data, h.fp.ip.Daddr, nft.Dport).Learn(clients, 0, data, h.PersistFor).ClearPriority().Return(),
		alarm(rule("there was no room for the client, which is balanced anew each time"), clients),
	}
}

// sessions yields the clients whose backend is given.
func (h *half) sessions() {
	n := h.numbers.number(h.Name)
	for _, s := range h.Sessions {
		for i := range h.Backends {
			if b := &h.Backends[i]; b.Name == s.Backend && h.fp.holds(b.Addr) && h.Serves(i) {
				e := nft.Element{Set: h.fp.memory(h.Persist).sessions}
				e.AppendUint32(n)
				e.Append(h.fp.clientBytes(h.Persist, s.Client)...)
				e.SetAddrPort(h.fp.ip, netip.AddrPortFrom(b.Addr, h.portAt(h.addrs[0], b)))
				h.element(&e)
			}
		}
	}
}

// clientBytes is the key of a client, behind the farm's number.
func (fp *family) clientBytes(key model.FlowKey, v model.FlowValues) []byte {
	var k nft.ElementKey
	for _, part := range fp.memory(key).parts {
		b := fp.partBytes(part, v)
		if key&part == 0 {
			clear(b)
		}
		k.Append(b...)
	}
	return k.Key[:k.KeyLen]
}

// partBytes are a part of a key, in whole registers.
func (fp *family) partBytes(part model.FlowKey, v model.FlowValues) []byte {
	switch f := v.Field(part).(type) {
	case *netip.Addr:
		if !f.IsValid() || !fp.holds(*f) {
			return make([]byte, fp.ip.Bits/8)
		}
		return fp.ip.Addr(*f)
	case *uint16:
		return []byte{byte(*f >> 8), byte(*f), 0, 0}
	}
	return append(v.Field(part).(*[6]byte)[:], 0, 0)
}
