package ruleset

import (
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file turns desired state into elements. Every function yields each
// element once; the elements of different frontends never share a key.

// EachElement yields all elements of the state.
func (rs *Ruleset) EachElement(s *state.State, yield func(*nft.Element)) {
	if s.Services != nil {
		rs.eachServiceElement(s.Services, yield)
	}
	if s.Policy != nil {
		rs.EachPolicyElement(s.Policy, yield)
	}
}

func (rs *Ruleset) eachServiceElement(s *state.Services, yield func(*nft.Element)) {
	rs.SettingsLists(s.Settings).Elements(yield)
	rs.DeviceElements(s.Settings, yield)
	for a := range s.ClusterIPs {
		rs.ClusterIPElement(a, yield)
	}
	for a := range s.OtherIPs {
		rs.OtherIPElement(a, yield)
	}
	for a := range s.Hairpins {
		rs.HairpinElement(a, yield)
	}
	for a := range s.Peers {
		rs.PeerElement(a, yield)
	}
	for k, f := range s.Frontends {
		rs.FrontendElements(k, f, yield)
		rs.SourceElements(k, f, yield)
	}
}

// ClusterIPElement yields what an address of a service becomes.
func (rs *Ruleset) ClusterIPElement(a netip.Addr, yield func(*nft.Element)) {
	rs.addressElement(rs.Family(a.Is4()).clusterIPs, a, yield)
}

// OtherIPElement yields what an address becomes that another program serves.
func (rs *Ruleset) OtherIPElement(a netip.Addr, yield func(*nft.Element)) {
	rs.addressElement(rs.Family(a.Is4()).OtherIPs, a, yield)
}

func (rs *Ruleset) addressElement(s *nft.Set, a netip.Addr, yield func(*nft.Element)) {
	e := nft.Element{Set: s}
	e.Append(rs.Family(a.Is4()).IP.Addr(a)...)
	yield(&e)
}

// HairpinElement yields what an endpoint on this node becomes.
func (rs *Ruleset) HairpinElement(a netip.Addr, yield func(*nft.Element)) {
	fp := rs.Family(a.Is4())
	e := nft.Element{Set: fp.hairpins}
	e.Append(fp.IP.Addr(a)...)
	e.Append(fp.IP.Addr(a)...)
	yield(&e)
}

// PeerElement yields what an address of another node becomes.
func (rs *Ruleset) PeerElement(a netip.Addr, yield func(*nft.Element)) {
	if s := rs.Family(a.Is4()).peers; s != nil {
		rs.addressElement(s, a, yield)
	}
}

// DeviceElements yields what the settings become beside lists of networks.
func (rs *Ruleset) DeviceElements(s state.Settings, yield func(*nft.Element)) {
	for _, t := range s.Tunnels {
		switch fp := rs.Family(t.Addr.Is4()); {
		case fp.vxlan == nil:
		case t.Port == 0:
			rs.addressElement(fp.ipip, t.Addr, yield)
		default:
			e := nft.Element{Set: fp.vxlan}
			e.Append(uint8(model.UDP), 0, 0, 0)
			e.AppendPort(t.Port)
			yield(&e)
		}
	}
	for _, a := range s.SNAT {
		if fp := rs.Family(a.Addr.Is4()); fp.snat != nil {
			e := nft.Element{Set: fp.snat}
			e.AppendName(a.Device)
			e.SetAddr(fp.IP, a.Addr)
			yield(&e)
		}
	}
}

// keptSources are the sources that reach a cluster IP with their own address: the
// cluster's; all, where the cluster's are not known; none with --masquerade-all.
func (fp *Family) keptSources(s state.Settings) []netip.Prefix {
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

func (fp *Family) holds(a netip.Addr) bool { return a.Is4() == (fp.IP.Bits == 32) }

// FrontendElements yields what one frontend puts into the sets, except for its source ranges.
func (rs *Ruleset) FrontendElements(k state.FrontendKey, f *state.Frontend, yield func(*nft.Element)) {
	fp := rs.Family(k.Addr.Is4())
	at := func(s *nft.Set) nft.Element {
		e := nft.Element{Set: s}
		e.AppendDestination(fp.IP, k.Addr, uint8(k.Protocol), k.Port)
		return e
	}
	put := func(s *nft.Set, v nft.Verdict) {
		e := at(s)
		e.Verdict = v
		if s == fp.Frontends {
			e.Comment = frontendComment(f)
		}
		yield(&e)
	}
	mark := func(s *nft.Set) { e := at(s); yield(&e) }

	if rs.ipvs && len(f.Backends) > 0 {
		put(fp.Frontends, nft.Goto(fp.ipvsName()))
	} else {
		put(fp.Frontends, fp.serve(f.Backends, f.Reject, false))
		fp.slotElements(k, f.Backends, false, yield)
	}
	if staged(f) {
		mark(fp.staged)
	}
	if f.LocalOnly {
		put(fp.outside, fp.serve(f.Local, f.Reject && len(f.Backends) == 0, true))
		fp.slotElements(k, f.Local, true, yield)
		put(fp.masquerade, nft.Goto(fp.IP.Name+"-keep"))
	} else if f.External() {
		put(fp.masquerade, nft.Goto(fp.IP.Name+"-masquerade"))
	}
	if len(f.SourceRanges) > 0 {
		mark(fp.restricted)
	}
	if timeout := AffinityTimeout(f); timeout > 0 {
		put(fp.learn, nft.Goto(fp.learnName(timeout)))
		fp.affineElements(k, f, yield)
	}
}

// Later are the sets in which elements of a frontend go later than in others, as packets that found
// it as it was before look them up still. It serves nobody where it goes, or has no backends any
// more.
func (rs *Ruleset) Later(k state.FrontendKey, before, after *state.Frontend) (sets []*nft.Set) {
	if before == nil || after == nil {
		return nil
	}
	fp := rs.Family(k.Addr.Is4())
	if len(before.Backends) > 0 && len(after.Backends) > 0 {
		if old := fp.slots(class(len(before.Backends)), false); old != fp.slots(class(len(after.Backends)), false) {
			sets = append(sets, old)
		}
	}
	if before.LocalOnly && len(before.Local) > 0 && (!after.LocalOnly || len(after.Local) > 0) {
		if old := fp.slots(class(len(before.Local)), true); !after.LocalOnly || old != fp.slots(class(len(after.Local)), true) {
			sets = append(sets, old)
		}
	}
	if len(before.SourceRanges) > 0 {
		sets = append(sets, fp.Sources)
	}
	return sets
}

// Late reports whether the set is one that Later may name.
func (rs *Ruleset) Late(s *nft.Set) bool {
	return slices.ContainsFunc(rs.Families[:], func(fp *Family) bool {
		return s == fp.Sources || slices.Contains(fp.Backends[:], s) || slices.Contains(fp.localBackends[:], s)
	})
}

// staged reports whether the frontend's connections pass the stages before a
// backend is chosen.
func staged(f *state.Frontend) bool {
	return f.LocalOnly || len(f.SourceRanges) > 0 || AffinityTimeout(f) > 0
}

// AffinityTimeout is the time-out in whole seconds, the API's unit; 0: none. A frontend without
// backends remembers nobody, so that its clients are refused at once.
func AffinityTimeout(f *state.Frontend) time.Duration {
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
func (fp *Family) serve(backends []netip.AddrPort, reject, local bool) nft.Verdict {
	switch {
	case len(backends) > 0:
		return nft.Goto(fp.pickName(class(len(backends)), local))
	case reject:
		return nft.Goto(fp.IP.Name + "-reject")
	}
	return nft.Drop
}

func (fp *Family) slotElements(k state.FrontendKey, backends []netip.AddrPort, local bool, yield func(*nft.Element)) {
	slots := layout(backends)
	set := fp.slots(len(slots), local)
	for slot, b := range slots {
		if !b.IsValid() {
			continue
		}
		e := nft.Element{Set: set}
		e.AppendUint32(uint32(slot))
		e.AppendDestination(fp.IP, k.Addr, uint8(k.Protocol), k.Port)
		e.SetAddrPort(fp.IP, b)
		yield(&e)
	}
}

func (fp *Family) affineElements(k state.FrontendKey, f *state.Frontend, yield func(*nft.Element)) {
	one := func(b netip.AddrPort) {
		e := nft.Element{Set: fp.affineBackends}
		e.AppendDestination(fp.IP, k.Addr, uint8(k.Protocol), k.Port)
		e.Append(fp.IP.Addr(b.Addr())...)
		e.AppendPort(b.Port())
		yield(&e)
	}
	for _, b := range f.Backends {
		one(b)
	}
	for _, b := range f.Local {
		if !state.Has(f.Backends, b) {
			one(b)
		}
	}
}

// EachChain yields the chains, beside the ruleset's own, that the state leads to.
func (rs *Ruleset) EachChain(s *state.State, yield ChainFunc) {
	if s.Services != nil {
		rs.SettingsChains(s.Services.Settings, yield)
		for k, f := range s.Services.Frontends {
			rs.FrontendChains(k, f, yield)
		}
	}
	if s.Policy != nil {
		rs.eachPolicyChain(s.Policy, yield)
	}
}

// SettingsChains yields the chains that the settings lead to.
func (rs *Ruleset) SettingsChains(s state.Settings, yield ChainFunc) {
	if !s.Untracked || len(s.Tunnels) == 0 {
		return
	}
	for _, c := range rs.outerChains() {
		yield(c.Name, func() *table.DynamicChain { return &table.DynamicChain{Chain: c} })
	}
}

// FrontendChains yields the learn chain of a frontend with affinity.
func (rs *Ruleset) FrontendChains(k state.FrontendKey, f *state.Frontend, yield ChainFunc) {
	if f == nil || AffinityTimeout(f) == 0 {
		return
	}
	fp := rs.Family(k.Addr.Is4())
	yield(fp.learnName(AffinityTimeout(f)), func() *table.DynamicChain { return &table.DynamicChain{Chain: fp.learnChain(AffinityTimeout(f))} })
}

// AffinityElement is the element of a client in the map of affinity, without a backend; addr is the
// client's address.
func (fp *Family) AffinityElement(addr []byte, k state.FrontendKey) nft.Element {
	e := nft.Element{Set: fp.Affinity}
	e.Append(addr...)
	e.AppendDestination(fp.IP, k.Addr, uint8(k.Protocol), k.Port)
	return e
}
