package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/lib/fair"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// finish steps on until nothing waits.
func (h *history) finish(t testing.TB) {
	t.Helper()
	for range 10_000 {
		if n, _ := h.compiler.Waiting(); n == 0 {
			return
		}
		h.apply(t)
		cautiously(t, h.compiler)
	}
	n, _ := h.compiler.Waiting()
	t.Fatalf("%d policies wait for ever", n)
}

// cautiously checks that what is in force is whole, while others wait.
func cautiously(t testing.TB, c *Compiler) {
	t.Helper()
	whole := map[state.SetID]bool{}
	for p := range c.variants.all {
		if c.sets.Refused(&p.Rules) == "" { // of Services too
			for _, r := range p.Rules.Resolve() {
				for _, id := range groupsOf(r) {
					whole[id] = true
				}
			}
		}
	}
	for p := range c.variants.all {
		for i, g := range p.Groups {
			want := map[netip.Addr]struct{}{}
			for _, it := range slices.Concat(slices.Collect(maps.Values(c.objects.Pods)), slices.Collect(maps.Values(c.objects.Sets)), slices.Collect(maps.Values(c.objects.Hosts))) {
				for _, a := range it.Addrs {
					if p.Selectors[i].Matches(it.Labels) {
						want[a] = struct{}{}
					}
				}
			}
			whole[g.ID()] = maps.Equal(want, c.policy.Groups[g.ID()])
		}
	}
	for id, rules := range c.policy.Rules {
		for _, tier := range rules.Tiers {
			for _, own := range tier.Policies {
				for _, r := range own.Rules {
					for _, g := range groupsOf(r) {
						if !whole[g] {
							t.Errorf("rules %s with %s refer to group %x, which is not what is selected", id, own.Policy, g)
						}
					}
				}
			}
		}
	}
	for name, e := range c.endpoints.all {
		if e.item.Pod == nil {
			continue
		}
		for _, p := range c.policies.applying(e.item.Labels) {
			if !slices.Contains(e.policies, p) && (!p.fresh || e.selected != e.item) {
				t.Errorf("%s has no %s", name, p.obj.Key)
			}
		}
		for _, p := range e.policies {
			if now := c.policies.all[p.obj.Key]; now == nil || now != p && !now.fresh {
				t.Errorf("%s still has an old %s", name, p.obj.Key)
			}
		}
	}
}

// groupsOf are the groups that a rule refers to.
func groupsOf(r state.Rule) (ids []state.SetID) {
	for _, term := range slices.Concat(r.Source.In, r.Source.NotIn, r.Destination.In, r.Destination.NotIn) {
		ids = append(ids, term.Groups...)
	}
	return ids
}

