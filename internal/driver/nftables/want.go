package nftables

import "sluice.dev/sluice/internal/driver/nftables/nft"

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file turns desired state into elements. Every function yields each
// element once; the elements of different frontends never share a key.

// nftCommentMax is the longest comment that nft reads back.
const nftCommentMax = 127

// eachElement yields all elements of the state.
func (p *program) eachElement(s *state.State, yield func(*nft.Element)) {
	if s.Services != nil {
		p.eachServiceElement(s.Services, yield)
	}
	if s.Policy != nil {
		p.eachPolicyElement(s.Policy, yield)
	}
}

func (p *program) eachServiceElement(s *state.Services, yield func(*nft.Element)) {
	p.settingsElements(s.Settings, yield)
	for a := range s.ClusterIPs {
		p.clusterIPElement(a, yield)
	}
	for a := range s.OtherIPs {
		p.otherIPElement(a, yield)
	}
	for a := range s.Hairpins {
		p.hairpinElement(a, yield)
	}
	for k, f := range s.Frontends {
		p.frontendElements(k, f, yield)
		for _, c := range f.SourceRanges {
			p.sourceElements(k, c, yield)
		}
	}
}

func (p *program) clusterIPElement(a netip.Addr, yield func(*nft.Element)) {
	p.addressElement(p.family(a.Is4()).clusterIPs, a, yield)
}

func (p *program) otherIPElement(a netip.Addr, yield func(*nft.Element)) {
	p.addressElement(p.family(a.Is4()).otherIPs, a, yield)
}

func (p *program) addressElement(s *nft.Set, a netip.Addr, yield func(*nft.Element)) {
	e := nft.Element{Set: s}
	e.Append(p.family(a.Is4()).ip.Addr(a)...)
	yield(&e)
}

func (p *program) hairpinElement(a netip.Addr, yield func(*nft.Element)) {
	fp := p.family(a.Is4())
	e := nft.Element{Set: fp.hairpins}
	e.Append(fp.ip.Addr(a)...)
	e.Append(fp.ip.Addr(a)...)
	yield(&e)
}

func (p *program) settingsElements(s state.Settings, yield func(*nft.Element)) {
	for _, fp := range p.fam {
		fp.cidrElements(fp.serviceCIDRs, s.ServiceCIDRs, yield)
		fp.cidrElements(fp.podCIDRs, s.ClusterCIDRs, yield)
		fp.cidrElements(fp.ownCIDRs, s.LocalCIDRs, yield)
		fp.cidrElements(fp.keptCIDRs, fp.keptSources(s), yield)
	}
}

// keptSources are the sources that reach a cluster IP with their own address: the
// cluster's; all, where the cluster's are not known; none with --masquerade-all.
func (fp *familyProgram) keptSources(s state.Settings) []netip.Prefix {
	if s.MasqueradeAll {
		return nil
	}
	for _, c := range s.ClusterCIDRs {
		if fp.holds(c.Addr()) {
			return s.ClusterCIDRs
		}
	}
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}

func (fp *familyProgram) holds(a netip.Addr) bool { return a.Is4() == (fp.ip.Bits == 32) }

// cidrElements yields the family's prefixes as the two ends of an interval
// each. Prefixes inside others are left out, as intervals may not overlap.
func (fp *familyProgram) cidrElements(s *nft.Set, prefixes []netip.Prefix, yield func(*nft.Element)) {
	for _, c := range disjoint(prefixes) {
		if !fp.holds(c.Addr()) {
			continue
		}
		e := nft.Element{Set: s}
		e.Append(fp.ip.Addr(c.Masked().Addr())...)
		yield(&e)
		// An interval without an end goes up to the last address.
		if next := lastAddr(c).Next(); next.IsValid() {
			e := nft.Element{Set: s}
			e.Append(fp.ip.Addr(next)...)
			e.IntervalEnd = true
			yield(&e)
		}
	}
}

// disjoint are the prefixes without those that lie in others, in order.
func disjoint(prefixes []netip.Prefix) []netip.Prefix {
	sorted := slices.SortedFunc(slices.Values(prefixes), netip.Prefix.Compare) // one that holds others comes before them
	kept := sorted[:0]
	for _, c := range sorted {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(c) {
			kept = append(kept, c)
		}
	}
	return kept
}

