package compile

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// A policy that would come to millions of elements is refused by name, before anything is made of
// it.
func TestTooLarge(t *testing.T) {
	addresses := func(n int) (list []netip.Prefix) {
		for i := range n {
			list = append(list, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 12: byte(i >> 16), 13: byte(i >> 8), 14: byte(i)}), 128))
		}
		return list
	}
	names := func(n int) (r model.PolicyRule) {
		for i := range n {
			r.Destination.Ports = append(r.Destination.Ports, model.PolicyPort{Protocol: model.TCP, Name: fmt.Sprint("x", i)})
		}
		return r
	}
	many := slices.Repeat([]model.Peer{app("web")}, 5000)
	second := from(app("web"))
	second.Source.Peers = append(second.Source.Peers, many)
	for name, tc := range map[string]struct {
		rule model.PolicyRule
		n    int
		want bool
	}{
		"exceptions":       {from(model.Peer{Nets: nets("::/0"), Except: addresses(10_000)}), 1, true},
		"a few exceptions": {from(model.Peer{Nets: nets("::/0"), Except: addresses(1000)}), 1, false},
		"wide exceptions":  {from(model.Peer{Nets: addresses(1), Except: nets("0.0.0.0/0")}), 10_000, true},
		"networks":         {from(model.Peer{Nets: addresses(60_000)}), 1, false},
		"rules":            {model.PolicyRule{}, 10_000, true},
		"many rules":       {model.PolicyRule{}, 8000, false},
		"names":            {names(20_000), 1, true},
		"names and rules":  {names(3), 4000, true},
		"a few names":      {names(10_000), 1, false},
		"selectors":        {from(many...), 1, true},
		"of a second list": {second, 1, true},
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
		if len(c.Policy().Rules) != 1 {
			t.Errorf("%s: the pod is not isolated", name)
		}
	}
}

// What could be read of a policy at fault is refused just the same where it is too large.
func TestTooLargeAndAtFault(t *testing.T) {
	p := networkPolicy("large", ingress(slices.Repeat([]model.PolicyRule{{}}, 10_000)...))
	p.Refused = "spec.ingress[0].ports[0]: cannot be read"
	c := compiled(config, model.Links{}, pod(1, "here", "app", "web"), p)
	for _, rules := range c.Policy().Rules {
		for _, tier := range rules.Tiers {
			for _, own := range tier.Policies {
				if len(own.Rules) > 0 {
					t.Errorf("%d rules of %s are in force", len(own.Rules), own.Policy)
				}
			}
		}
	}
	if len(c.Policy().Rules) != 1 {
		t.Error("the pod is not isolated")
	}
}

