package compile_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// sorted sorts lines, as IPv4 and IPv6 addresses of a kind sort differently.
func sorted(s string) string {
	list := strings.Split(s, "\n")
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// replaceRange names the test's one source range.
func replaceRange(s string, f family) string {
	return strings.NewReplacer("10.1.0.0/24", "RANGE", "fd00::/24", "RANGE").Replace(s)
}

// history feeds events to a store and a compiler, and holds each delta against
// the state before and after it.
type history struct {
	cfg      compile.Config
	store    *store.Store
	compiler *compile.Compiler
	sum      *state.State // of all deltas
	checks   map[uint16]*services.HealthCheck
	together int // elements of all services; 0: as many as in production
	room     int // elements of a step
}

// limit has all services come to so many elements at the most.
func (h *history) limit(together int) {
	h.together = together
	h.compiler.Services.SetTogether(together, together)
}

func newHistory(cfg compile.Config) *history {
	cfg.Node = "here"
	return &history{cfg: cfg, store: store.New(), compiler: compile.New(cfg), sum: state.New(), room: 1 << 15, checks: map[uint16]*services.HealthCheck{}}
}

func (h *history) apply(t *testing.T, events ...store.Event) state.Delta {
	t.Helper()
	h.store.Apply(events)
	d := h.compiler.Update(h.store, h.store.Take())
	h.check(t, d)
	return d
}

// step is apply, of as much as one slice holds.
func (h *history) step(t *testing.T, events ...store.Event) (d state.Delta, more bool) {
	t.Helper()
	h.store.Apply(events)
	d = h.compiler.Step(h.store, h.store.Take(), h.room)
	h.check(t, d)
	return d, h.compiler.Waiting().Len() > 0
}

// check holds a delta against the states before and after it.
func (h *history) check(t *testing.T, d state.Delta) {
	t.Helper()
	for _, redundant := range redundant(h.sum, d) {
		t.Errorf("the delta names %s, which did not change", redundant)
	}
	h.sum.Apply(d)
	for port, check := range h.compiler.Services.HealthChecks() {
		if old, was := h.checks[port]; was == (check != nil) && (check == nil || *check == *old) {
			t.Errorf("the health check at port %d is named, which did not change", port)
		}
		if delete(h.checks, port); check != nil {
			h.checks[port] = check
		}
	}
	sum := map[model.Name]*services.HealthCheck{}
	for _, check := range h.checks {
		sum[check.Service] = check
	}
	if all := h.compiler.Services.AllHealthChecks(); !sameChecks(sum, all) || len(sum) != len(h.checks) {
		t.Errorf("the sum of changes of health checks, %v, differs from what there is: %v", h.checks, all)
	}
	if diff := differences(h.sum, h.compiler.State()); diff != "" {
		t.Errorf("the sum of deltas differs from the state: %s", diff)
	}
}

// sameChecks compares health checks.
func sameChecks(a, b map[model.Name]*services.HealthCheck) bool {
	return maps.EqualFunc(a, b, func(a, b *services.HealthCheck) bool { return *a == *b })
}

// fresh compiles what the store holds from nothing.
func (h *history) fresh() *compile.Compiler {
	c := compile.New(h.cfg)
	c.Services.SetTogether(h.together, h.together)
	c.Update(h.store, store.Dirty{})
	return c
}

// redundant names what d sets to the value it has in s.
func redundant(s *state.State, d state.Delta) []string {
	var list []string
	if d.Services.Settings != nil && d.Services.Settings.Equal(s.Services.Settings) {
		list = append(list, "the settings")
	}
	for k, f := range d.Services.Frontends {
		if f.Equal(s.Services.Frontends[k]) {
			list = append(list, k.String())
		}
	}
	for a, in := range d.Services.ClusterIPs {
		if _, was := s.Services.ClusterIPs[a]; was == in {
			list = append(list, "cluster IP "+a.String())
		}
	}
	for a, in := range d.Services.Hairpins {
		if _, was := s.Services.Hairpins[a]; was == in {
			list = append(list, "hairpin "+a.String())
		}
	}
	return list
}

// differences between two states; empty for none.
func differences(a, b *state.State) string {
	switch {
	case !a.Services.Settings.Equal(b.Services.Settings):
		return "settings"
	case !maps.EqualFunc(a.Services.Frontends, b.Services.Frontends, (*state.Frontend).Equal):
		return "frontends:\n" + show(a) + "\nand\n" + show(b)
	case !maps.Equal(a.Services.ClusterIPs, b.Services.ClusterIPs):
		return "cluster IPs"
	case !maps.Equal(a.Services.OtherIPs, b.Services.OtherIPs):
		return "other IPs"
	case !maps.Equal(a.Services.Hairpins, b.Services.Hairpins):
		return "hairpins"
	}
	return ""
}

// An update names what changed and nothing else.
func TestDeltas(t *testing.T) {
	bothFamilies(t, func(t *testing.T, f family) {
		h := newHistory(compile.Config{})
		key := func(n string) state.FrontendKey {
			return state.FrontendKey{Addr: f.addr(n), Protocol: model.TCP, Port: 80}
		}
		ext := func(s *model.Service) { s.ExternalIPs = f.addrs("x1") }
		if d := h.apply(t, events(f.service(), slice("a", f.endpoint("e1")))...); len(d.Services.Frontends) != 1 || len(d.Services.ClusterIPs) != 1 {
			t.Errorf("created: %+v", d)
		}
		if d := h.apply(t, events(f.service(), slice("a", f.endpoint("e1")))...); d.Len() != 0 {
			t.Errorf("repeated: %+v", d)
		}
		if d := h.apply(t, event(f.service(ext))); len(d.Services.Frontends) != 1 || d.Services.Frontends[key("x1")] == nil || d.Len() != 1 {
			t.Errorf("external IP added: %+v", d)
		}
		if d := h.apply(t, event(slice("a", f.endpoint("e1"), f.endpoint("e2", here)))); len(d.Services.Frontends) != 2 || len(d.Services.Hairpins) != 1 || d.Len() != 3 {
			t.Errorf("endpoint added: %+v", d)
		}
		if d := h.apply(t, gone(slice("a")), event(slice("b", f.endpoint("e2", here), f.endpoint("e1")))); d.Len() != 0 {
			t.Errorf("the same endpoints in another slice: %+v", d)
		}
		if d := h.apply(t, event(f.service())); len(d.Services.Frontends) != 1 || d.Len() != 1 {
			t.Errorf("external IP removed: %+v", d)
		}
		if d := h.apply(t, event(&model.Node{Name: "there"})); d.Len() != 0 {
			t.Errorf("another node: %+v", d)
		}
		if d := h.apply(t, gone(f.service())); len(d.Services.Frontends) != 1 || len(d.Services.ClusterIPs) != 1 || len(d.Services.Hairpins) != 1 || d.Len() != 3 {
			t.Errorf("deleted: %+v", d)
		}
	})
}

// What the own node says of itself takes effect on every service.
func TestOwnNode(t *testing.T) {
	bothFamilies(t, func(t *testing.T, f family) {
		h := newHistory(compile.Config{})
		h.apply(t, events(f.service(nodePort), slice("a", f.endpoint("e1", zones("z1")), f.endpoint("e2", zones("z2"))))...)
		check(t, h.compiler, `ClusterIP c1:80 -> e1:8080 e2:8080`)
		if got := h.compiler.Issues(); len(got) != 1 || got[0].Object.String() != "Node here" {
			t.Errorf("issues without the node: %v", got)
		}
		h.apply(t, event(f.node()))
		want := `ClusterIP c1:80 -> e1:8080, serving: e1:8080 e2:8080
		NodePort n1:30080 -> e1:8080, serving: e1:8080 e2:8080`
		if got := sorted(show(h.compiler.State())); got != sorted(lines(want)) {
			t.Errorf("got:\n%s", got)
		}
		checkIssues(t, h.compiler)
		other := f.node()
		other.Labels["heartbeat"] = "1"
		if d := h.apply(t, event(other)); d.Len() != 0 {
			t.Errorf("a label that means nothing: %+v", d)
		}
		moved := f.node()
		moved.Labels["topology.kubernetes.io/zone"] = "z2"
		if d := h.apply(t, event(moved)); len(d.Services.Frontends) != 2 || d.Len() != 2 {
			t.Errorf("another zone: %+v", d)
		}
	})
}

// As with kube-proxy, a node goes on as its object said last when that is deleted, whatever other
// nodes there are.
func TestOwnNodeIsDeleted(t *testing.T) {
	bothFamilies(t, func(t *testing.T, f family) {
		h := newHistory(compile.Config{})
		h.apply(t, events(f.node(), f.service(nodePort), slice("a", f.endpoint("e1", zones("z1")), f.endpoint("e2", zones("z2"))))...)
		before := show(h.compiler.State())
		if d := h.apply(t, gone(f.node()), event(&model.Node{Name: "there"})); d.Len() != 0 {
			t.Errorf("the deletion changes %+v", d)
		}
		h.apply(t, event(f.service(nodePort, externalLocal)), event(f.service(nodePort)))
		if got := show(h.compiler.State()); got != before {
			t.Errorf("after the deletion:\n%s\nwant:\n%s", got, before)
		}
		checkIssues(t, h.compiler, "Node here: its Node object is gone: what it said last counts until the agent ends")
		next := f.node()
		next.IPs = f.addrs("n3")
		h.apply(t, event(next))
		if got := show(h.compiler.State()); !strings.Contains(got, "NodePort n3:30080") || strings.Contains(got, "n1:") {
			t.Errorf("a new object:\n%s", got)
		}
		checkIssues(t, h.compiler)
	})
}

// A frontend that did not change stays the same value, so that compiler and
// drivers hold it once.
func TestUnchangedFrontendsStay(t *testing.T) {
	h := newHistory(compile.Config{})
	h.apply(t, events(v4.service(), slice("a", v4.endpoint("e1")))...)
	key := state.FrontendKey{Addr: v4.addr("c1"), Protocol: model.TCP, Port: 80}
	before := h.compiler.State().Services.Frontends[key]
	h.apply(t, event(v4.service(func(s *model.Service) { s.ExternalIPs = v4.addrs("x1") })))
	if h.compiler.State().Services.Frontends[key] != before {
		t.Error("it was replaced by an equal one")
	}
}

// The frontends of one service port hold their lists once, also after changes.
func TestFrontendsShareLists(t *testing.T) {
	h := newHistory(compile.Config{})
	svc := v4.service(func(s *model.Service) { s.ExternalIPs, s.LoadBalancerIPs = v4.addrs("x1 x2"), v4.addrs("l1") })
	h.apply(t, events(svc, slice("a", v4.endpoint("e1"), v4.endpoint("e2")))...)
	local := *svc
	local.ExternalLocal = true
	h.apply(t, event(&local))
	first := h.compiler.State().Services.Frontends[state.FrontendKey{Addr: v4.addr("c1"), Protocol: model.TCP, Port: 80}]
	for k, f := range h.compiler.State().Services.Frontends {
		if &f.Backends[0] != &first.Backends[0] || &f.Alive[0] != &first.Backends[0] || &f.Serving[0] != &first.Backends[0] {
			t.Errorf("%s has lists of its own", k)
		}
	}
}