func lastAddr(c netip.Prefix) netip.Addr {
	b := c.Masked().Addr().AsSlice()
	for i := c.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// frontendElements yields what one frontend puts into the sets, but for its source ranges.
func (p *program) frontendElements(k state.FrontendKey, f *state.Frontend, yield func(*nft.Element)) {
	fp := p.family(k.Addr.Is4())
	at := func(s *nft.Set) nft.Element {
		e := nft.Element{Set: s}
		e.AppendDestination(fp.ip, k.Addr, uint8(k.Protocol), k.Port)
		return e
	}
	put := func(s *nft.Set, v nft.Verdict) {
		e := at(s)
		e.Verdict = v
		if s == fp.frontends {
			e.Comment = frontendComment(f)
		}
		yield(&e)
	}
	mark := func(s *nft.Set) { e := at(s); yield(&e) }

	put(fp.frontends, fp.serve(f.Backends, f.Reject, false))
	if staged(f) {
		mark(fp.staged)
	}
	fp.slotElements(k, f.Backends, false, yield)
	if f.LocalOnly {
		put(fp.outside, fp.serve(f.Local, f.Reject && len(f.Backends) == 0, true))
		fp.slotElements(k, f.Local, true, yield)
		put(fp.masquerade, nft.Goto(fp.ip.Name+"-keep"))
	} else if f.External() {
		put(fp.masquerade, nft.Goto(fp.ip.Name+"-masquerade"))
	}
	if len(f.SourceRanges) > 0 {
		mark(fp.restricted)
	}
	if timeout := affinity(f); timeout > 0 {
		mark(fp.affine)
		put(fp.learn, nft.Goto(fp.learnName(timeout)))
		fp.affineElements(k, f, yield)
	}
}

// staged reports whether the frontend's connections pass the stages before a
// backend is chosen.
func staged(f *state.Frontend) bool {
	return f.LocalOnly || len(f.SourceRanges) > 0 || affinity(f) > 0
}

// affinity is the time-out in whole seconds, the API's unit; 0: none. A frontend without
// backends remembers nobody, so that its clients are refused at once.
func affinity(f *state.Frontend) time.Duration {
	if len(f.Backends) == 0 {
		return 0
	}
	return f.Affinity.Truncate(time.Second)
}

func frontendComment(f *state.Frontend) string {
	c := f.Service.String()
	if f.Port != "" {
		c += ":" + f.Port
	}
	if f.Kind != state.ClusterIP {
		c += " " + f.Kind.String()
	}
	return truncate(c)
}

// serve is the verdict for connections that may use the backends.
func (fp *familyProgram) serve(backends []netip.AddrPort, reject, local bool) nft.Verdict {
	switch {
	case len(backends) > 0:
		return nft.Goto(fp.pickName(class(len(backends)), local))
	case reject:
		return nft.Goto(fp.ip.Name + "-reject")
	}
	return nft.Drop
}

func (fp *familyProgram) slotElements(k state.FrontendKey, backends []netip.AddrPort, local bool, yield func(*nft.Element)) {
	slots := layout(backends)
	set := fp.slots(len(slots), local)
	for slot, b := range slots {
		if !b.IsValid() {
			continue
		}
		e := nft.Element{Set: set}
		e.AppendUint32(uint32(slot))
		e.AppendDestination(fp.ip, k.Addr, uint8(k.Protocol), k.Port)
		e.SetAddrPort(fp.ip, b)
		yield(&e)
	}
}

func (fp *familyProgram) affineElements(k state.FrontendKey, f *state.Frontend, yield func(*nft.Element)) {
	one := func(b netip.AddrPort) {
		e := nft.Element{Set: fp.affineBackends}
		e.AppendDestination(fp.ip, k.Addr, uint8(k.Protocol), k.Port)
		e.Append(fp.ip.Addr(b.Addr())...)
		e.AppendPort(b.Port())
		yield(&e)
	}
	for _, b := range f.Backends {
		one(b)
	}
	for _, b := range f.Local {
		if !containsSorted(f.Backends, b) {
			one(b)
		}
	}
}

// eachRuling yields the chains, beside the program's own, that the state leads to.
func (p *program) eachRuling(s *state.State, yield useChain) {
	if s.Services != nil {
		for k, f := range s.Services.Frontends {
			p.learnRuling(k, f, yield)
		}
	}
	if s.Policy != nil {
		p.eachPolicyRuling(s.Policy, yield)
	}
}

// learnRuling yields the learn chain of a frontend with affinity.
func (p *program) learnRuling(k state.FrontendKey, f *state.Frontend, yield useChain) {
	if f == nil || affinity(f) == 0 {
		return
	}
	fp := p.family(k.Addr.Is4())
	yield(fp.learnName(affinity(f)), func() *ruling { return &ruling{Chain: fp.learnChain(affinity(f))} })
}

// note replaces a note, and removes it with an empty text; old is what it said
// before, "" if there was none.
func (p *program) writeNote(b *nft.Batch, id uint32, old, text string) {
	b.Note(p.noteElement(id, old), p.noteElement(id, text))
}

// noteElement is what a note says in the comment of an element; nil without a text.
func (p *program) noteElement(id uint32, text string) *nft.Element {
	if text == "" {
		return nil
	}
	e := nft.Element{Set: p.notes, Comment: text[:min(len(text), nftCommentMax)]}
	e.AppendUint32(id)
	return &e
}

const programNote = 0 // the key of the note on the program; the others are ids of sets

// frontend is the frontend that the element is about, if it is about one.
func (p *program) frontend(e *nft.Element) (k state.FrontendKey, ok bool) {
	if p.ofPolicy(e.Set) || int(e.KeyLen) != nft.KeySize(e.Set.Key) {
		return k, false // not of services; or someone else's, in a table without an owner
	}
	fields, b := e.Set.Key, e.Key[:e.KeyLen]
	if m := fields[0].Datatype; m == nft.Number.Datatype || m == nft.Mark.Datatype {
		fields, b = fields[1:], b[4:]
	}
	if len(fields) < 3 || fields[1].Datatype != nft.L4Proto.Datatype {
		return k, false
	}
	return readFrontend(b, fields[0].Size), true
}

// readFrontend reads what appendDestination wrote; n is the size of an address.
func readFrontend(b []byte, n int) state.FrontendKey {
	addr, _ := netip.AddrFromSlice(b[:n])
	return state.FrontendKey{Addr: addr, Protocol: model.Protocol(b[n]), Port: binary.BigEndian.Uint16(b[n+4:])}
}
