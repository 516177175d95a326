package model_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// expression is a selector beside what it means, evaluated in the plainest way.
type expression struct {
	selector model.Selector
	holds    func(map[string]string) bool
	shuffled func(*rand.Rand) model.Selector // the same, its terms and values in another order
}

var (
	someKeys   = []string{"a", "b", model.OrchestratorLabel, model.NamespaceLabelPrefix + "c"}
	someValues = []string{"", "x", "xy", "yx"}
)

func pick(r *rand.Rand, list []string) string { return list[r.IntN(len(list))] }

// randomLeaf is a test of one label.
func randomLeaf(r *rand.Rand) expression {
	key, value := pick(r, someKeys), pick(r, someValues)
	leaf := func(s model.Selector, holds func(string) bool) expression {
		return expression{s, func(m map[string]string) bool {
			v, ok := m[key]
			return ok && holds(v)
		}, func(*rand.Rand) model.Selector { return s }}
	}
	switch r.IntN(7) {
	case 0:
		return leaf(model.Has(key), func(string) bool { return true })
	case 1:
		return leaf(model.Equal(key, value), func(v string) bool { return v == value })
	case 2:
		return leaf(model.Contains(key, value), func(v string) bool { return strings.Contains(v, value) })
	case 3:
		return leaf(model.StartsWith(key, value), func(v string) bool { return strings.HasPrefix(v, value) })
	case 4:
		return leaf(model.EndsWith(key, value), func(v string) bool { return strings.HasSuffix(v, value) })
	case 5:
		all := expression{model.Everything(), func(map[string]string) bool { return true }, nil}
		all.shuffled = func(*rand.Rand) model.Selector { return model.Everything() }
		return all
	}
	values := []string{value, pick(r, someValues), pick(r, someValues)}[:r.IntN(4)]
	e := leaf(model.In(key, values...), func(v string) bool { return slices.Contains(values, v) })
	e.shuffled = func(r *rand.Rand) model.Selector {
		v := append(slices.Clone(values), values...)
		r.Shuffle(len(v), func(i, j int) { v[i], v[j] = v[j], v[i] })
		return model.In(key, v...)
	}
	return e
}

// randomExpression combines tests, so many levels deep at the most.
func randomExpression(r *rand.Rand, depth int) expression {
	if depth == 0 || r.IntN(4) == 0 {
		return randomLeaf(r)
	}
	if r.IntN(3) == 0 {
		e := randomExpression(r, depth-1)
		return expression{
			model.Not(e.selector),
			func(m map[string]string) bool { return !e.holds(m) },
			func(r *rand.Rand) model.Selector { return model.Not(e.shuffled(r)) },
		}
	}
	combine, and := model.Or, false
	if r.IntN(2) == 0 {
		combine, and = model.And, true
	}
	terms := make([]expression, r.IntN(4))
	selectors := make([]model.Selector, len(terms))
	for i := range terms {
		terms[i] = randomExpression(r, depth-1)
		selectors[i] = terms[i].selector
	}
	return expression{
		combine(selectors...),
		func(m map[string]string) bool {
			for _, t := range terms {
				if t.holds(m) != and {
					return !and
				}
			}
			return and
		},
		func(r *rand.Rand) model.Selector {
			again := make([]model.Selector, 0, 2*len(terms))
			for _, t := range terms {
				again = append(again, t.shuffled(r), t.shuffled(r))
			}
			r.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
			return combine(again...)
		},
	}
}

// everyObject is every object that can be told apart by the labels above.
func everyObject() []map[string]string {
	objects := []map[string]string{{}}
	for _, k := range someKeys {
		for _, o := range slices.Clone(objects) {
			for _, v := range someValues {
				with := map[string]string{k: v}
				for k, v := range o {
					with[k] = v
				}
				objects = append(objects, with)
			}
		}
	}
	return objects
}

