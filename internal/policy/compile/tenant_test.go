package compile

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

func global(tier string, order float64) func(*model.Policy) {
	return func(p *model.Policy) {
		p.Key.Kind, p.Key.Name.Namespace, p.Tier, p.Order = model.GlobalNetworkPolicy, "", tier, order
	}
}

// judged is what becomes of a packet from an address to the pod at 10.0.0.1.
func judged(h *history, from string) model.Action {
	p := h.compiler.Policy()
	w := p.Workloads[netip.MustParseAddr("10.0.0.1")]
	if w == nil || w.Ingress == "" {
		return model.Allow
	}
	return judge(p, p.Rules[w.Ingress], netip.MustParseAddr(from))
}

func judge(p *state.Policy, rules *state.Rules, a netip.Addr) model.Action {
	in := func(term state.Term) bool {
		for _, g := range term.Groups {
			if _, ok := p.Groups[g][a]; ok {
				return true
			}
		}
		for _, l := range term.Lists {
			if p.Lists[l.ID] != nil && slices.ContainsFunc(p.Lists[l.ID].Prefixes, func(n netip.Prefix) bool { return n.Contains(a) }) {
				return true
			}
		}
		return false
	}
	for _, tier := range rules.Tiers {
		verdict := tier.Default
	policies:
		for _, own := range tier.Policies {
			for _, r := range own.Rules {
				if slices.ContainsFunc(r.Source.In, func(t state.Term) bool { return !in(t) }) || slices.ContainsFunc(r.Source.NotIn, in) {
					continue
				}
				verdict = r.Action
				break policies
			}
		}
		if verdict != model.Pass {
			return verdict
		}
	}
	return rules.Default
}

// A set that is refused is empty at once; a Deny of it must not wait in the queue meanwhile.
func TestRefusedSetDoesNotOpen(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	set := &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.GlobalNetworkSet, Name: model.Name{Name: "bad"}}, Labels: map[string]string{"bad": "yes"}, Nets: nets("10.9.0.0/16")}
	deny := from(model.Peer{Selector: model.Equal("bad", "yes")})
	deny.Action = model.Deny
	allow := model.PolicyRule{Name: "all", Action: model.Allow}
	h.apply(t, append(manyPods(100), event(pod(1, "here", "app", "web")), event(set),
		event(networkPolicy("deny", ingress(deny, allow), global("default", 1))))...)
	if v := judged(h, "10.9.0.1"); v != model.Deny {
		t.Fatalf("before: %v", v)
	}
	h.room = 64
	h.apply(t, event(large("x", 10))) // a tenant's, which fills the slice
	bad := *set
	bad.Nets, bad.Refused = nil, "no file"
	var events []store.Event
	for i := range 20 {
		events = append(events, event(large(fmt.Sprint("y", i), 10)))
	}
	h.apply(t, append(events, event(&bad))...)
	steps := 0
	for n := 1; n > 0; n, _ = h.compiler.Waiting() {
		if v := judged(h, "10.9.0.1"); v != model.Deny {
			steps++
		}
		h.apply(t)
	}
	if steps > 0 {
		t.Errorf("what the policy denies passes for %d steps", steps)
	}
}

// A tier that moves takes all of its policies along, or none.
func TestTierMoves(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	allow := func(label string) model.PolicyRule {
		return model.PolicyRule{Name: "r", Action: model.Allow, Source: model.RuleEnd{Peers: [][]model.Peer{{{Selector: model.Equal("many", label)}}}}}
	}
	tier := model.Tier{Name: "own", Order: 10}
	big := large("big", 10, global("own", 1))
	for i := range big.IngressRules {
		big.IngressRules[i].Action = model.Deny // all pods of the crowd
	}
	h.apply(t, append(manyPods(100), event(pod(1, "here", "app", "web")), event(pod(200, "there", "only", "small")), event(&tier), event(big),
		event(networkPolicy("small", ingress(allow("yes"), model.PolicyRule{Name: "small", Action: model.Allow, Source: model.RuleEnd{Peers: [][]model.Peer{{{Selector: model.Equal("only", "small")}}}}}), global("own", 2))))...)
	look := func(when string) {
		t.Helper()
		if v := judged(h, "10.0.0.10"); v != model.Deny {
			t.Errorf("%s: the first policy of the tier denies it: %v", when, v)
		}
		if v := judged(h, "10.0.0.200"); v != model.Allow {
			t.Errorf("%s: the second policy of the tier allows it: %v", when, v)
		}
	}
	look("before")
	h.room = 8
	for _, order := range []float64{5, 20} {
		moved := tier
		moved.Order = order
		h.apply(t, event(&moved))
		for n := 1; n > 0; n, _ = h.compiler.Waiting() {
			look(fmt.Sprint("on the way to ", order))
			h.apply(t)
		}
	}
}

