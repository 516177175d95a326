package ruleset

import (
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// This file is about the lists of networks that new connections are looked up in: the addresses of
// services, of pods, of this node's pods. Nothing else of the ruleset depends on the state: the
// chains with rules for them are the list chains.

// addList adds a list of networks.
func (rs *Ruleset) addList(f nft.Family, name, comment string) *nft.Set {
	s := rs.AddSet(nft.NewList(f, name, comment))
	rs.Networks = append(rs.Networks, s)
	return s
}

// IsList reports whether the set is a list of networks.
func (rs *Ruleset) IsList(s *nft.Set) bool { return slices.Contains(rs.Networks, s) }

// IsListChain reports whether the chain is one of those whose rules depend on lists, or on deny
// lists.
func (rs *Ruleset) IsListChain(name string) bool { return rs.listChains[name] }

// Lists are those of a state.
func (rs *Ruleset) Lists(s *state.State) nft.Lists {
	all := nft.Lists{}
	if s.Services != nil {
		maps.Copy(all, rs.SettingsLists(s.Services.Settings))
	}
	if s.Policy != nil {
		maps.Copy(all, rs.PodLists(s.Policy.PodCIDRs))
	}
	return all
}

// ExampleLists are those that each have one network, and thus a rule where they are looked up.
func ExampleLists(of []*nft.Set) nft.Lists {
	all := nft.Lists{}
	for _, list := range of {
		all[list] = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 1)}
	}
	return all
}

// SettingsLists are those of services.
func (rs *Ruleset) SettingsLists(s state.Settings) nft.Lists {
	all := nft.Lists{}
	for _, fp := range rs.Families {
		all.Put(fp.IP, fp.serviceCIDRs, s.ServiceCIDRs)
		all.Put(fp.IP, fp.PodCIDRs, s.ClusterCIDRs)
		all.Put(fp.IP, fp.ownCIDRs, s.LocalCIDRs)
		all.Put(fp.IP, fp.keptCIDRs, fp.keptSources(s))
		if fp.outgoing != nil {
			all.Put(fp.IP, fp.outgoing, s.OutgoingCIDRs)
			all.Put(fp.IP, fp.pools, s.PoolCIDRs)
		}
	}
	return all
}

// PodLists are those of policy: the node's pod CIDRs.
func (rs *Ruleset) PodLists(cidrs []netip.Prefix) nft.Lists {
	all := nft.Lists{}
	for _, fp := range rs.Families {
		all.Put(fp.IP, fp.Policy.ownPods, cidrs)
	}
	return all
}

// Names of list chains.
const (
	strayInputChain = "stray-in"
	outgoingChain   = "outgoing"
)

// ListChains are the list chains with the rules for the lists. None depends on lists of services
// and on those of policy: they change apart.
func (rs *Ruleset) ListChains(l nft.Lists) []nft.Chain {
	stray := nft.Chain{Name: strayInputChain, Comment: "a stray segment of a backend would be answered with a reset"}
	for _, fp := range rs.Families {
		stray.Rules = append(stray.Rules, l.Rules(rule().Family(fp.IP), fp.PodCIDRs, fp.IP.Saddr, goTo(dropChain(state.DropStray)))...)
	}
	chains := []nft.Chain{stray}
	if rs.Families[0].outgoing != nil {
		c := nft.Chain{Name: outgoingChain, Comment: "natOutgoing: from a pod to an address that no pod can have"}
		for _, fp := range rs.Families {
			c.Rules = append(c.Rules, l.Rules(rule().Family(fp.IP), fp.pools, fp.IP.Daddr, nft.Rule.Return)...)
			c.Rules = append(c.Rules, l.Rules(rule().Family(fp.IP), fp.outgoing, fp.IP.Saddr, nft.Rule.Masquerade)...)
		}
		chains = append(chains, c)
	}
	for _, fp := range rs.Families {
		chains = append(chains, fp.serviceListChains(l)...)
		if rs.Policy != nil {
			chains = append(chains, rs.podListChains(fp, l)...)
		}
	}
	return nft.LookAgain(rs.MayMiss, chains...)
}

func goTo(chain string) func(nft.Rule) nft.Rule {
	return func(r nft.Rule) nft.Rule { return r.Goto(chain) }
}

