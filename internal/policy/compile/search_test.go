package compile

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
)

// complete holds what the indexes found against a search through everything.
func complete(t testing.TB, c *Compiler) {
	t.Helper()
	var all []*objects.Item
	all = slices.AppendSeq(all, maps.Values(c.objects.Pods))
	all = slices.AppendSeq(all, maps.Values(c.objects.Sets))
	all = slices.AppendSeq(all, maps.Values(c.objects.Hosts))
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
		case !p.progress.settled(), len(p.Groups) > 0 != (p.progress == filled && len(p.Selectors) > 0), len(p.tallies) > 0 && p.progress == filled:
			t.Errorf("progress %d, %d groups, %d tallies", p.progress, len(p.Groups), len(p.tallies))
		case refused && (n <= most || p.selected() <= most), !refused && p.selected() > most:
			t.Errorf("refused: %v, its selectors select %d: %d counted", refused, n, p.selected())
		}
		for _, tally := range p.tallies {
			if n := selected[strings.TrimPrefix(tally.Key, "group ")]; n != tally.Count {
				t.Errorf("%s selects %d addresses, not %d", tally.Key, n, tally.Count)
			}
		}
	}
	for ref, e := range c.endpoints.all {
		var want []*policy
		for _, p := range c.policies.all {
			if p.obj.Subject.Matches(e.item.Labels) {
				want = append(want, p)
			}
		}
		slices.SortFunc(want, comparePolicies)
		if got := c.policies.applying(e.item.Labels); !slices.Equal(got, want) {
			t.Errorf("%s has %d policies, want %d", ref, len(got), len(want))
		}
	}
}
