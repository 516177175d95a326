package state

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// draw fills a value with random content from a domain so small that two deltas often name the
// same. It goes through the fields, so that one that is added is tested, too.
func draw(r *rand.Rand, v reflect.Value) {
	switch x := v.Addr().Interface().(type) {
	case *netip.Addr:
		*x = netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(3))})
		return
	case *netip.AddrPort:
		*x = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(3))}), 80)
		return
	case *netip.Prefix:
		*x = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(3)), 0}), 24)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			draw(r, v.Field(i))
		}
	case reflect.Map:
		if r.IntN(3) == 0 {
			return // nothing of this
		}
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(4) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			draw(r, key)
			draw(r, value)
			if value.Kind() == reflect.Map && value.Len() == 0 {
				continue // a group without a change is none
			}
			v.SetMapIndex(key, value)
		}
	case reflect.Slice:
		for range r.IntN(3) {
			e := reflect.New(v.Type().Elem()).Elem()
			draw(r, e)
			v.Set(reflect.Append(v, e))
		}
	case reflect.Pointer:
		if r.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			draw(r, v.Elem().Addr().Elem())
		}
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.String:
		v.SetString(string(rune('a' + r.IntN(3))))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(r.Int64N(3))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.Uint64N(3))
	}
}

func drawDelta(r *rand.Rand) (d Delta) {
	draw(r, reflect.ValueOf(&d).Elem())
	return d
}

// named is how much a delta names, counted through its fields.
func named(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			n += named(v.Field(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if e := v.MapIndex(k); e.Kind() == reflect.Map {
				n += named(e)
			} else {
				n++
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			n++
		}
	}
	return n
}

func TestDeltas(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		whole := New()
		whole.Policy, whole.Fabric = NewPolicy(), NewFabric()
		whole.Apply(drawDelta(r))
		before := whole.Clone()
		a, b := drawDelta(r), drawDelta(r).Fabric

		if n := named(reflect.ValueOf(a)); a.Len() != n {
			t.Fatalf("seed %d: a delta that names %d is %d long", seed, n, a.Len())
		}
		after := whole.Clone()
		after.Apply(a)
		if !reflect.DeepEqual(whole, before) {
			t.Fatalf("seed %d: a change of a clone changes the original", seed)
		}
		after.Apply(Delta{Fabric: b})

		both := a
		both.Fabric.Merge(b)
		whole.Apply(both)
		if !reflect.DeepEqual(whole, after) {
			t.Fatalf("seed %d: two changes come to\n%+v\ntheir union to\n%+v", seed, after.Fabric, whole.Fabric)
		}
	}
}

// However changes are grouped, they merge to the same, and a change that was merged into another is
// left as it was.
func TestMerge(t *testing.T) {
	for seed := range uint64(2000) {
		deltas := func() (all [3]FabricDelta) { // equal ones, as merging may change maps
			r := rand.New(rand.NewPCG(seed, 1))
			for i := range all {
				all[i] = drawDelta(r).Fabric
			}
			return all
		}
		first, last, untouched := deltas(), deltas(), deltas()
		first[0].Merge(first[1])
		first[0].Merge(first[2])
		last[1].Merge(last[2])
		last[0].Merge(last[1])
		if !reflect.DeepEqual(first[0], last[0]) {
			t.Fatalf("seed %d: (ab)c is\n%+v\na(bc) is\n%+v", seed, first[0], last[0])
		}
		if !reflect.DeepEqual(first[1:], untouched[1:]) || !reflect.DeepEqual(last[2], untouched[2]) {
			t.Fatalf("seed %d: what was merged has changed", seed)
		}
	}
}

// A part that is not there is left alone.
func TestPartsOfAState(t *testing.T) {
	s := &State{Services: NewServices()}
	if c := s.Clone(); c.Policy != nil || c.Fabric != nil || c.Services == s.Services {
		t.Errorf("the clone is %+v", c)
	}
	s.Apply(Delta{Services: ServicesDelta{ClusterIPs: map[netip.Addr]bool{netip.MustParseAddr("10.0.0.1"): true}}})
	if len(s.Services.ClusterIPs) != 1 {
		t.Errorf("services are %+v", s.Services)
	}
}

func TestFrontendKey(t *testing.T) {
	key := func(addr string, protocol model.Protocol, port uint16) FrontendKey {
		k := FrontendKey{Protocol: protocol, Port: port}
		if addr != "" {
			k.Addr = netip.MustParseAddr(addr)
		}
		return k
	}
	sorted := []FrontendKey{
		key("", model.TCP, 30080), key("10.0.0.1", model.TCP, 80), key("10.0.0.1", model.TCP, 443), key("10.0.0.1", model.UDP, 53),
		key("10.0.0.2", model.TCP, 80), key("fd00::1", model.TCP, 80),
	}
	for i := range sorted {
		for j := range sorted {
			if got, want := sorted[i].Compare(sorted[j]), cmpInt(i, j); got != want {
				t.Errorf("%s to %s: %d, want %d", sorted[i], sorted[j], got, want)
			}
		}
	}
}

