package policytest

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/remedy"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/policytest/oracle"
)

// TestSuggestions asks for remedies for what random policies deny. The policies that are suggested
// are read as a user would apply them. With them the connection passes, and none else that did not,
// except for those between pods with the same labels.
func TestSuggestions(t *testing.T) {
	t.Parallel()
	kindsSeen, near, hopeless := map[model.Kind]int{}, 0, map[string]int{}
	for seed := range uint64(*clusters / 8) {
		o := newDice(7_000_000 + seed).cluster()
		product := productOf(t, o)
		d := newDice(seed)
		for range 20 {
			c, ok := d.connection(o)
			if !ok || product.Allowed(c) || c.From == c.To {
				continue
			}
			product := productOf(t, o)
			before := tableOf(product, o, c)
			given, nearest, err := product.remedies(t, c)
			near += nearest
			if err != nil {
				hopeless[reasonOf(err)]++
				continue
			}
			for _, s := range given {
				kindsSeen[s.Object.Kind]++
			}
			text := func() string {
				objects, _ := yaml.Marshal(o)
				all := string(objects)
				for _, s := range given {
					all += "---\n" + s.YAML
				}
				return all
			}
			if !product.Allowed(c) {
				t.Fatalf("seed %d: with what is suggested, %+v is still denied: %+v\n%s", seed, c, product.Walk(c), text())
			}
			meant := productOf(t, o)
			for _, s := range given {
				meant.Apply([]store.Event{{Kind: s.Object.Kind, Name: s.Object.Name, Object: s.Policy}})
			}
			for other, was := range before {
				if got := meant.Allowed(other); got != product.Allowed(other) {
					t.Fatalf("seed %d: for %+v, %+v passes as written: %v, as meant: %v\n%s", seed, c, other, product.Allowed(other), got, text())
				}
				if now := product.Allowed(other); now != was && !(now && alike(product, other.From, c.From) && alike(product, other.To, c.To) && other.Port == c.Port && other.Protocol == c.Protocol) {
					t.Fatalf("seed %d: for %+v (%+v to %+v) it changes also %+v (%+v to %+v), from %v to %v\n%+v\n%+v\n%s", seed, c, product.podAt(c.From), product.podAt(c.To),
						other, product.podAt(other.From), product.podAt(other.To), was, now, productOf(t, o).Walk(other), product.Walk(other), text())
				}
			}
		}
	}
	t.Logf("%v suggested, %d rules named that come close, no remedy: %v", kindsSeen, near, hopeless)
	for _, kind := range []model.Kind{model.NetworkPolicy, model.ClusterPolicy, model.CalicoPolicy} {
		if kindsSeen[kind] == 0 {
			t.Errorf("no %s was ever suggested", kind)
		}
	}
	if near == 0 {
		t.Error("no rule ever came close")
	}
}

// reasonOf is an error without its names.
func reasonOf(err error) string {
	first, _, _ := strings.Cut(err.Error(), ":")
	return strings.Join(strings.FieldsFunc(first, func(r rune) bool { return r < 'A' }), " ")
}

// remedies applies what is suggested until the connection passes.
func (p *Product) remedies(t *testing.T, c oracle.Connection) (given []remedy.Suggestion, near int, err error) {
	t.Helper()
	for range 4 {
		for _, s := range p.Walk(c) {
			if s.Outcome != verdict.Denied {
				continue
			}
			s.Flow = verdict.Flow{Source: c.From, Destination: c.To, Protocol: uint8(numbers[c.Protocol]), SourcePort: 40000, DestinationPort: uint16(c.Port)}
			var one remedy.Suggestion
			p.store.Read(func(v *store.View) {
				for _, n := range remedy.Nearest(v, s, nil) {
					near++
					if len(n.Lacks) == 0 {
						t.Errorf("%v %s comes close and lacks nothing", n.Policy, n.Rule)
					}
				}
				one, err = remedy.Allow(v, s)
			})
			if err != nil {
				if s.Drop == state.DropPolicy && s.Rule == "" && s.Tier == model.DefaultTier.Name && hasLabels(p, s.Of.Name) && hasLabels(p, p.podAt(c.From).Name) && hasLabels(p, p.podAt(c.To).Name) {
					t.Errorf("no remedy for %+v: %v", s, err)
				}
				return given, near, err
			}
			given = append(given, one)
			p.Apply([]store.Event{{Kind: one.Object.Kind, Name: one.Object.Name, Object: parsed(t, one)}})
		}
		if p.Allowed(c) {
			break
		}
	}
	return given, near, nil
}

// parsed is a suggestion as a source reads it.
func parsed(t *testing.T, s remedy.Suggestion) model.Object {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(s.YAML))
	if err != nil {
		t.Fatalf("%v\n%s", err, s.YAML)
	}
	o, err := kinds.Find(s.Object.Kind).Decode(kinds.Text{Data: data})
	if err != nil {
		t.Fatalf("%v\n%s", err, s.YAML)
	}
	if o.Ref() != s.Object {
		t.Fatalf("it is %v, want %v\n%s", o.Ref(), s.Object, s.YAML)
	}
	return o
}

func hasLabels(p *Product, name model.Name) bool {
	var pod *model.Pod
	p.store.Read(func(v *store.View) { pod = v.Pod(name) })
	return pod == nil || len(pod.Labels) > 0
}

func (p *Product) podAt(a netip.Addr) model.Pod {
	if pod := p.store.PodByAddr(a); pod != nil {
		return *pod
	}
	return model.Pod{}
}

// alike reports whether labels cannot tell the pods of two addresses apart.
func alike(p *Product, a, b netip.Addr) bool {
	one, other := p.podAt(a), p.podAt(b)
	return a == b || one.Name.Namespace != "" && one.Name.Namespace == other.Name.Namespace && maps.Equal(one.Labels, other.Labels)
}

// tableOf is what becomes of connections between all pods, on the connection's port and others.
func tableOf(p *Product, o *oracle.Objects, c oracle.Connection) map[oracle.Connection]bool {
	table := map[oracle.Connection]bool{}
	for other := range truthTable(o, []int32{c.Port, 53, 8080}) {
		if p.Policy().Workloads[other.From] != nil || p.Policy().Workloads[other.To] != nil {
			table[other] = p.Allowed(other)
		}
	}
	return table
}
