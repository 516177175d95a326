package compile

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/state"
)

// complete holds what the indexes found against a search through everything.
func complete(t testing.TB, c *Compiler) {
	t.Helper()
	var all []*objects.Item
	all = slices.AppendSeq(all, maps.Values(c.objects.Pods))
	all = slices.AppendSeq(all, maps.Values(c.objects.Sets))
	all = slices.AppendSeq(all, maps.Values(c.objects.Hosts))
	for _, g := range c.sets.groups.all {
		addrs := map[netip.Addr]struct{}{}
		lists := 0
		for _, it := range all {
			if !g.selector.Matches(it.Labels) {
				continue
			}
			for _, a := range it.Addrs {
				addrs[a] = struct{}{}
			}
			if it.Set != nil {
				lists++
			}
		}
		if !maps.Equal(addrs, c.policy.Groups[g.id]) || lists != len(g.lists) {
			t.Errorf("%s selects %v and %d lists, want %v and %d", g.key, c.policy.Groups[g.id], len(g.lists), addrs, lists)
		}
	}
	for p := range c.variants.all {
		selected := map[string]int{}
		for _, r := range p.from {
			for _, e := range []*model.RuleEnd{&r.Source, &r.Destination} {
				for _, peers := range append([][]model.Peer{e.NotPeers}, e.Peers...) {
					var some []model.Selector
					for _, peer := range peers {
						some = append(some, peer.Selector)
					}
					s, n := model.Or(some...), 0
					for _, it := range all {
						if s.Matches(it.Labels) {
							n += it.Size()
						}
					}
					selected[s.String()] = n
				}
			}
		}
		n := 0
		for _, addresses := range selected {
			n += addresses
		}
		// A rule that nothing can match selects as well, and does not count.
		most := c.variants.limits.Alone.Most
		switch refused := p.progress == refusedAlone; {
		case !p.progress.settled(), len(p.groups) > 0 != (p.progress == filled && len(p.selectors) > 0), len(p.tallies) > 0 && p.progress == filled:
			t.Errorf("progress %d, %d groups, %d tallies", p.progress, len(p.groups), len(p.tallies))
		case refused && (n <= most || p.selected() <= most), !refused && p.selected() > most:
			t.Errorf("refused: %v, its selectors select %d: %d counted", refused, n, p.selected())
		}
		for _, tally := range p.tallies {
			if n := selected[tally.selector.String()]; n != tally.count {
				t.Errorf("%s selects %d addresses, not %d", tally.selector, n, tally.count)
			}
		}
	}
	for _, n := range c.sets.named.all {
		if n.service != nil {
			continue
		}
		want := map[state.NamedPort]struct{}{}
		for _, it := range all {
			for name, at := range it.PortNames {
				if name == n.of.name && (n.of.protocol == 0 || n.of.protocol == at.Protocol) && (!n.of.local || it.Pod.Node == c.cfg.Node) {
					want[at] = struct{}{}
				}
			}
		}
		if !maps.Equal(want, c.policy.NamedPorts[n.id]) {
			t.Errorf("%s are %v, want %v", n.key, c.policy.NamedPorts[n.id], want)
		}
	}
	for _, e := range c.endpoints.pods {
		var want []*policy
		for _, p := range c.policies.all {
			if p.obj.Subject.Matches(e.item.Labels) {
				want = append(want, p)
			}
		}
		slices.SortFunc(want, comparePolicies)
		if got := c.policies.applying(e.item.Labels); !slices.Equal(got, want) {
			t.Errorf("pod %s has %d policies, want %d", e.item.Pod.Name, len(got), len(want))
		}
	}
}
