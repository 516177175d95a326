package model_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/model"
)

func TestSelectorNamespaces(t *testing.T) {
	shop, prod := model.Equal(model.NamespaceLabel, "shop"), model.In("pcns.kubernetes.io/metadata.name", "prod", "shop")
	app := model.Equal("app", "web")
	for _, tc := range []struct {
		selector model.Selector
		want     []string
		ok       bool
	}{
		{model.Selector{}, nil, true},
		{model.Everything(), nil, false},
		{app, nil, false},
		{shop, []string{"shop"}, true},
		{prod, []string{"prod", "shop"}, true},
		{model.And(app, shop), []string{"shop"}, true},
		{model.Or(app, shop), nil, false},
		{model.Or(model.And(app, shop), prod), []string{"prod", "shop"}, true},
		{model.Not(shop), nil, false},
		{model.Has(model.NamespaceLabel), nil, false},
	} {
		got, ok := tc.selector.Namespaces()
		if ok != tc.ok || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v %t, want %v %t", tc.selector, got, ok, tc.want, tc.ok)
		}
	}
}

// What a selector selects has one of its anchors, and is in one of its namespaces: whoever files
// selectors by them misses nothing.
func TestAnchorsMissNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	keys := []string{"app", "tier", model.NamespaceLabel, model.OrchestratorLabel}
	values := []string{"a", "b", "ab"}
	var random func(depth int) model.Selector
	random = func(depth int) model.Selector {
		key, value := keys[r.IntN(len(keys))], values[r.IntN(len(values))]
		leaves := []model.Selector{
			{}, model.Everything(), model.Has(key), model.Equal(key, value), model.In(key, "a", value),
			model.Contains(key, value), model.StartsWith(key, value), model.EndsWith(key, value),
		}
		if depth == 0 || r.IntN(3) == 0 {
			return leaves[r.IntN(len(leaves))]
		}
		a, b := random(depth-1), random(depth-1)
		return []model.Selector{model.And(a, b), model.Or(a, b), model.Not(a)}[r.IntN(3)]
	}
	for range 20_000 {
		s, labels := random(3), model.LabelMap{}
		for _, k := range keys {
			if r.IntN(3) > 0 {
				labels[k] = values[r.IntN(len(values))]
			}
		}
		if !s.Matches(labels) {
			continue
		}
		anchors, ok := s.Anchors()
		if ok && !slices.ContainsFunc(anchors, func(a model.Anchor) bool { v, has := labels[a.Key]; return has && (a.Any || v == a.Value) }) {
			t.Fatalf("%s selects %v, which has none of %v", s, labels, anchors)
		}
		names, ok := s.Namespaces()
		if ok && !slices.Contains(names, labels[model.NamespaceLabel]) {
			t.Fatalf("%s selects %v, which is in none of %v", s, labels, names)
		}
	}
}