// Network sets multiply with the rules that select them: beyond the budget a policy allows nothing,
// and is applied again when there are fewer.
func TestTooManyNetworkSets(t *testing.T) {
	var rules []model.PolicyRule
	for i := range 25 {
		rules = append(rules, from(model.Peer{Selector: model.Or(model.Equal("kind", "set"), model.Equal("name", fmt.Sprint(i)))}))
	}
	h := newHistory(config, sets.IDSpace)
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
		for _, p := range h.compiler.Policy().Rules {
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

// manyAddrs are n addresses of a network.
func manyAddrs(network, n int) (list []netip.Addr) {
	for i := range n {
		list = append(list, netip.AddrFrom4([4]byte{192, byte(network), byte(i >> 8), byte(i)}))
	}
	return list
}

// The many addresses of a host endpoint are there once, however many selectors select it; the few
// of another version are members of each group.
func TestHostEndpointOfManyAddresses(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	var rules []model.PolicyRule
	for i := range 50 {
		rules = append(rules, from(model.Peer{Selector: model.And(model.Has("host"), model.Not(model.Equal("name", fmt.Sprint(i))))}))
	}
	namesake := networkSet(model.GlobalNetworkSet, "h", "192.9.0.0/16")
	namesake.Labels = map[string]string{"host": "set"}
	h.apply(t, event(pod(1, "here", "app", "web")), event(namesake), event(networkPolicy("x", ingress(rules...))))
	six := netip.MustParseAddr("fd00::1")
	for _, step := range []struct {
		name           string
		addrs          []netip.Addr
		members, lists int
	}{
		{"few", manyAddrs(0, 10), 50 * 10, 1},
		{"many", manyAddrs(0, 9000), 0, 2},
		{"many others", manyAddrs(1, 9000), 0, 2},
		{"of both families", append(manyAddrs(1, 9000), six), 0, 2},
		{"the same many times", slices.Repeat(manyAddrs(2, 10), 100), 50 * 10, 1},
		{"many again", manyAddrs(2, 100), 0, 2},
		{"gone", nil, 0, 1},
	} {
		e := event(&model.HostEndpoint{Name: "h", Node: "there", Labels: map[string]string{"host": "yes"}, Addresses: step.addrs})
		if step.addrs == nil {
			e.Object = nil
		}
		h.apply(t, e)
		p := h.compiler.Policy()
		members := 0
		for _, g := range p.Groups {
			members += len(g)
		}
		if members != step.members || len(p.Lists) != step.lists {
			t.Errorf("%s: %d members, %d lists", step.name, members, len(p.Lists))
		}
		known := append(step.addrs, netip.MustParseAddr("192.9.1.1"))
		for _, a := range []netip.Addr{known[0], known[len(known)-1], manyAddrs(0, 1)[0], manyAddrs(1, 1)[0], manyAddrs(2, 1)[0], six} {
			for _, r := range rulesOf(p) {
				if got := verdict.Matches(p, &r, verdict.Flow{Source: a, Destination: pod(1, "").IPs[0]}); got != slices.Contains(known, a) {
					t.Fatalf("%s: %s matches: %v", step.name, a, got)
				}
			}
		}
		same(t, h.compiler, h.fresh())
		sound(t, p)
		complete(t, h.compiler)
	}
}

// rulesOf are those of the only policy.
func rulesOf(p *state.Policy) []state.Rule {
	for _, rules := range p.Rules {
		return rules.Tiers[0].Policies[0].Rules
	}
	return nil
}

// What the selectors of a policy select is bounded, whichever of the policy and the pods comes
// last: beyond, the policy allows nothing and has no sets, until they select less. Others that have
// selectors with it go on.
func TestTooManySelected(t *testing.T) {
	selecting := func(n int) (rules []model.PolicyRule) { // two rules for each selector, so that it counts once
		for i := range 2 * n {
			peer := model.Peer{Selector: model.And(model.Equal("pcns.many", "yes"), model.Has("many"), model.Not(model.Equal("name", fmt.Sprint(i/2))))}
			rules = append(rules, from(peer, model.Peer{Nets: nets("10.7.0.0/16")}))
		}
		return rules
	}
	policy := func(kind model.Kind, n int) store.Event {
		return event(networkPolicy("x", ingress(selecting(n)...), func(p *model.Policy) { p.Key.Kind = kind }))
	}
	pods := func(from, to int, node string, kv ...string) (events []store.Event) { // of two addresses each
		for i := from; i < to; i++ {
			p := pod(10+i, node, kv...)
			p.IPs = append(p.IPs, netip.AddrFrom16([16]byte{0xfd, 15: byte(10 + i)}))
			events = append(events, event(p))
		}
		return events
	}
	namespace := func(many string) []store.Event {
		return []store.Event{event(&model.Namespace{Name: "shop", Labels: map[string]string{"many": many}})}
	}
	for kind, denies := range map[model.Kind]int{model.NetworkPolicy: 0, model.GlobalNetworkPolicy: 1} {
		h := newHistory(config, sets.IDSpace)
		h.selected = 100
		h.apply(t, event(pod(1, "here", "app", "web")), event(pod(2, "here", "app", "api")), namespace("yes")[0],
			event(networkPolicy("small", ingress(selecting(1)...), func(p *model.Policy) { p.Subject = inShop(model.Equal("app", "api")) })))
		for _, step := range []struct {
			name   string
			events []store.Event
			fits   int // rules; 0: it is refused; -1: the other one as well
		}{
			{"ten selectors of nobody", []store.Event{policy(kind, 10)}, 20},
			{"of five pods", pods(0, 5, "there", "many", ""), 20},
			{"of a sixth", pods(5, 6, "there", "many", ""), 0},
			{"of many", pods(6, 49, "there", "many", ""), 0},
			{"of five again", gone(pods(5, 49, "there")), 20},
			{"an eleventh selector", []store.Event{policy(kind, 11)}, 0},
			{"five, of many pods", append(pods(5, 10, "there", "many", ""), policy(kind, 5)), 10},
			{"of a namespace with more", append(pods(10, 49, "there", "many", ""), namespace("no")...), 10},
			{"that they are of", namespace("yes"), 0},
			{"that they are not of", namespace("no"), 10},
			{"that they are of again", namespace("yes"), 0},
			{"of pods without the label", pods(10, 49, "there"), 10},
			{"of one alone, and its pods many", append(pods(10, 40, "there", "many", ""), policy(kind, 1)), 2},
			{"of one that selects too many", pods(40, 60, "there", "many", ""), -1},
		} {
			h.apply(t, step.events...)
			var got []state.Rule
			for _, p := range h.compiler.Policy().Rules {
				for _, own := range p.Tiers[0].Policies {
					if own.Policy.Name.Name == "x" {
						got = own.Rules
					}
				}
			}
			issues := fmt.Sprint(h.compiler.Issues())
			if refused := strings.Contains(issues, "NetworkPolicy shop/x") && strings.Contains(issues, "more than 100 addresses"); refused != (step.fits <= 0) {
				t.Errorf("%s, %s: refused: %v: %s", kind, step.name, refused, issues)
			}
			if step.fits > 0 && len(got) != step.fits || step.fits <= 0 && (len(got) != denies || denies > 0 && got[0].Action != model.Deny) {
				t.Errorf("%s, %s: %d rules", kind, step.name, len(got))
			}
			if n, want := groupsHeld(h.compiler), max(1, step.fits/2); n != want && (step.fits >= 0 || n > 0) {
				t.Errorf("%s, %s: %d groups", kind, step.name, n)
			}
			same(t, h.compiler, h.fresh())
			sound(t, h.compiler.Policy())
			complete(t, h.compiler)
		}
	}
}

func gone(events []store.Event) []store.Event {
	for i := range events {
		events[i].Object = nil
	}
	return events
}

// A policy that comes to millions of members at once is refused before any is stored, and one that
// is there already when pods come.
func TestTooManySelectedAtOnce(t *testing.T) {
	var rules []model.PolicyRule
	for i := range 500 {
		rules = append(rules, from(model.Peer{Selector: model.And(model.Equal("many", "yes"), model.Not(model.Equal("name", fmt.Sprint(i))))}))
	}
	p := networkPolicy("x", ingress(rules...))
	var pods []store.Event
	for i := range 10_000 {
		pods = append(pods, event(benchPod(i, "there", "many", "yes")))
	}
	for name, order := range map[string][][]store.Event{
		"pods first":   {pods, {event(p)}},
		"policy first": {{event(p)}, pods},
	} {
		c, s := New(config), store.New()
		s.Apply([]store.Event{event(pod(1, "here", "app", "web"))})
		var before, after runtime.MemStats
		for _, events := range order {
			s.Apply(events)
			runtime.ReadMemStats(&before)
			update(c, s, s.Take(), nil)
			runtime.ReadMemStats(&after)
		}
		if n := after.TotalAlloc - before.TotalAlloc; len(c.Issues()) != 1 || c.sets.Total() != 0 || n > 1<<30 {
			t.Errorf("%s: %d bytes, %d selected, %v", name, n, c.sets.Total(), c.Issues())
		}
	}
}

// What port names come to is bounded by the pods' ports, whatever rules combine them with.
func TestNamedPortsAreShared(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	to := func(n int, names ...string) (rules []model.PolicyRule) {
		for i := range n {
			var ports []model.PolicyPort
			for _, name := range append(names, fmt.Sprint("x", i)) {
				ports = append(ports, model.PolicyPort{Protocol: model.TCP, Name: name})
			}
			rules = append(rules, toPorts(ports...))
		}
		return rules
	}
	events := []store.Event{event(pod(1, "here", "app", "web")), event(networkPolicy("x", ingress(to(20, "http", "web")...), egress(to(20, "http", "dns")...)))}
	for i := range 50 {
		node := "there"
		if i < 5 {
			node = "here"
		}
		events = append(events, event(named(pod(10+i, node), "http", 8080)))
	}
	for _, step := range []struct {
		name    string
		events  []store.Event
		members int // each once for all pods and once for this node's
	}{
		{"all", events, 50 + 5},
		{"fewer pods", gone(slices.Clone(events[10:])), 8 + 5},
		{"another policy", []store.Event{event(networkPolicy("y", egress(to(10, "http", "ftp")...)))}, 8 + 5},
		{"no ingress", []store.Event{event(networkPolicy("x", egress(to(20, "http", "dns")...)))}, 8},
	} {
		h.apply(t, step.events...)
		p, members := h.compiler.Policy(), 0
		for _, ports := range p.NamedPorts {
			members += len(ports)
		}
		if members != step.members {
			t.Errorf("%s: %d members, want %d", step.name, members, step.members)
		}
		same(t, h.compiler, h.fresh())
		sound(t, p)
		complete(t, h.compiler)
	}
}

// What refused policies select is counted anew in the middle of a change of a namespace or of a
// service account, too.
func TestTooManySelectedWhileLabelsChange(t *testing.T) {
	for key, change := range map[string]func(many string) store.Event{
		"pcns.many": func(many string) store.Event {
			return event(&model.Namespace{Name: "shop", Labels: map[string]string{"many": many}})
		},
		"pcsa.many": func(many string) store.Event {
			return event(&model.ServiceAccount{Name: model.Name{Namespace: "shop", Name: "a"}, Labels: map[string]string{"many": many}})
		},
	} {
		h := newHistory(config, sets.IDSpace)
		h.selected = 100
		var rules []model.PolicyRule
		for i := range 20 {
			rules = append(rules, from(model.Peer{Selector: model.And(model.Equal(key, "yes"), model.Not(model.Equal("name", fmt.Sprint(i))))}))
		}
		events := []store.Event{
			event(&model.Namespace{Name: "prod", Labels: map[string]string{"many": "yes"}}),
			event(&model.ServiceAccount{Name: model.Name{Namespace: "prod", Name: "a"}, Labels: map[string]string{"many": "yes"}}),
			event(pod(1, "here", "app", "web")), event(networkPolicy("x", ingress(rules...))), change("yes"),
		}
		for i := range 55 {
			p := as("a", pod(10+i, "there"))
			if i < 45 {
				p = in("prod", p)
			}
			events = append(events, event(p))
		}
		h.apply(t, events...)
		for _, many := range []string{"no", "yes", "no"} {
			h.apply(t, change(many))
			same(t, h.compiler, h.fresh())
			complete(t, h.compiler)
		}
	}
}

// groupsHeld is how many groups the variants of all policies hold.
func groupsHeld(c *Compiler) int {
	held := map[string]struct{}{}
	for p := range c.variants.all {
		for _, g := range p.Groups {
			held[g.Key()] = struct{}{}
		}
	}
	return len(held)
}