func cmpInt(i, j int) int {
	switch {
	case i < j:
		return -1
	case i > j:
		return 1
	}
	return 0
}

// Frontends that differ in any field are not equal.
func TestFrontendEqual(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	var a Frontend
	draw(r, reflect.ValueOf(&a).Elem())
	for i := range reflect.TypeFor[Frontend]().NumField() {
		b := a
		if !a.Equal(&b) {
			t.Fatalf("%+v is not equal to itself", a)
		}
		for field := reflect.ValueOf(&b).Elem().Field(i); reflect.DeepEqual(a, b); {
			field.SetZero()
			draw(r, field)
		}
		if a.Equal(&b) {
			t.Errorf("%s does not count", reflect.TypeFor[Frontend]().Field(i).Name)
		}
	}
}

func TestHas(t *testing.T) {
	list := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80"), netip.MustParseAddrPort("10.0.0.2:81")}
	for _, at := range list {
		if !Has(list, at) {
			t.Errorf("%s is not found", at)
		}
	}
	for _, at := range []string{"10.0.0.1:81", "10.0.0.3:80", "[fd00::1]:80"} {
		if Has(list, netip.MustParseAddrPort(at)) {
			t.Errorf("%s is found", at)
		}
	}
}

func TestSettingsEqual(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 0))
	var a Settings
	draw(r, reflect.ValueOf(&a).Elem())
	for i := range reflect.TypeFor[Settings]().NumField() {
		b := a
		if !a.Equal(b) {
			t.Fatalf("%+v is not equal to itself", a)
		}
		for field := reflect.ValueOf(&b).Elem().Field(i); reflect.DeepEqual(a, b); {
			field.SetZero()
			draw(r, field)
		}
		if a.Equal(b) {
			t.Errorf("%s does not count", reflect.TypeFor[Settings]().Field(i).Name)
		}
	}
}

func TestKind(t *testing.T) {
	for kind, want := range map[Kind]string{ClusterIP: "ClusterIP", ExternalIP: "ExternalIP", LoadBalancer: "LoadBalancer", NodePort: "NodePort"} {
		if external := (&Frontend{Kind: kind}).External(); kind.String() != want || external != (kind != ClusterIP) {
			t.Errorf("%s, external: %v", kind, external)
		}
	}
}

func TestPortRange(t *testing.T) {
	r := PortRange{Protocol: model.UDP, First: 10, Last: 20}
	for _, c := range []struct {
		protocol model.Protocol
		port     uint16
		want     bool
	}{{model.UDP, 9, false}, {model.UDP, 10, true}, {model.UDP, 20, true}, {model.UDP, 21, false}, {model.TCP, 15, false}} {
		if got := r.Holds(c.protocol, c.port); got != c.want {
			t.Errorf("%v %d: %v", c.protocol, c.port, got)
		}
	}
}

// The policies of rules are named once each, sorted, and without what no API declares.
func TestDeclared(t *testing.T) {
	key := func(kind model.Kind, name string) model.PolicyKey {
		return model.PolicyKey{Kind: kind, Name: model.Name{Name: name}}
	}
	tier := func(keys ...model.PolicyKey) (t Tier) {
		for _, k := range keys {
			t.Policies = append(t.Policies, &PolicyRules{Policy: k})
		}
		return t
	}
	a, b := key(model.NetworkPolicy, "a"), key(model.NetworkPolicy, "b")
	p := &Rules{Tiers: []Tier{tier(b, key(model.Failsafe, "in")), tier(), tier(a, b)}}
	if got := p.Declared(); !slices.Equal(got, []model.PolicyKey{a, b}) {
		t.Errorf("declared: %v", got)
	}
	if got := (*Rules)(nil).Declared(); len(got) > 0 {
		t.Errorf("declared by none: %v", got)
	}
}

// RulesIDs are all fields of a host that name rules.
func TestHostRulesIDs(t *testing.T) {
	var h Host
	for i, id := range h.RulesIDs() {
		*id = RulesID(rune('a' + i))
	}
	v, ids := reflect.ValueOf(h), map[RulesID]bool{}
	for i := range v.NumField() {
		if id, is := v.Field(i).Interface().(RulesID); is {
			ids[id] = true
		}
	}
	if len(ids) != len(h.RulesIDs()) || ids[""] {
		t.Errorf("ids: %v", ids)
	}
}