// Whatever comes in whatever slices: what is in force is whole in each step, and in the end all is
// as if it had come at once.
func TestSlices(t *testing.T) {
	for seed := range uint64(150) {
		w := newWorld(seed)
		h := newHistory(worldConfig, pickOne[uint32](w, crowded, sets.IDSpace))
		h.selected, h.together = pickOne(w, 0, 4, 70), pickOne(w, 0, 0, 10, 30)
		h.room = pickOne(w, 1, 50, 500)
		for range 40 {
			var batch []store.Event
			for range 1 + w.IntN(4) {
				batch = append(batch, w.event())
			}
			h.apply(t, batch...)
			cautiously(t, h.compiler)
			if w.chance(20) {
				h.finish(t)
				same(t, h.compiler, h.fresh())
				sound(t, h.compiler.Policy())
				complete(t, h.compiler)
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

// large is a policy of n selectors, each of which selects all pods with the label.
func large(name string, n int, more ...func(*model.Policy)) *model.Policy {
	var rules []model.PolicyRule
	for i := range n {
		rules = append(rules, from(model.Peer{Selector: model.And(model.Equal("many", "yes"), model.Not(model.Equal("name", name+string(rune('a'+i)))))}))
	}
	return networkPolicy(name, append([]func(*model.Policy){ingress(rules...)}, more...)...)
}

func manyPods(n int) (events []store.Event) {
	for i := range n {
		events = append(events, event(pod(10+i, "there", "many", "yes")))
	}
	return events
}

// inForce are the rules of each policy that holds for the pod at 10.0.0.1; one that allows nothing
// has none.
func inForce(h *history) map[string]int {
	n := map[string]int{}
	p := h.compiler.Policy()
	if w := p.Workloads[netip.MustParseAddr("10.0.0.1")]; w != nil && w.Ingress != "" {
		for _, tier := range p.Rules[w.Ingress].Tiers {
			for _, own := range tier.Policies {
				n[own.Policy.Name.Name] = len(own.Rules)
			}
		}
	}
	return n
}

// What stands before a large policy comes or changes stands until all of its sets are there, small
// ones do not wait for it, and pods that come meanwhile are not open.
func TestLargePolicyComesInSlices(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	h.room = 64
	h.apply(t, append(manyPods(100), event(pod(1, "here", "app", "web")))...)
	h.finish(t)
	expect := func(when string, want map[string]int) {
		t.Helper()
		cautiously(t, h.compiler)
		if got := inForce(h); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	waits := func(want int) {
		t.Helper()
		if n, _ := h.compiler.Waiting(); n != want {
			t.Errorf("%d wait, want %d", n, want)
		}
	}
	h.apply(t, event(large("x", 10)))
	expect("a large one comes", map[string]int{})
	waits(1)
	h.apply(t, event(networkPolicy("small", ingress())))
	expect("a small one comes after it", map[string]int{"small": 0})
	waits(1)
	h.finish(t)
	expect("it is there", map[string]int{"small": 0, "x": 10})

	h.apply(t, event(large("x", 20)))
	h.apply(t, event(large("x", 21)))
	expect("it changes, twice", map[string]int{"small": 0, "x": 10})
	waits(1)
	h.apply(t, event(pod(1, "here", "app", "web", "version", "2")))
	expect("the pod changes meanwhile", map[string]int{"small": 0, "x": 0})
	for range 10_000 {
		if inForce(h)["x"] == 20 {
			break
		}
		h.apply(t)
	}
	expect("the first change is followed before the second", map[string]int{"small": 0, "x": 20})
	waits(1)
	h.finish(t)
	expect("all is there", map[string]int{"small": 0, "x": 21})

	gone := event(large("x", 1))
	gone.Object = nil
	h.apply(t, gone)
	expect("it goes", map[string]int{"small": 0})
	if n := len(h.compiler.Policy().Groups); n < 15 {
		t.Errorf("%d groups are left after one step: they go in slices", n)
	}
	h.finish(t)
	same(t, h.compiler, h.fresh())
	if n := h.compiler.sets.Total(); n != 0 {
		t.Errorf("%d are still selected", n)
	}
}

// A group that is asked for again while it is emptied is filled again.
func TestGroupComesBack(t *testing.T) {
	for steps := range 12 {
		h := newHistory(config, sets.IDSpace)
		h.apply(t, append(manyPods(100), event(pod(1, "here", "app", "web")), event(large("x", 3)))...)
		h.room = 64
		gone := event(large("x", 1))
		gone.Object = nil
		h.apply(t, gone)
		for range steps {
			h.apply(t)
		}
		h.apply(t, event(pod(120, "there", "many", "yes")), store.Event{Kind: model.PodKind, Name: pod(15, "").Name}, event(large("x", 3)))
		h.finish(t)
		same(t, h.compiler, h.fresh())
		complete(t, h.compiler)
	}
}

// Where all policies select too much together, those of the namespaces that ask for most are
// refused, their largest first.
func TestTooMuchTogether(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	h.together = 1000
	in := func(namespace string) func(*model.Policy) {
		return func(p *model.Policy) {
			p.Key.Name.Namespace, p.Subject = namespace, model.Everything()
		}
	}
	h.apply(t, append(manyPods(50), event(pod(1, "here", "app", "web")), event(large("own", 6, in("shop"))), event(large("least", 1, in("prod"))))...)
	all := map[string]int{"own": 6, "least": 1}
	expect := func(when string, want map[string]int) {
		t.Helper()
		if got := inForce(h); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
		same(t, h.compiler, h.fresh())
		complete(t, h.compiler)
	}
	expect("they fit", all)
	for i := range 4 { // each less than the one of shop, together more
		name := string(rune('m' + i))
		h.apply(t, event(large(name, 5, in("many"))))
		all[name] = 5
	}
	all["o"], all["p"] = 0, 0 // 300 + 50 + 2 * 250
	expect("a namespace asks for too much with many small ones", all)
	if n := len(h.compiler.Issues()); n != 2 {
		t.Errorf("issues %v", h.compiler.Issues())
	}
	h.apply(t, event(large("same", 6, in("prod"), func(p *model.Policy) { p.IngressRules = large("own", 6).IngressRules })))
	all["same"] = 6
	expect("what is shared counts once", all)
	h.apply(t, event(large("m", 1, in("many"))))
	all["m"], all["o"] = 1, 5 // 300 + 50 + 50 + 2 * 250
	expect("it asks for less", all)
	h.apply(t, gone(manyPods(50)[30:])...)
	all["p"] = 5
	expect("there are fewer pods", all)
}

// One pod that comes and goes does not make a policy at its limit come and go.
func TestLimitsDoNotFlap(t *testing.T) {
	for name, limit := range map[string]func(c *Compiler){
		"of one":  func(c *Compiler) { c.variants.limits.Alone = fair.Bound{Most: 100, Again: 80} },
		"of both": func(c *Compiler) { c.variants.limits.Together = fair.Bound{Most: 200, Again: 160} },
	} {
		h := newHistory(config, sets.IDSpace)
		limit(h.compiler)
		h.apply(t, append(manyPods(10), event(pod(1, "here", "app", "web")), event(large("x", 10)), event(large("y", 10)))...)
		applied := func(want bool) {
			t.Helper()
			if got := inForce(h); (got["x"] > 0 && got["y"] > 0) != want {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
			cautiously(t, h.compiler)
		}
		applied(true)
		more := manyPods(11)[10:]
		h.apply(t, more...)
		applied(false)
		for range 3 {
			h.apply(t, gone(slices.Clone(more))...)
			applied(false)
			h.apply(t, more...)
			applied(false)
		}
		h.apply(t, gone(manyPods(11)[8:])...)
		applied(true)
	}
}

// Pods of other nodes that change many sets are followed in slices; those of this node, and small
// policies, do not wait for them.
func TestPodsAreFollowedInSlices(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	h.apply(t, event(pod(1, "here", "app", "web")), event(large("x", 20)))
	h.room = 200
	h.apply(t, manyPods(100)...)
	if n := len(h.compiler.objects.Late); n < 80 {
		t.Errorf("%d pods wait", n)
	}
	h.apply(t, event(pod(2, "here", "app", "api")), event(networkPolicy("small", ingress())))
	if w := h.compiler.Policy().Workloads[pod(2, "").IPs[0]]; w == nil || len(h.compiler.objects.Late) == 0 {
		t.Errorf("the pod of this node is %v, %d others wait", w, len(h.compiler.objects.Late))
	}
	if got := inForce(h); !maps.Equal(got, map[string]int{"small": 0, "x": 20}) {
		t.Errorf("in force are %v", got)
	}
	h.apply(t, gone(manyPods(100)[:50])...)
	h.finish(t)
	same(t, h.compiler, h.fresh())
	complete(t, h.compiler)
}

// Pods of other nodes have their turn though those of this node change without end.
func TestLatePodsHaveTheirTurn(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	h.apply(t, append(manyPods(3), event(pod(1, "here", "app", "web")), event(large("x", 60)))...)
	h.room = 100
	h.apply(t, append(gone(manyPods(2)), event(pod(1, "here", "app", "web", "many", "yes", "v", "0")))...)
	for i := range 10 {
		h.apply(t, event(pod(1, "here", "app", "web", "many", "yes", "v", fmt.Sprint(i+1))))
	}
	if n := len(h.compiler.objects.Late); n != 0 {
		t.Errorf("%d pods still wait", n)
	}
}
