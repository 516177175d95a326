package compile

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice.dev/sluice/internal/lib/fair"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

var config = Config{Node: "here"}

// event brings an object.
func event(o any) store.Event {
	ref := o.(model.Object).Ref()
	return store.Event{Kind: ref.Kind, Name: ref.Name, Object: o}
}

// history is a store and a compiler that follows it step by step, with all that
// its deltas came to.
type history struct {
	cfg       Config
	space     uint32
	selected  int // what selectors of a policy may select; 0: as many as in production
	together  int // and those of all
	endpoints int // that a service may have; 0: as many as in production
	again     int // so much less of both before what is refused is applied again
	room      int // for a step; 0: for all
	store     *store.Store
	compiler  *Compiler
	state     *state.Policy // by the deltas alone
	links     *model.Links  // new ones that the next step brings
	known     model.Links
	cidrs     []netip.Prefix
}

func newHistory(cfg Config, space uint32) *history {
	return &history{
		cfg: cfg, space: space, store: store.New(), compiler: newCompiler(cfg, space),
		state: state.NewPolicy(), links: &model.Links{},
	}
}

func update(c *Compiler, s *store.Store, d store.Dirty, cidrs []netip.Prefix) (delta state.PolicyDelta) {
	s.Read(func(v *store.View) { delta = c.Update(v, d, cidrs) })
	return delta
}

// apply brings events, and checks that the delta is exact.
func (h *history) apply(t testing.TB, events ...store.Event) state.PolicyDelta {
	t.Helper()
	h.store.Apply(events)
	d := h.store.Take()
	if h.links != nil {
		h.compiler.SetLinks(*h.links) // and not again: whatever depends on them has to be noticed
		h.known, h.links = *h.links, nil
	}
	h.limit(h.compiler)
	room := all
	if h.room > 0 {
		room = h.room
	}
	var delta state.PolicyDelta
	h.store.Read(func(v *store.View) { delta = h.compiler.Step(v, d, h.cidrs, room) })
	exact(t, h.state, delta)
	h.state.Apply(delta)
	if diff := differences(h.state, h.compiler.Policy()); diff != "" {
		t.Errorf("what the deltas come to is not the state: %s", diff)
	}
	return delta
}

func (h *history) limit(c *Compiler) {
	if h.together > 0 {
		c.variants.limits.Together = fair.Bound{Most: h.together, Again: h.together - min(h.again, h.together)}
	}
	if h.endpoints > 0 {
		c.sets.Services.Each, c.sets.Services.Together = h.endpoints, 2*h.endpoints
	}
	if h.selected > 0 {
		c.variants.limits.Alone = fair.Bound{Most: h.selected, Again: h.selected - min(h.again, h.selected)}
	}
}

// fresh is a compiler that sees the objects for the first time.
func (h *history) fresh() *Compiler {
	c := newCompiler(h.cfg, h.space)
	c.SetLinks(h.known)
	h.limit(c)
	h.store.Read(func(v *store.View) { c.Update(v, v.All(), h.cidrs) })
	return c
}

func differences(a, b *state.Policy) string {
	if reflect.DeepEqual(a, b) {
		return "" // a hundred times as fast
	}
	return cmp.Diff(a, b, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
}

// exact fails where a delta names what it does not change.
func exact(t testing.TB, p *state.Policy, d state.PolicyDelta) {
	t.Helper()
	exactMap(t, "rules", p.Rules, d.Rules)
	exactMap(t, "workload", p.Workloads, d.Workloads)
	exactMap(t, "host", p.Hosts, d.Hosts)
	exactMap(t, "ports", p.PortSets, d.PortSets)
	exactMap(t, "list", p.Lists, d.Lists)
	for id, g := range d.Groups {
		exactSet(t, fmt.Sprintf("group %x", id), p.Groups[id], g)
	}
	for id, g := range d.NamedPorts {
		exactSet(t, fmt.Sprintf("named ports %x", id), p.NamedPorts[id], g)
	}
	exactSet(t, "pod devices", p.PodDevices, d.PodDevices)
	exactSet(t, "host devices", p.HostDevices, d.HostDevices)
}

func exactMap[K comparable, V any](t testing.TB, what string, m map[K]*V, d map[K]*V) {
	t.Helper()
	for k, next := range d {
		if diff := cmp.Diff(m[k], next, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff == "" {
			t.Errorf("%s %v is named and did not change", what, k)
		}
	}
}

func exactSet[K comparable](t testing.TB, what string, m map[K]struct{}, d map[K]bool) {
	t.Helper()
	for k, in := range d {
		if _, was := m[k]; was == in {
			t.Errorf("%s: %v is named and did not change", what, k)
		}
	}
}

// compiled is what a new compiler makes of the objects.
func compiled(cfg Config, links model.Links, objects ...any) *Compiler {
	s := store.New()
	for _, o := range objects {
		s.Apply([]store.Event{event(o)})
	}
	c := New(cfg)
	c.SetLinks(links)
	update(c, s, s.Take(), nil)
	return c
}
