package nftables

import (
	"maps"
	"net/netip"

	"sluice.dev/sluice/internal/state"
)

// This file names the parts of a state and of a delta that the kernel can take apart from each
// other.

// unit is a part that is programmed or set aside as a whole: an entry of one of the maps of a
// State, or a field that is none.
type unit struct {
	kind unitKind
	key  any
}

type unitKind uint8

// The kinds, in the order in which a delta that is carried out in parts is: what is looked up
// before what looks it up.
const (
	settingsUnit unitKind = iota
	clusterIPUnit
	otherIPUnit
	hairpinUnit
	peerUnit
	podDeviceUnit
	hostDeviceUnit
	podCIDRsUnit
	frontendUnit
	groupUnit
	namedPortsUnit
	portSetUnit
	listUnit
	rulesUnit
	workloadUnit
	hostUnit
	deniedUnit
	unitKinds
)

func (u unit) field() fieldOf { return fields[u.kind] }

// isSet reports whether rules may refer to the unit.
func (u unit) isSet() bool { return u.kind >= groupUnit && u.kind <= listUnit }

// fieldOf reads and writes the units of one kind in deltas and states.
type fieldOf interface {
	each(d *state.Delta, f func(key any))
	names(d *state.Delta, key any) bool
	// wanted reports whether the delta names the unit and does not only take from it.
	wanted(d *state.Delta, key any) bool
	forget(d *state.Delta, key any)
	// move has one delta say what another says of the unit. Members that are taken from what is
	// there already leave it.
	move(from *state.Delta, key any, to *state.Delta)
	// read has the delta make the unit what it is in the state; false: it is not there.
	read(s *state.State, key any, to *state.Delta) bool
	// takeOut has the delta remove the unit from the state, if it is there.
	takeOut(s *state.State, key any, to *state.Delta)
	eachOf(s *state.State, f func(key any))
}

var fields = [unitKinds]fieldOf{
	settingsUnit:   valueField[state.Settings]{func(d *state.Delta) **state.Settings { return &d.Services.Settings }, func(s *state.State) *state.Settings { return &s.Services.Settings }},
	clusterIPUnit:  memberField(func(d *state.Delta) *map[netip.Addr]bool { return &d.Services.ClusterIPs }, func(s *state.State) map[netip.Addr]struct{} { return s.Services.ClusterIPs }),
	otherIPUnit:    memberField(func(d *state.Delta) *map[netip.Addr]bool { return &d.Services.OtherIPs }, func(s *state.State) map[netip.Addr]struct{} { return s.Services.OtherIPs }),
	hairpinUnit:    memberField(func(d *state.Delta) *map[netip.Addr]bool { return &d.Services.Hairpins }, func(s *state.State) map[netip.Addr]struct{} { return s.Services.Hairpins }),
	peerUnit:       memberField(func(d *state.Delta) *map[netip.Addr]bool { return &d.Services.Peers }, func(s *state.State) map[netip.Addr]struct{} { return s.Services.Peers }),
	frontendUnit:   entryField(func(d *state.Delta) *map[state.FrontendKey]*state.Frontend { return &d.Services.Frontends }, func(s *state.State) map[state.FrontendKey]*state.Frontend { return s.Services.Frontends }),
	podDeviceUnit:  memberField(func(d *state.Delta) *map[int]bool { return &d.Policy.PodDevices }, func(s *state.State) map[int]struct{} { return policyOf(s).PodDevices }),
	hostDeviceUnit: memberField(func(d *state.Delta) *map[int]bool { return &d.Policy.HostDevices }, func(s *state.State) map[int]struct{} { return policyOf(s).HostDevices }),
	podCIDRsUnit:   valueField[[]netip.Prefix]{func(d *state.Delta) **[]netip.Prefix { return &d.Policy.PodCIDRs }, func(s *state.State) *[]netip.Prefix { return &policyOf(s).PodCIDRs }},
	groupUnit:      groupField(func(d *state.Delta) *map[state.SetID]map[netip.Addr]bool { return &d.Policy.Groups }, func(s *state.State) map[state.SetID]map[netip.Addr]struct{} { return policyOf(s).Groups }),
	namedPortsUnit: groupField(func(d *state.Delta) *map[state.SetID]map[state.NamedPort]bool { return &d.Policy.NamedPorts }, func(s *state.State) map[state.SetID]map[state.NamedPort]struct{} { return policyOf(s).NamedPorts }),
	portSetUnit:    entryField(func(d *state.Delta) *map[state.SetID]*state.Ports { return &d.Policy.PortSets }, func(s *state.State) map[state.SetID]*state.Ports { return policyOf(s).PortSets }),
	listUnit:       entryField(func(d *state.Delta) *map[state.SetID]*state.List { return &d.Policy.Lists }, func(s *state.State) map[state.SetID]*state.List { return policyOf(s).Lists }),
	rulesUnit:      entryField(func(d *state.Delta) *map[state.RulesID]*state.Rules { return &d.Policy.Rules }, func(s *state.State) map[state.RulesID]*state.Rules { return policyOf(s).Rules }),
	workloadUnit:   entryField(func(d *state.Delta) *map[netip.Addr]*state.Workload { return &d.Policy.Workloads }, func(s *state.State) map[netip.Addr]*state.Workload { return policyOf(s).Workloads }),
	hostUnit:       entryField(func(d *state.Delta) *map[int]*state.Host { return &d.Policy.Hosts }, func(s *state.State) map[int]*state.Host { return policyOf(s).Hosts }),
	deniedUnit:     valueField[state.Denied]{func(d *state.Delta) **state.Denied { return &d.Policy.Denied }, func(s *state.State) *state.Denied { return &policyOf(s).Denied }},
}

