package sets

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// world is random objects, and random rules that are built, filled and released.
type world struct {
	*rand.Rand
	store   *store.Store
	objects *objects.Objects
	sets    *Sets
	policy  *state.Policy // that the sets write to
	told    *state.Policy // by what they flush
	rules   []*Rules
	from    map[*Rules][]model.PolicyRule
	tallies []*Tally
}

func newWorld(seed uint64) *world {
	w := &world{
		Rand: rand.New(rand.NewPCG(seed, 7)), store: store.New(), objects: objects.New("here", 8),
		policy: state.NewPolicy(), told: state.NewPolicy(), from: map[*Rules][]model.PolicyRule{},
	}
	space := []uint32{IDSpace, 200}[w.IntN(2)] // with few, many have to move
	w.sets = New(w.policy, space, w.objects)
	w.sets.Services.Each, w.sets.Services.Together = 4, 6
	return w
}

func (w *world) labels() map[string]string {
	return map[string]string{"app": fmt.Sprint(w.IntN(4)), "env": fmt.Sprint(w.IntN(2))}
}

func (w *world) addr() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(w.IntN(12))}) }

func (w *world) service() model.Name { return model.Name{Namespace: "a", Name: fmt.Sprint(w.IntN(4))} }

func (w *world) protocol() model.Protocol {
	return []model.Protocol{model.TCP, model.UDP}[w.IntN(2)]
}

func (w *world) event() store.Event {
	name := w.service()
	var o model.Object
	switch w.IntN(7) {
	case 0:
		set := &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.NetworkSetKinds[0], Name: name}, Labels: w.labels()}
		for range w.IntN(3) {
			set.Nets = append(set.Nets, netip.PrefixFrom(w.addr(), 30+w.IntN(3)).Masked())
		}
		set.Nets = sorted(set.Nets)
		o = set
	case 1:
		h := &model.HostEndpoint{Name: name.Name, Labels: w.labels()}
		for i := range w.IntN(2)*9 + 1 {
			h.Addresses = append(h.Addresses, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
		}
		o = h
	case 2:
		slice := &model.EndpointSlice{Name: name, Service: name.Name}
		for range w.IntN(3) {
			slice.Ports = append(slice.Ports, model.EndpointPort{Protocol: w.protocol(), Port: uint16(80 + w.IntN(2))})
		}
		for range w.IntN(4) {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: w.addr()})
		}
		o = slice
	case 3:
		o = &model.Service{Name: name}
	default:
		p := &model.Pod{Name: name, Labels: w.labels(), Node: []string{"here", "there"}[w.IntN(2)]}
		for range w.IntN(3) {
			p.IPs = append(p.IPs, w.addr())
			p.Ports = append(p.Ports, model.ContainerPort{Name: []string{"http", "dns"}[w.IntN(2)], Protocol: w.protocol(), Port: uint16(w.IntN(3))})
		}
		o = p
	}
	e := store.Event{Kind: o.Ref().Kind, Name: o.Ref().Name, Object: o}
	if w.IntN(3) == 0 {
		e.Object = nil
	}
	return e
}

func (w *world) peers() (list []model.Peer) {
	for range 1 + w.IntN(2) {
		switch w.IntN(5) {
		case 0:
			list = append(list, model.Peer{Nets: []netip.Prefix{netip.PrefixFrom(w.addr(), 28)}, Except: []netip.Prefix{netip.PrefixFrom(w.addr(), 31)}})
		case 1:
			list = append(list, model.Peer{Service: w.service()})
		default:
			list = append(list, model.Peer{Selector: w.selector()})
		}
	}
	return list
}

func (w *world) selector() model.Selector {
	one := model.Equal([]string{"app", "env"}[w.IntN(2)], fmt.Sprint(w.IntN(4)))
	switch w.IntN(3) {
	case 0:
		return model.Not(one)
	case 1:
		return model.And(one, model.Equal(model.OrchestratorLabel, "k8s"))
	}
	return one
}