// TestSelectors compares random selectors with a plain evaluation of the same expressions, on every
// object and on all at once; and holds that anchors miss nothing, that order and repetition make no
// difference to what a selector prints, and that what prints the same selects the same.
func TestSelectors(t *testing.T) {
	objects := everyObject()
	labels := make([]model.LabelMap, len(objects))
	for i, o := range objects {
		labels[i] = o
	}
	population := model.NewPopulation(labels)
	selected := map[string]string{} // by what a selector prints
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 3))
		e := randomExpression(r, 4)
		text := e.selector.String()
		if got := e.shuffled(r).String(); got != text {
			t.Fatalf("seed %d: %q, shuffled, prints %q", seed, text, got)
		}
		anchors, anchored := e.selector.Anchors()
		var verdicts strings.Builder
		at := population.Selected(e.selector)
		for i, o := range objects {
			want, got := e.holds(o), e.selector.Matches(model.LabelMap(o))
			if got != want || at.Has(i) != want {
				t.Fatalf("seed %d: %q on %v: %v, and %v of all, want %v", seed, text, o, got, at.Has(i), want)
			}
			fmt.Fprintf(&verdicts, "%t ", got)
			if got && anchored && !hasOne(o, anchors) {
				t.Fatalf("seed %d: %q selects %v, which has none of %v", seed, text, o, anchors)
			}
		}
		if before, ok := selected[text]; ok && before != verdicts.String() {
			t.Fatalf("seed %d: two selectors print %q, and select different objects", seed, text)
		}
		selected[text] = verdicts.String()
	}
	if len(selected) < 400 {
		t.Errorf("only %d different selectors", len(selected))
	}
}

func hasOne(labels map[string]string, anchors []model.Anchor) bool {
	return slices.ContainsFunc(anchors, func(a model.Anchor) bool {
		v, ok := labels[a.Key]
		return ok && (a.Any || v == a.Value)
	})
}

func TestSelectorString(t *testing.T) {
	has, eq, and, or, not := model.Has, model.Equal, model.And, model.Or, model.Not
	for _, c := range []struct {
		s    model.Selector
		want string
	}{
		{model.Selector{}, ""},
		{model.Or(), ""},
		{model.And(), "all()"},
		{and(has("b"), model.Everything(), has("a"), has("b")), "has(a) && has(b)"},
		{or(has("b"), model.Selector{}, or(has("a"), has("c"))), "has(a) || has(b) || has(c)"},
		{and(or(has("a"), has("b")), eq("c", "d")), "c == 'd' && (has(a) || has(b))"},
		{not(and(has("a"), has("b"))), "!(has(a) && has(b))"},
		{not(not(has("a"))), "has(a)"},
		{model.In("a", "z", "x", "z"), "a in {'x', 'z'}"},
		{model.In("a"), "a in {}"},
		{eq("a", "it's"), `a == "it's"`},
		{model.Contains("a", "x"), "a contains 'x'"},
		{model.StartsWith("a", "x"), "a starts with 'x'"},
		{model.EndsWith("a", "x"), "a ends with 'x'"},
	} {
		if got := c.s.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
		if c.s.IsZero() != (c.want == "") {
			t.Errorf("IsZero of %q is %v", c.want, c.s.IsZero())
		}
	}
}

func TestSelectorAnchors(t *testing.T) {
	has, eq, and, or, not := model.Has, model.Equal, model.And, model.Or, model.Not
	pod := eq(model.OrchestratorLabel, "k8s")
	for _, c := range []struct {
		s    model.Selector
		want []model.Anchor
		ok   bool
	}{
		{model.Selector{}, nil, true},
		{model.Everything(), nil, false},
		{not(has("a")), nil, false},
		{or(has("a"), not(has("b"))), nil, false},
		{or(has("a"), eq("b", "x")), []model.Anchor{{Key: "b", Value: "x"}, {Key: "a", Any: true}}, true},
		// The most selective label: the object's own before its namespace's before what every pod
		// has.
		{and(pod, eq("app", "web"), eq(model.NamespaceLabel, "shop")), []model.Anchor{{Key: "app", Value: "web"}}, true},
		{and(pod, not(has("app")), eq(model.NamespaceLabel, "shop")), []model.Anchor{{Key: model.NamespaceLabel, Value: "shop"}}, true},
		{and(pod, eq(model.NamespaceLabelPrefix+"team", "a"), has("app")), []model.Anchor{{Key: "app", Any: true}}, true},
		{and(pod, eq(model.ServiceAccountLabelPrefix+"role", "a"), eq("app", "web")), []model.Anchor{{Key: "app", Value: "web"}}, true},
		{and(eq(model.NamespaceLabelPrefix+"team", "a"), eq(model.ServiceAccountLabelPrefix+"role", "a")), []model.Anchor{{Key: "pcsa.role", Value: "a"}}, true},
		{and(has("app"), eq("tier", "x")), []model.Anchor{{Key: "tier", Value: "x"}}, true},
		{pod, []model.Anchor{{Key: model.OrchestratorLabel, Value: "k8s"}}, true},
	} {
		got, ok := c.s.Anchors()
		if ok != c.ok || !slices.Equal(got, c.want) {
			t.Errorf("%s: anchors %v, %v; want %v, %v", c.s, got, ok, c.want, c.ok)
		}
	}
}