// policyOf is the state's policy, or an empty one.
func policyOf(s *state.State) *state.Policy {
	if s.Policy == nil {
		return &state.Policy{}
	}
	return s.Policy
}

// mapField is a map, each entry of which is a unit: of values V in a state, and of changes D in a
// delta.
type mapField[K comparable, D, V any] struct {
	delta  func(*state.Delta) *map[K]D
	state  func(*state.State) map[K]V
	adds   func(D) bool
	change func(v V, in bool) D // what makes the entry v, or removes it if that is v
	join   func(earlier, later D) D
}

// entryField is a map of values.
func entryField[K comparable, V any](delta func(*state.Delta) *map[K]*V, of func(*state.State) map[K]*V) fieldOf {
	return mapField[K, *V, *V]{delta, of, func(v *V) bool { return v != nil }, func(v *V, in bool) *V {
		if in {
			return v
		}
		return nil
	}, later[*V]}
}

// memberField is a set.
func memberField[K comparable](delta func(*state.Delta) *map[K]bool, of func(*state.State) map[K]struct{}) fieldOf {
	return mapField[K, bool, struct{}]{delta, of, func(in bool) bool { return in }, func(_ struct{}, in bool) bool { return in }, later[bool]}
}

func later[D any](_, d D) D { return d }

// groupField is a map of sets, each of them a unit.
func groupField[M comparable](delta func(*state.Delta) *map[state.SetID]map[M]bool, of func(*state.State) map[state.SetID]map[M]struct{}) fieldOf {
	return mapField[state.SetID, map[M]bool, map[M]struct{}]{delta, of, func(members map[M]bool) bool {
		for _, in := range members {
			if in {
				return true
			}
		}
		return false
	}, func(members map[M]struct{}, in bool) map[M]bool {
		all := make(map[M]bool, len(members))
		for m := range members {
			all[m] = in
		}
		return all
	}, func(earlier, later map[M]bool) map[M]bool {
		both := make(map[M]bool, len(earlier)+len(later))
		maps.Copy(both, earlier)
		for m, in := range later {
			if both[m] = in; !in && earlier[m] {
				delete(both, m)
			}
		}
		return both
	}}
}

func (f mapField[K, D, V]) each(d *state.Delta, yield func(any))   { eachKey(*f.delta(d), yield) }
func (f mapField[K, D, V]) eachOf(s *state.State, yield func(any)) { eachKey(f.state(s), yield) }
func (f mapField[K, D, V]) names(d *state.Delta, key any) bool     { return has(*f.delta(d), key) }
func (f mapField[K, D, V]) wanted(d *state.Delta, key any) bool {
	return f.adds((*f.delta(d))[key.(K)])
}
func (f mapField[K, D, V]) forget(d *state.Delta, key any) { delete(*f.delta(d), key.(K)) }

func (f mapField[K, D, V]) move(from *state.Delta, key any, to *state.Delta) {
	k := key.(K)
	put(f.delta(to), k, f.join((*f.delta(to))[k], (*f.delta(from))[k]))
}

func (f mapField[K, D, V]) read(s *state.State, key any, to *state.Delta) bool {
	return f.put(s, key, to, true)
}

func (f mapField[K, D, V]) takeOut(s *state.State, key any, to *state.Delta) {
	f.put(s, key, to, false)
}

func (f mapField[K, D, V]) put(s *state.State, key any, to *state.Delta, in bool) bool {
	v, there := f.state(s)[key.(K)]
	if there {
		put(f.delta(to), key.(K), f.change(v, in))
	}
	return there
}

// valueField is a field with one value. Set aside, it is the zero value, or what it was.
type valueField[V any] struct {
	delta func(*state.Delta) **V
	state func(*state.State) *V
}

func (f valueField[V]) each(d *state.Delta, yield func(any)) {
	if *f.delta(d) != nil {
		yield(nil)
	}
}
func (f valueField[V]) eachOf(_ *state.State, yield func(any))         { yield(nil) }
func (f valueField[V]) names(d *state.Delta, _ any) bool               { return *f.delta(d) != nil }
func (f valueField[V]) wanted(d *state.Delta, _ any) bool              { return *f.delta(d) != nil }
func (f valueField[V]) forget(d *state.Delta, _ any)                   { *f.delta(d) = nil }
func (f valueField[V]) move(from *state.Delta, _ any, to *state.Delta) { *f.delta(to) = *f.delta(from) }
func (f valueField[V]) takeOut(_ *state.State, _ any, to *state.Delta) { *f.delta(to) = new(V) }
func (f valueField[V]) read(s *state.State, _ any, to *state.Delta) bool {
	v := *f.state(s)
	*f.delta(to) = &v
	return true
}

func eachKey[K comparable, V any](m map[K]V, yield func(any)) {
	for k := range m {
		yield(k)
	}
}

func has[K comparable, V any](m map[K]V, key any) bool {
	_, ok := m[key.(K)]
	return ok
}

// put writes into a map that may be nil still.
func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

// whole is the delta that leads from nothing to the state.
func whole(s *state.State) (d state.Delta) {
	for _, f := range fields {
		f.eachOf(s, func(key any) { f.read(s, key, &d) })
	}
	return d
}

// cloneDelta copies the maps that hold a delta's units.
func cloneDelta(d state.Delta) (c state.Delta) {
	for _, f := range fields {
		f.each(&d, func(key any) { f.move(&d, key, &c) })
	}
	return c
}