func (w *world) end() (e model.RuleEnd) {
	for range w.IntN(3) {
		e.Peers = append(e.Peers, w.peers())
	}
	if w.IntN(3) == 0 {
		e.NotPeers = w.peers()
	}
	for range w.IntN(3) {
		switch p := (model.PolicyPort{Protocol: model.Protocol(w.IntN(2)) * w.protocol()}); w.IntN(3) {
		case 0:
			p.Name = []string{"http", "dns"}[w.IntN(2)]
			e.Ports = append(e.Ports, p)
		case 1:
			e.Ports = append(e.Ports, model.PolicyPort{Service: w.service()})
		default:
			p.First, p.Last = uint16(w.IntN(3)), uint16(1+w.IntN(3))
			e.Ports = append(e.Ports, p)
		}
	}
	return e
}

// step is an update: events, then some rules come, are filled and go, with so much room for it.
func (w *world) step(t *testing.T, room int, events ...store.Event) {
	t.Helper()
	w.store.Apply(events)
	d := w.store.Take()
	w.store.Read(func(v *store.View) {
		w.sets.Begin(v, d)
		for ch := range w.objects.Changes(v, d, true) {
			if !ch.Renewed() {
				w.sets.Follow(ch)
			}
		}
		if len(events) > 0 {
			w.change()
		}
		for _, rs := range w.rules {
			for _, g := range rs.Groups {
				for spent, done := 0, false; spent < room && !done; {
					var n int
					n, done = w.sets.Groups.Fill(g, room-spent)
					spent += n
				}
			}
		}
		w.sets.Groups.Sweep(time.Now())
		w.sets.Groups.Drain(room)
		w.sets.Sweep()
		w.sets.Publish()
		var delta state.PolicyDelta
		w.sets.Flush(&delta)
		w.told.Apply(delta)
	})
	for what, both := range map[string][2]any{
		"groups": {w.policy.Groups, w.told.Groups}, "lists": {w.policy.Lists, w.told.Lists},
		"named ports": {w.policy.NamedPorts, w.told.NamedPorts}, "port sets": {w.policy.PortSets, w.told.PortSets},
	} {
		if !reflect.DeepEqual(both[0], both[1]) {
			t.Errorf("%s are %v, told were %v", what, both[0], both[1])
		}
	}
	w.counts(t)
}

// change builds some rules and counts some selectors, or ends some.
func (w *world) change() {
	for range w.IntN(3) {
		from := make([]model.PolicyRule, 1+w.IntN(2))
		for i := range from {
			from[i] = model.PolicyRule{Name: fmt.Sprint(i), Source: w.end(), Destination: w.end()}
		}
		rs := w.sets.Build(from, func(r *model.PolicyRule) *model.RuleEnd { return &r.Destination })
		var counted []*Tally
		if w.IntN(2) == 0 {
			for _, s := range rs.Selectors {
				tally, _ := w.sets.Tallies.Hold(s)
				counted = append(counted, tally)
			}
		}
		if w.IntN(4) > 0 {
			w.sets.HoldGroups(&rs, counted)
		}
		for _, tally := range counted {
			w.sets.Tallies.Release(tally)
		}
		w.rules = append(w.rules, &rs)
		w.from[&rs] = from
	}
	for range w.IntN(3) {
		tally, _ := w.sets.Tallies.Hold(w.selector())
		w.tallies = append(w.tallies, tally)
	}
	if len(w.rules) > 0 {
		w.release(w.IntN(len(w.rules)))
	}
	if len(w.tallies) > 0 && w.IntN(2) == 0 {
		w.sets.Tallies.Release(w.tallies[0])
		w.tallies = w.tallies[1:]
	}
}

func (w *world) release(i int) {
	w.sets.Release(w.rules[i])
	delete(w.from, w.rules[i])
	w.rules = slices.Delete(w.rules, i, i+1)
}

func (w *world) items() (all []*objects.Item) {
	all = slices.AppendSeq(all, maps.Values(w.objects.Pods))
	all = slices.AppendSeq(all, maps.Values(w.objects.Sets))
	return slices.AppendSeq(all, maps.Values(w.objects.Hosts))
}

