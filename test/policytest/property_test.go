package policytest

import (
	"flag"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/policytest/oracle"
)

var clusters = flag.Int("clusters", 1000, "how many random clusters to try")

const asked = 60 // connections in each random cluster

// TestRandom compares the product with the oracle on random clusters.
func TestRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(*clusters) {
		o := newDice(seed).cluster()
		if _, bad := disagreement(t, o, seed); bad {
			o = shrink(o, func(o *oracle.Objects) bool { _, bad := disagreement(t, o, seed); return bad })
			c, _ := disagreement(t, o, seed)
			text, _ := yaml.Marshal(o)
			product := productOf(t, o)
			t.Fatalf("seed %d: %+v: product %v, oracle %v\n%+v\n%s", seed, c, product.Allowed(c), o.Allowed(c), product.Walk(c), text)
		}
	}
}

func productOf(t *testing.T, o *oracle.Objects) *Product {
	t.Helper()
	p := NewProduct(LinksOf(o))
	if _, err := p.Set(o); err != nil {
		t.Fatal(err)
	}
	return p
}

// disagreement finds a connection on which product and oracle differ.
func disagreement(t *testing.T, o *oracle.Objects, seed uint64) (c oracle.Connection, bad bool) {
	t.Helper()
	product := productOf(t, o)
	d := newDice(seed)
	for range asked {
		c, ok := d.connection(o)
		if !ok {
			break
		}
		if _, denied := verdict.Denial(product.Walk(c)); denied == locally(o, c) {
			return c, true
		}
	}
	return c, false
}

// shrink leaves out what it can of the objects as long as they fail.
func shrink(o *oracle.Objects, fails func(*oracle.Objects) bool) *oracle.Objects {
	for again := true; again; {
		again = false
		for _, without := range smaller(o) {
			if fails(without) {
				o, again = without, true
				break
			}
		}
	}
	return o
}

// smaller are the objects with one of them left out each.
func smaller(o *oracle.Objects) (all []*oracle.Objects) {
	less := func(n int, drop func(o *oracle.Objects, i int)) {
		for i := range n {
			c := clone(o)
			drop(c, i)
			all = append(all, c)
		}
	}
	less(len(o.NetworkPolicies), func(o *oracle.Objects, i int) { o.NetworkPolicies = slices.Delete(o.NetworkPolicies, i, i+1) })
	less(len(o.ClusterPolicies), func(o *oracle.Objects, i int) { o.ClusterPolicies = slices.Delete(o.ClusterPolicies, i, i+1) })
	less(len(o.Calico.Policies), func(o *oracle.Objects, i int) { o.Calico.Policies = slices.Delete(o.Calico.Policies, i, i+1) })
	less(len(o.Calico.Sets), func(o *oracle.Objects, i int) { o.Calico.Sets = slices.Delete(o.Calico.Sets, i, i+1) })
	less(len(o.Slices), func(o *oracle.Objects, i int) { o.Slices = slices.Delete(o.Slices, i, i+1) })
	less(len(o.Pods), func(o *oracle.Objects, i int) { o.Pods = slices.Delete(o.Pods, i, i+1) })
	for i, np := range o.NetworkPolicies {
		for j := range np.Spec.Ingress {
			less(1, func(o *oracle.Objects, _ int) {
				o.NetworkPolicies[i] = np.DeepCopy()
				o.NetworkPolicies[i].Spec.Ingress = slices.Delete(o.NetworkPolicies[i].Spec.Ingress, j, j+1)
			})
		}
		for j := range np.Spec.Egress {
			less(1, func(o *oracle.Objects, _ int) {
				o.NetworkPolicies[i] = np.DeepCopy()
				o.NetworkPolicies[i].Spec.Egress = slices.Delete(o.NetworkPolicies[i].Spec.Egress, j, j+1)
			})
		}
	}
	return all
}

// TestOrder applies the objects of random clusters at once, and one by one in another order
// with repetitions and with others that come and go between them: the state must be the
// same, and the deltas must lead there.
func TestOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(*clusters) / 5 {
		d := newDice(seed)
		o, other := d.cluster(), d.cluster()
		want := productOf(t, o)
		got, mirror := NewProduct(LinksOf(o)), state.New()
		mirror.Policy = state.NewPolicy()
		mirror.Apply(got.Apply(nil))
		for _, objects := range []*oracle.Objects{other, o} {
			events, err := Events(objects)
			if err != nil {
				t.Fatal(err)
			}
			events = append(got.changes(events), events...)
			d.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
			for part := range slices.Chunk(events, 1+d.IntN(4)) {
				mirror.Apply(got.Apply(part))
			}
			// What was shuffled past its removal is removed once more.
			mirror.Apply(got.Apply(got.changes(mustEvents(t, objects))))
		}
		if !reflect.DeepEqual(got.Policy(), want.Policy()) {
			t.Fatalf("seed %d: the state depends on the way there:\n%s", seed, differences(got.Policy(), want.Policy()))
		}
		if !reflect.DeepEqual(mirror.Policy, want.Policy()) {
			t.Fatalf("seed %d: the changes do not lead to the state:\n%s", seed, differences(mirror.Policy, want.Policy()))
		}
	}
}

func mustEvents(t testing.TB, o *oracle.Objects) []store.Event {
	t.Helper()
	events, err := Events(o)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// differences names the fields that differ.
func differences(got, want *state.Policy) (text string) {
	g, w := reflect.ValueOf(*got), reflect.ValueOf(*want)
	for i := range g.NumField() {
		if !reflect.DeepEqual(g.Field(i).Interface(), w.Field(i).Interface()) {
			a, _ := yaml.Marshal(g.Field(i).Interface())
			b, _ := yaml.Marshal(w.Field(i).Interface())
			text += g.Type().Field(i).Name + "\ngot:\n" + string(a) + "want:\n" + string(b)
		}
	}
	return text
}

// locally is what the node under test is to say: it judges the ends that are its own pods.
func locally(o *oracle.Objects, c oracle.Connection) bool {
	own := func(a string) bool {
		return slices.ContainsFunc(PodCIDRs, func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr(a)) })
	}
	return c.From == c.To || (!own(c.From.String()) || o.Sends(c)) && (!own(c.To.String()) || o.Receives(c))
}

// TestEveryFieldIsAsked has each field of a rule be set by some random cluster, so that a field
// which is new cannot be left out of the comparisons.
func TestEveryFieldIsAsked(t *testing.T) {
	t.Parallel()
	missing := map[string]bool{}
	for _, of := range []reflect.Type{reflect.TypeFor[state.Rule](), reflect.TypeFor[state.End](), reflect.TypeFor[state.Term](), reflect.TypeFor[state.Ports]()} {
		for i := range of.NumField() {
			missing[of.Name()+"."+of.Field(i).Name] = true
		}
	}
	delete(missing, "Rule.ICMP") // connections of the clusters have ports; rows ask for types of ICMP
	delete(missing, "Rule.NotICMP")
	var look func(v reflect.Value)
	look = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				look(v.Elem())
			}
		case reflect.Slice:
			for i := range v.Len() {
				look(v.Index(i))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if f := v.Field(i); !f.IsZero() {
					delete(missing, v.Type().Name()+"."+v.Type().Field(i).Name)
					look(f)
				}
			}
		}
	}
	for seed := range uint64(100) {
		for _, rules := range productOf(t, newDice(seed).cluster()).Compiler.State().Policy.Rules {
			look(reflect.ValueOf(rules))
		}
	}
	if len(missing) > 0 {
		t.Errorf("no random cluster has %v", missing)
	}
}
