package fair

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
)

type claim struct {
	name string // "namespace/name"
	asks map[string]int
}

func TestTurns(t *testing.T) {
	ask := func(name string, kv ...any) claim {
		c := claim{name, map[string]int{}}
		for i := 0; i < len(kv); i += 2 {
			c.asks[kv[i].(string)] = kv[i+1].(int)
		}
		return c
	}
	for name, tc := range map[string]struct {
		claims []claim
		want   string
	}{
		"the least first":                    {[]claim{ask("a/x", "1", 30), ask("b/y", "2", 20), ask("c/z", "3", 10)}, "c/z b/y a/x"},
		"many small ones of a namespace":     {[]claim{ask("a/1", "1", 5), ask("a/2", "2", 5), ask("a/3", "3", 5), ask("b/x", "4", 12)}, "a/1 a/2 b/x a/3"},
		"what is shared counts once":         {[]claim{ask("a/1", "k", 5), ask("a/2", "k", 5, "l", 1), ask("b/x", "k", 9)}, "a/1 a/2 b/x"},
		"equal ones by their names":          {[]claim{ask("b/x", "1", 5), ask("a/y", "2", 5), ask("a/x", "3", 5)}, "a/x b/x a/y"},
		"one that asks for nothing is first": {[]claim{ask("a/x", "1", 1), ask("b/x")}, "b/x a/x"},
	} {
		for range 5 {
			slices.Reverse(tc.claims)
			got := Turns(tc.claims,
				func(c claim) string { return strings.Split(c.name, "/")[0] },
				func(c claim) iter.Seq2[string, int] { return maps.All(c.asks) },
				func(a, b claim) int { return strings.Compare(a.name, b.name) })
			var names []string
			for _, c := range got {
				names = append(names, c.name)
			}
			if text := strings.Join(names, " "); text != tc.want {
				t.Errorf("%s: %s, want %s", name, text, tc.want)
			}
		}
	}
}

func TestBound(t *testing.T) {
	b := Bound{Most: 8, Again: 7}
	if b.Limit(false) != 8 || b.Limit(true) != 7 {
		t.Error(b.Limit(false), b.Limit(true))
	}
}