// counts checks what is counted against the objects themselves.
func (w *world) counts(t *testing.T) {
	t.Helper()
	sizes := func(s model.Selector) (n int) {
		for _, it := range w.items() {
			if s.Matches(it.Labels) {
				n += it.Size()
			}
		}
		return n
	}
	gs, refs := w.sets.Groups, map[string]int{}
	for _, rs := range w.rules {
		for _, g := range rs.Groups {
			refs[g.Key()]++
		}
	}
	total := 0
	for key, g := range gs.all {
		total += g.Selected
		if g.key != key || g.id == 0 || g.refs != refs[key] {
			t.Errorf("group %s is under %s, its id is %x, it is held %d times, counts %d", g.key, key, g.id, refs[key], g.refs)
		}
		if n := sizes(g.selector); g.follows && g.refs > 0 && n != g.Selected {
			t.Errorf("group %s counts %d, want %d", key, g.Selected, n)
		}
		n := 0
		for cl := range g.classes {
			if n += cl.Size; !slices.Contains(gs.byClass[cl], g) || len(cl.Items) == 0 {
				t.Errorf("a class of %d does not know of group %s", len(cl.Items), key)
			}
		}
		if g.follows && g.refs > 0 && n != g.Selected {
			t.Errorf("group %s has classes of %d, counts %d", key, n, g.Selected)
		}
		if _, drains := gs.draining[g]; drains != (g.refs == 0) {
			t.Errorf("group %s is held %d times, draining: %t", key, g.refs, drains)
		}
	}
	for cl, list := range gs.byClass {
		for _, g := range list {
			if _, knows := g.classes[cl]; !knows {
				t.Errorf("group %s does not know of a class", g.key)
			}
		}
	}
	if total != w.sets.Total() {
		t.Errorf("total is %d, want %d", w.sets.Total(), total)
	}
	held := map[*Tally]int{}
	for _, tally := range w.tallies {
		held[tally]++
	}
	for key, tally := range w.sets.Tallies.all {
		if held[tally] != tally.refs || tally.Key != key {
			t.Errorf("tally %s is held %d times, counts %d", key, held[tally], tally.refs)
		}
		if n := sizes(tally.selector); n != tally.Count {
			t.Errorf("tally %s counts %d, want %d", key, tally.Count, n)
		}
	}
	if len(held) != len(w.sets.Tallies.all) {
		t.Errorf("%d selectors are counted, %d asked for", len(w.sets.Tallies.all), len(held))
	}
	classes := map[*objects.Class]bool{}
	for _, it := range w.items() {
		classes[it.Class] = true
	}
	for cl := range w.sets.Tallies.byClass {
		if !classes[cl] {
			t.Errorf("tallies know labels that nothing has")
		}
	}
}

// holds holds what the sets of a rule's ends hold against the objects.
func (w *world) holds(t *testing.T, v *store.View, rs *Rules) {
	t.Helper()
	if w.sets.Refused(rs) != "" || len(rs.Selectors) != len(rs.Groups) {
		return
	}
	for _, r := range rs.Resolve() {
		i := slices.IndexFunc(w.from[rs], func(o model.PolicyRule) bool { return o.Name == r.Name })
		of := w.from[rs][i]
		for _, e := range []struct {
			is   state.End
			want model.RuleEnd
			here bool
		}{{r.Source, of.Source, false}, {r.Destination, of.Destination, true}} {
			for a := range 14 {
				addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(a)})
				for j, term := range e.is.In {
					w.holdsAddr(t, v, term, e.want.Peers[j], addr)
				}
				for _, term := range e.is.NotIn {
					w.holdsAddr(t, v, term, e.want.NotPeers, addr)
				}
				for _, port := range []uint16{0, 1, 2, 80, 81} {
					for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
						w.holdsPort(t, v, e.is.Ports, e.want.Ports, e.here, state.NamedPort{Addr: addr, Protocol: protocol, Port: port})
					}
				}
			}
		}
	}
}

