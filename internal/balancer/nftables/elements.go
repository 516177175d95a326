package nftables

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// content is what farms put into the table: elements, and the chains that they lead to.
type content struct {
	rs      *ruleset
	numbers *numbers
	lists   listings
	element func(*nft.Element)
	chain   func(name string, make func() nft.Chain)
}

// farm yields what a farm becomes; nil is none.
func (c content) farm(f *state.Farm) {
	if f == nil {
		return
	}
	for _, is4 := range []bool{true, false} {
		h := half{content: c, fp: c.rs.family(is4), Farm: f, slots: f.Table(is4).Slots}
		f.Each(func(addr netip.Addr, of4 bool, proto model.Protocol, ports model.PortSpan) {
			if of4 == is4 {
				h.addrs = append(h.addrs, virtualAddr{kindOf(f), addr, proto, ports})
			}
		})
		if len(h.addrs) > 0 {
			h.listed(c.lists)
			h.yield()
		}
	}
}

// half is a farm in one family.
type half struct {
	content
	*state.Farm
	fp    *family
	slots []int16
	addrs []virtualAddr
}

func (h *half) yield() {
	switch {
	case h.rs.NFProto == unix.NFPROTO_NETDEV:
		h.forwarded()
	case h.Mode == model.StatelessDNAT:
		h.stateless()
	case h.Mode == model.DSR && len(h.slots) > 0: // at ingress
	default:
		h.tracked()
	}
}

// tracked yields a farm whose connections are tracked.
func (h *half) tracked() {
	serve := h.serve()
	if h.staged() {
		serve = h.stages(serve)
	}
	h.enter(h.rs.serveChains(kindOf(h.Farm))...)
	for _, p := range h.addrs {
		h.put(h.fp.farms, p, h.at(p, serve))
		h.fill(p)
	}
	h.guard()
	h.refused()
	h.proxied()
	h.remember()
	if h.Mode == model.SNAT {
		h.out()
	}
}

// remember yields what rules know the farm's number for.
func (h *half) remember() {
	after := h.afterwards()
	if !h.staged() && after.Name == "" {
		return
	}
	for _, p := range h.addrs {
		e := h.fp.at(h.fp.numbers, p)
		e.SetData(uint32Bytes(h.numbers.number(h.Name)))
		h.element(&e)
	}
	if after.Name == "" {
		return
	}
	h.enter(append(h.rs.afterChains(kindOf(h.Farm)), after)...)
	for _, p := range h.addrs {
		h.put(h.fp.after, p, nft.Goto(after.Name))
	}
	h.bounds()
	if h.Persist != 0 {
		h.sessions()
	}
}

// put yields that a virtual address has a verdict.
func (h *half) put(maps [kinds]*nft.Set, p virtualAddr, v nft.Verdict) {
	e := h.fp.at(maps, p)
	e.Verdict = v
	h.element(&e)
}

// at is the verdict at a virtual address, which may stand for the machine's own addresses.
func (h *half) at(p virtualAddr, v nft.Verdict) nft.Verdict {
	if p.addr.IsValid() || v.Chain == "" {
		return v
	}
	own := own(h.fp, v.Chain)
	h.chain(own.Name, func() nft.Chain { return own })
	return nft.Goto(own.Name)
}

// serve is the verdict for the farm's connections.
func (h *half) serve() nft.Verdict {
	switch {
	case h.Mode == model.Local:
		return nft.Return
	case len(h.slots) > 0:
		p := h.pick()
		h.chain(p.name(h.fp), func() nft.Chain { return p.chain(h.fp) })
		return nft.Goto(p.name(h.fp))
	}
	return h.nobody()
}

// nobody is the verdict where no backend serves.
func (h *half) nobody() nft.Verdict {
	if !h.Refuse {
		return nft.Drop
	}
	h.chain(h.fp.ip.Name+"-refuse", func() nft.Chain { return refuse(h.fp) })
	return nft.Goto(h.fp.ip.Name + "-refuse")
}

// pick is the chain that chooses a backend.
func (h *half) pick() pick {
	p := pick{by: h.Scheduler, slots: len(h.slots), hosts: !h.HasPorts(), gaps: h.Scheduler.Draws(), kind: kindOf(h.Farm)}
	if p.by.Hashes() {
		p.by, p.key = model.Hash, h.HashBy
	}
	if p.by == model.RoundRobin {
		p.shard = int(h.numbers.number(h.Name) % shards)
	}
	if p.slots == 1 { // nothing to choose
		p = pick{by: model.Weighted, slots: 1, hosts: p.hosts, kind: p.kind}
	}
	return p
}

// kindOf says how a farm's virtual addresses are looked up.
func kindOf(f *state.Farm) kind {
	if f.InRanges() {
		return ranged
	}
	return exact
}

// portAt is the port of a backend for clients of a virtual address; 0: the port stays.
func (h *half) portAt(p virtualAddr, b *model.FarmBackend) uint16 {
	switch {
	case !h.HasPorts():
		return 0
	case b.Port == 0:
		return p.ports.First
	}
	return b.Port
}

// fill yields the slots of a virtual address.
func (h *half) fill(p virtualAddr) {
	for slot, index := range h.slots {
		if index == state.Empty {
			continue
		}
		b := &h.Backends[index]
		if port := h.portAt(p, b); port != 0 {
			e := h.fp.at(h.fp.slots, p, uint32(slot))
			e.SetAddrPort(h.fp.ip, netip.AddrPortFrom(b.Addr, port))
			h.element(&e)
		} else {
			e := h.fp.at(h.fp.hosts, p, uint32(slot))
			e.SetAddr(h.fp.ip, b.Addr)
			h.element(&e)
		}
	}
}

// out yields what becomes of clients' addresses.
func (h *half) out() {
	k := kindOf(h.Farm)
	given := h.sources()
	v := nft.Goto(h.fp.ip.Name + "-masquerade")
	if given {
		v = nft.Goto(sourceName(h.fp, k))
		h.chain(v.Chain, func() nft.Chain { return source(h.fp, k) })
	} else {
		h.chain(v.Chain, func() nft.Chain { return masquerade(h.fp) })
	}
	h.enter(h.rs.outChain(k))
	for _, p := range h.addrs {
		h.put(h.fp.out, p, v)
	}
}

// sources yields the addresses that are given in place of clients', and reports whether there are
// any.
func (h *half) sources() (given bool) {
	for _, p := range h.addrs {
		for _, a := range h.SourceAddrs {
			if h.fp.holds(a) {
				given = true
				e := h.fp.at(h.fp.sources, p)
				e.SetAddr(h.fp.ip, a)
				h.element(&e)
			}
		}
		named := map[netip.Addr]bool{}
		for _, b := range h.Backends {
			if p.kind == exact && b.SourceAddr.IsValid() && h.fp.holds(b.SourceAddr) && h.fp.holds(b.Addr) && !named[b.Addr] {
				given, named[b.Addr] = true, true
				e := nft.Element{Set: h.fp.backendSources}
				e.AppendDestination(h.fp.ip, p.addr, uint8(p.proto), p.ports.First)
				e.Append(h.fp.ip.Addr(b.Addr)...)
				e.SetAddr(h.fp.ip, b.SourceAddr)
				h.element(&e)
			}
		}
	}
	return given
}

// holds reports whether an address is of the family.
func (fp *family) holds(a netip.Addr) bool { return a.Is4() == fp.is4() }