// Tenants at the limit of all do not shut the node when a policy of host endpoints changes.
func TestHostAtTheLimit(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	h.together, h.again = 1000, 125
	h.links = &model.Links{Links: []model.Link{{Index: 2, Name: "eth0", Host: true}}}
	in := func(namespace string) func(*model.Policy) {
		return func(p *model.Policy) { p.Key.Name.Namespace, p.Subject = namespace, model.Everything() }
	}
	host := &model.HostEndpoint{Name: "h", Node: "here", Interface: "eth0", Labels: map[string]string{"host": "yes"}}
	own := func(label string) *model.Policy {
		p := networkPolicy("host", ingress(model.PolicyRule{Name: "r", Action: model.Allow, Source: model.RuleEnd{Peers: [][]model.Peer{{{Selector: model.And(model.Equal("many", "yes"), model.Not(model.Equal("x", label)))}}}}}), global("default", 1))
		p.Subject = model.Equal("host", "yes")
		return p
	}
	h.apply(t, append(manyPods(100), event(host), event(pod(1, "here", "app", "web")), event(own("a")))...)
	h.room = 64
	for i := range 2 {
		h.apply(t, event(large(fmt.Sprint("t", i), 4, in(fmt.Sprint("tenant", i)))))
	}
	h.apply(t, event(large("t2", 1, in("tenant2"))))
	h.finish(t)
	look := func() model.Action {
		p := h.compiler.Policy()
		return judge(p, p.Rules[p.Hosts[2].Input], netip.MustParseAddr("10.0.0.10"))
	}
	if v := look(); v != model.Allow {
		t.Fatalf("before: %v, total %d", v, h.compiler.sets.Total())
	}
	h.apply(t, event(own("b")))
	steps := 0
	for n := 1; n > 0; n, _ = h.compiler.Waiting() {
		if look() != model.Allow {
			steps++
		}
		h.apply(t)
	}
	if look() != model.Allow {
		t.Errorf("the administrator's policy is refused in the end")
	}
	if steps > 0 {
		t.Errorf("the node is shut for %d steps", steps)
	}
}

// The same of a tenant's small policy that changes: what both versions allow passes.
func TestChangeAtTheLimit(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	h.together, h.again = 1000, 125
	in := func(namespace string) func(*model.Policy) {
		return func(p *model.Policy) { p.Key.Name.Namespace, p.Subject = namespace, model.Everything() }
	}
	h.apply(t, append(manyPods(100), event(pod(1, "here", "app", "web")), event(large("honest", 1)))...)
	h.room = 64
	for i := range 2 {
		h.apply(t, event(large(fmt.Sprint("t", i), 4, in(fmt.Sprint("tenant", i)), func(p *model.Policy) { p.Subject = model.Equal("app", "tenant") })))
	}
	h.apply(t, event(large("t2", 1, in("tenant2"), func(p *model.Policy) { p.Subject = model.Equal("app", "tenant") })), event(pod(2, "here", "app", "tenant")))
	h.finish(t)
	if judged(h, "10.0.0.10") != model.Allow {
		t.Fatalf("before")
	}
	h.apply(t, event(large("honest", 2)))
	steps := 0
	for n := 1; n > 0; n, _ = h.compiler.Waiting() {
		if judged(h, "10.0.0.10") != model.Allow {
			steps++
		}
		h.apply(t)
	}
	if judged(h, "10.0.0.10") != model.Allow {
		t.Errorf("it is refused in the end")
	}
	if steps > 0 {
		t.Errorf("what both versions allow is cut for %d steps", steps)
	}
}

// A new one that asks for less than others is not refused for them, whatever the hysteresis.
func TestNewAtTheLimit(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	h.together, h.again = 1000, 200
	in := func(namespace string) func(*model.Policy) {
		return func(p *model.Policy) { p.Key.Name.Namespace, p.Subject = namespace, model.Everything() }
	}
	h.apply(t, append(manyPods(100), event(pod(1, "here", "app", "web")), event(large("first", 3, in("a"))), event(large("greedy", 7, in("greedy"))))...)
	h.apply(t, event(large("honest", 6, in("b"))))
	if got := inForce(h); got["honest"] == 0 || got["greedy"] != 0 {
		t.Errorf("%v", got)
	}
}

// A small policy of another namespace does not wait for what a tenant sends in great numbers.
func TestFloodDoesNotDelay(t *testing.T) {
	for _, n := range []int{10, 100} {
		h := newHistory(config, sets.IDSpace)
		h.apply(t, append(manyPods(100), event(pod(1, "here", "app", "web")))...)
		h.room = 1 << 10
		var flood []store.Event
		for i := range n {
			flood = append(flood, event(large(fmt.Sprint("flood", i), 40)))
		}
		h.apply(t, flood...)
		h.apply(t)
		small := networkPolicy("small", ingress(from(model.Peer{Selector: model.Equal("one", "x")})), global("default", 1))
		h.apply(t, event(small))
		steps := 0
		for ; steps < 100_000; steps++ {
			if _, in := inForce(h)["small"]; in {
				break
			}
			h.apply(t)
		}
		if steps > 5 {
			t.Errorf("%d policies of a tenant: it takes %d steps", n, steps)
		}
	}
}