func (w *world) holdsAddr(t *testing.T, v *store.View, term state.Term, peers []model.Peer, a netip.Addr) {
	t.Helper()
	got := slices.ContainsFunc(term.Groups, func(id state.SetID) bool { _, in := w.policy.Groups[id][a]; return in }) ||
		slices.ContainsFunc(term.Lists, func(ref state.ListRef) bool { return model.Within(a, w.policy.Lists[ref.ID].Prefixes) })
	want := slices.ContainsFunc(peers, func(p model.Peer) bool {
		switch {
		case p.Service != model.Name{}:
			return slices.ContainsFunc(Endpoints(v, p.Service), func(e state.NamedPort) bool { return e.Addr == a })
		case p.Selector.IsZero():
			return model.Within(a, p.Nets) && !model.Within(a, p.Except)
		}
		return slices.ContainsFunc(w.items(), func(it *objects.Item) bool {
			return p.Selector.Matches(it.Labels) && (slices.Contains(it.Addrs, a) || it.Set != nil && model.Within(a, it.Set.Nets))
		})
	})
	if got != want {
		t.Errorf("%v holds %v: %v, want %v", peers, a, got, want)
	}
}

func (w *world) holdsPort(t *testing.T, v *store.View, is *state.Ports, list []model.PolicyPort, here bool, at state.NamedPort) {
	t.Helper()
	if is == nil {
		return
	}
	got := slices.ContainsFunc(is.Ranges, func(r state.PortRange) bool { return r.Holds(at.Protocol, at.Port) }) ||
		slices.ContainsFunc(is.Named, func(id state.SetID) bool { _, in := w.policy.NamedPorts[id][at]; return in })
	want := slices.ContainsFunc(list, func(p model.PolicyPort) bool {
		if p.Service != (model.Name{}) {
			return at.Port != 0 && slices.Contains(Endpoints(v, p.Service), at)
		}
		if p.Protocol != 0 && p.Protocol != at.Protocol {
			return false
		}
		if p.Name == "" {
			return p.First <= at.Port && at.Port <= p.Last
		}
		return slices.ContainsFunc(w.items(), func(it *objects.Item) bool {
			return it.Pod != nil && (it.Local || !here) && slices.Contains(it.Addrs, at.Addr) && at.Port != 0 &&
				slices.Contains(it.Pod.Ports, model.ContainerPort{Name: p.Name, Protocol: at.Protocol, Port: at.Port})
		})
	})
	if got != want {
		t.Errorf("%+v holds %+v: %v, want %v", list, at, got, want)
	}
}

// Whatever comes and goes in whatever slices: counts are right all the time, sets hold what rules
// ask for once they are filled, what is flushed leads to what there is, and nothing is left in the
// end.
func TestSets(t *testing.T) {
	for seed := range uint64(60) {
		w := newWorld(seed)
		for range 30 {
			w.step(t, []int{0, 3, 10, math.MaxInt}[w.IntN(4)], w.event(), w.event(), w.event())
			if w.IntN(5) == 0 {
				w.step(t, math.MaxInt)
				w.store.Read(func(v *store.View) {
					for _, rs := range w.rules {
						w.holds(t, v, rs)
					}
				})
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		var gone []store.Event
		w.store.Read(func(v *store.View) {
			for kind, names := range v.All().Objects {
				for name := range names {
					gone = append(gone, store.Event{Kind: kind, Name: name})
				}
			}
		})
		for len(w.rules) > 0 {
			w.release(0)
		}
		for _, tally := range w.tallies {
			w.sets.Tallies.Release(tally)
		}
		w.tallies = nil
		if w.IntN(2) == 0 { // before the objects, or after
			w.step(t, math.MaxInt)
		}
		w.store.Apply(gone)
		w.step(t, math.MaxInt)
		s := w.sets
		for what, n := range map[string]int{
			"groups": len(s.Groups.all), "classes of groups": len(s.Groups.byClass), "selectors": len(s.Groups.selectors), "draining": len(s.Groups.draining),
			"tallies": len(s.Tallies.all), "counted": len(s.Tallies.selectors), "total": s.Total(),
			"named": len(s.named.all), "by port": len(s.named.items), "lists": len(s.lists.all), "ranges": len(s.ranges.all), "ids": len(s.ids.held),
			"services": len(s.Services.known), "service addresses": len(s.Services.addrs.all),
			"groups of the policy": len(w.policy.Groups), "named ports of it": len(w.policy.NamedPorts), "lists of it": len(w.policy.Lists), "port sets of it": len(w.policy.PortSets),
		} {
			if n != 0 {
				t.Errorf("seed %d: %d %s are left", seed, n, what)
			}
		}
	}
}
