package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// What is left of networks holds the addresses that are in one of them and in no exception, and no others.
func TestWithout(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	prefix := func(v6 bool) netip.Prefix {
		if v6 {
			return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 15: byte(r.UintN(256))}), 116+r.IntN(13)).Masked()
		}
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(r.UintN(256))}), 20+r.IntN(13)).Masked()
	}
	holds := func(list []netip.Prefix, a netip.Addr) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for range 500 {
		var nets, except []netip.Prefix
		for range 1 + r.IntN(3) {
			nets = append(nets, prefix(r.IntN(2) == 0))
		}
		for range r.IntN(6) {
			except = append(except, prefix(r.IntN(2) == 0))
		}
		left := without(nets, except)
		for i := range 256 {
			for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.AddrFrom4([4]byte{10, 0, 4, byte(i)}), netip.AddrFrom16([16]byte{0xfd, 15: byte(i)})} {
				if want := holds(nets, a) && !holds(except, a); holds(left, a) != want {
					t.Fatalf("%v without %v are %v: %s is in it: %v", nets, except, left, a, !want)
				}
			}
		}
	}
}

// A policy that would come to millions of elements is refused by name, before anything is made of it.
func TestTooLarge(t *testing.T) {
	addresses := func(n int) (list []netip.Prefix) {
		for i := range n {
			list = append(list, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 12: byte(i >> 16), 13: byte(i >> 8), 14: byte(i)}), 128))
		}
		return list
	}
	for name, tc := range map[string]struct {
		rule model.PolicyRule
		n    int
		want bool
	}{
		"exceptions":       {from(model.Peer{Nets: nets("::/0"), Except: addresses(10_000)}), 1, true},
		"a few exceptions": {from(model.Peer{Nets: nets("::/0"), Except: addresses(1000)}), 1, false},
		"networks":         {from(model.Peer{Nets: addresses(60_000)}), 1, false},
		"rules":            {model.PolicyRule{}, 10_000, true},
		"many rules":       {model.PolicyRule{}, 8000, false},
		"selectors":        {from(slices.Repeat([]model.Peer{app("web")}, 5000)...), 1, true},
	} {
		p := networkPolicy("large", ingress(slices.Repeat([]model.PolicyRule{tc.rule}, tc.n)...))
		c := compiled(config, model.Links{}, pod(1, "here", "app", "web"), p)
		issues := fmt.Sprint(c.Issues())
		if got := strings.Contains(issues, "NetworkPolicy shop/large") && strings.Contains(issues, "too large"); got != tc.want {
			t.Errorf("%s: refused: %v: %s", name, got, issues)
		}
		if views := c.Views(); (views[0].Refused != "") != tc.want {
			t.Errorf("%s: %+v", name, views)
		}
		if len(c.Policy().Programs) != 1 {
			t.Errorf("%s: the pod is not isolated", name)
		}
	}
}

// Network sets multiply with the rules that select them: beyond the budget a policy allows nothing, and is applied again when
// there are fewer.
func TestTooManyNetworkSets(t *testing.T) {
	var rules []model.PolicyRule
	for i := range 25 {
		rules = append(rules, from(model.Peer{Selector: model.Or(model.Equal("kind", "set"), model.Equal("name", fmt.Sprint(i)))}))
	}
	h := newHistory(config, idSpace)
	global := networkPolicy("many", ingress(rules...), func(p *model.Policy) { p.Key.Kind = model.GlobalNetworkPolicy })
	h.apply(t, event(pod(1, "here", "app", "web")), event(global))
	sets := func(n int) (events []store.Event) {
		for i := range n {
			set := &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.GlobalNetworkSet, Name: model.Name{Name: fmt.Sprint("s", i)}}, Labels: map[string]string{"kind": "set"}}
			for bits := 1; bits <= 32; bits++ {
				set.Nets = append(set.Nets, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), bits).Masked())
			}
			events = append(events, event(set))
		}
		return events
	}
	rulesIn := func() int {
		for _, p := range h.compiler.Policy().Programs {
			return len(p.Tiers[0].Policies[0].Rules)
		}
		return 0
	}
	h.apply(t, sets(10)...)
	if n := rulesIn(); n != 25 || len(h.compiler.Issues()) != 0 {
		t.Errorf("%d rules, %v", n, h.compiler.Issues())
	}
	h.apply(t, sets(20)...)
	if n := rulesIn(); n != 1 || len(h.compiler.Issues()) != 1 {
		t.Errorf("%d rules, %v", n, h.compiler.Issues())
	}
	var gone []store.Event
	for _, e := range sets(20)[10:] {
		e.Object = nil
		gone = append(gone, e)
	}
	h.apply(t, gone...)
	if n := rulesIn(); n != 25 || len(h.compiler.Issues()) != 0 {
		t.Errorf("%d rules, %v", n, h.compiler.Issues())
	}
}
