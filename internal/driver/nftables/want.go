package nftables

import (
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/state"
)

// This file turns desired state into elements. Every function yields each
// element once; the elements of different frontends never share a key.

// nftCommentMax is the longest comment that nft reads back.
const nftCommentMax = 127

// eachElement yields all elements of the state.
func (p *program) eachElement(s *state.State, yield func(*element)) {
	if s.Services != nil {
		p.eachServiceElement(s.Services, yield)
	}
	if s.Policy != nil {
		p.eachPolicyElement(s.Policy, yield)
	}
}

func (p *program) eachServiceElement(s *state.Services, yield func(*element)) {
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

func (p *program) clusterIPElement(a netip.Addr, yield func(*element)) {
	p.addressElement(p.family(a.Is4()).clusterIPs, a, yield)
}

func (p *program) otherIPElement(a netip.Addr, yield func(*element)) {
	p.addressElement(p.family(a.Is4()).otherIPs, a, yield)
}

func (p *program) addressElement(s *set, a netip.Addr, yield func(*element)) {
	e := element{set: s}
	e.append(p.family(a.Is4()).ip.addr(a)...)
	yield(&e)
}

func (p *program) hairpinElement(a netip.Addr, yield func(*element)) {
	fp := p.family(a.Is4())
	e := element{set: fp.hairpins}
	e.append(fp.ip.addr(a)...)
	e.append(fp.ip.addr(a)...)
	yield(&e)
}

func (p *program) settingsElements(s state.Settings, yield func(*element)) {
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

func (fp *familyProgram) holds(a netip.Addr) bool { return a.Is4() == (fp.ip.bits == 32) }

// cidrElements yields the family's prefixes as the two ends of an interval
// each. Prefixes inside others are left out, as intervals may not overlap.
func (fp *familyProgram) cidrElements(s *set, prefixes []netip.Prefix, yield func(*element)) {
	for _, c := range disjoint(prefixes) {
		if !fp.holds(c.Addr()) {
			continue
		}
		e := element{set: s}
		e.append(fp.ip.addr(c.Masked().Addr())...)
		yield(&e)
		// An interval without an end goes up to the last address.
		if next := lastAddr(c).Next(); next.IsValid() {
			e := element{set: s}
			e.append(fp.ip.addr(next)...)
			e.intervalEnd = true
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
func (p *program) frontendElements(k state.FrontendKey, f *state.Frontend, yield func(*element)) {
	fp := p.family(k.Addr.Is4())
	at := func(s *set) element {
		e := element{set: s}
		e.appendFrontend(fp.ip, k.Addr, uint8(k.Protocol), k.Port)
		return e
	}
	put := func(s *set, v verdict) {
		e := at(s)
		e.verdict = v
		if s == fp.frontends {
			e.comment = frontendComment(f)
		}
		yield(&e)
	}
	mark := func(s *set) { e := at(s); yield(&e) }

	put(fp.frontends, fp.serve(f.Backends, f.Reject, false))
	if staged(f) {
		mark(fp.staged)
	}
	fp.slotElements(k, f.Backends, false, yield)
	if f.LocalOnly {
		put(fp.outside, fp.serve(f.Local, f.Reject && len(f.Backends) == 0, true))
		fp.slotElements(k, f.Local, true, yield)
		put(fp.masquerade, goTo(fp.ip.name+"-keep"))
	} else if f.External() {
		put(fp.masquerade, goTo(fp.ip.name+"-masquerade"))
	}
	if len(f.SourceRanges) > 0 {
		mark(fp.restricted)
	}
	if timeout := affinity(f); timeout > 0 {
		mark(fp.affine)
		put(fp.learn, goTo(fp.learnName(timeout)))
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
func (fp *familyProgram) serve(backends []netip.AddrPort, reject, local bool) verdict {
	switch {
	case len(backends) > 0:
		return goTo(fp.pickName(class(len(backends)), local))
	case reject:
		return goTo(fp.ip.name + "-reject")
	}
	return dropIt
}

func (fp *familyProgram) slotElements(k state.FrontendKey, backends []netip.AddrPort, local bool, yield func(*element)) {
	slots := layout(backends)
	set := fp.slots(len(slots), local)
	for slot, b := range slots {
		if !b.IsValid() {
			continue
		}
		e := element{set: set}
		e.appendUint32(uint32(slot))
		e.appendFrontend(fp.ip, k.Addr, uint8(k.Protocol), k.Port)
		e.setData(fp.ip, b)
		yield(&e)
	}
}

func (fp *familyProgram) affineElements(k state.FrontendKey, f *state.Frontend, yield func(*element)) {
	one := func(b netip.AddrPort) {
		e := element{set: fp.affineBackends}
		e.appendFrontend(fp.ip, k.Addr, uint8(k.Protocol), k.Port)
		e.append(fp.ip.addr(b.Addr())...)
		e.appendPort(b.Port())
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
	yield(fp.learnName(affinity(f)), func() *ruling { return &ruling{chain: fp.learnChain(affinity(f))} })
}

// noteElement is what a note says in the comment of an element.
func (p *program) noteElement(id uint32, text string) *element {
	e := element{set: p.notes, comment: text[:min(len(text), nftCommentMax)]}
	e.appendUint32(id)
	return &e
}

const programNote = 0 // the key of the note on the program; the others are ids of sets