func (fp *Family) serviceListChains(l nft.Lists) []nft.Chain {
	f, ours := fp.IP, rule().Family(fp.IP)
	n := func(s string) string { return f.Name + "-" + s }
	frontend := []nft.Field{f.Daddr, nft.L4Proto, nft.Dport}
	masquerade := nft.Rule.Masquerade
	if fp.snat != nil {
		masquerade = goTo(n("masquerade"))
	}
	kept, at := rule("session affinity").Family(f).FindIn(f, fp.Affinity, fp.affineBackends, false)
	lost, _ := rule("the client's backend is no longer one").Family(f).FindIn(f, fp.Affinity, fp.affineBackends, true)
	return []nft.Chain{
		{Name: n("services"), Comment: "where every new connection is looked up", Rules: concat([]nft.Rule{
			// A rule of its own and not a verdict of the map. To validate a verdict the kernel
			// walks all that can be reached behind every element, the maps of the stages included;
			// and a packet for which the stages come or go at this moment is served either way.
			ours.In(fp.staged, frontend...).Jump(n("stages")),
			ours.Vmap(fp.Frontends, frontend...),
			rule("a port that the service does not have").Family(f).In(fp.clusterIPs, f.Daddr).Jump(n("reject")),
		}, l.Rules(rule("an address that no service has").Family(f), fp.serviceCIDRs, f.Daddr, func(r nft.Rule) nft.Rule {
			return r.NotIn(fp.OtherIPs, f.Daddr).Drop()
		}))},
		{Name: n("stages"), Comment: "what some frontends have before the choice of a backend", Rules: concat([]nft.Rule{
			rule("loadBalancerSourceRanges").Family(f).In(fp.restricted, frontend...).Jump(n("sources")),
			kept.Destination(f, at, at+nft.Registers(f.Daddr)),
			lost.Delete(fp.Affinity, fp.Affinity.Key, fp.Affinity.Data),
		}, l.Rules(rule("from a pod").Family(f), fp.PodCIDRs, f.Saddr, nft.Rule.Return), []nft.Rule{
			rule("externalTrafficPolicy Local, seen from outside").Family(f).FromNode(false).Vmap(fp.outside, frontend...),
		})},
		{Name: n("source"), Comment: "masquerade where the answer would not find its way back", Rules: concat([]nft.Rule{
			rule().Vmap(fp.masquerade, origFrontend(f)...),
			rule("balanced back to itself").Family(f).In(fp.hairpins, f.Saddr, f.Daddr).Masquerade(),
			// The source first: it is a pod's for most connections, and the set of a few prefixes
			// is at hand, while one of all cluster IPs is a trip to memory.
		}, l.Rules(ours, fp.keptCIDRs, f.Saddr, nft.Rule.Return), []nft.Rule{
			masquerade(rule("a cluster IP, asked from outside the cluster").Family(f).In(fp.clusterIPs, f.OrigDaddr)),
		})},
		{Name: n("keep"), Comment: "externalTrafficPolicy Local: the client's address is kept, but for the node's own and for pods of other nodes", Rules: concat([]nft.Rule{
			masquerade(rule().FromNode(true)),
			ours.In(fp.hairpins, f.Saddr, f.Daddr).Masquerade(),
		}, l.Rules(ours, fp.ownCIDRs, f.Saddr, nft.Rule.Return), l.Rules(ours, fp.PodCIDRs, f.Saddr, masquerade), []nft.Rule{
			masquerade(rule("to a backend elsewhere, chosen before the policy was Local").Family(f).NotIn(fp.hairpins, f.Daddr, f.Daddr)),
		})},
	}
}

// podListChains find out what to do with packets of no known pod.
func (rs *Ruleset) podListChains(fp *Family, l nft.Lists) []nft.Chain {
	f, pods := fp.IP, fp.Policy
	unknown := func(by nft.Field) []nft.Rule {
		return l.Rules(rule("of this node's pods, and none that is known").Family(f), pods.ownPods, by, goTo(dropChain(state.DropUnknownPod)))
	}
	return []nft.Chain{
		{Name: f.Name + "-stranger", Comment: "not from a pod that is known by this address at this interface", Rules: concat([]nft.Rule{
			rule("it is routed there, and no pod is known").In(rs.Policy.PodDevices, nft.IIF).Goto(dropChain(state.DropUnknownPod)),
		}, unknown(f.Saddr), []nft.Rule{
			rule().NotIn(rs.Policy.HostDevices, nft.IIF).Goto(dropChain(state.DropUnknownDevice)),
		})},
		{Name: f.Name + "-received", Comment: "what may reach the destination", Rules: concat([]nft.Rule{
			rule().Family(f).Vmap(pods.To, f.Daddr),
		}, unknown(f.Daddr), []nft.Rule{
			rule("leaves by a pod's interface, or by one of which nothing is known").
				NotIn(rs.Policy.HostDevices, nft.OIF).Goto(dropChain(state.DropUnknownPod)),
		})},
	}
}
