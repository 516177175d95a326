package diff_test

import (
	"maps"
	"math/rand/v2"
	"testing"

	"sluice.dev/sluice/internal/lib/diff"
)

// What a flush tells leads from what was there at the last one to what is there now, and names
// nothing that is the same.
func TestMapTellsTheDifference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	now := map[int]*int{}
	m := diff.NewMap(now, diff.Values[int])
	values := func() map[int]int {
		c := map[int]int{}
		for k, v := range now {
			c[k] = *v
		}
		return c
	}
	for range 2000 {
		was := values()
		for range r.IntN(6) {
			if k := r.IntN(4); r.IntN(3) == 0 {
				m.Set(k, nil)
			} else {
				m.Set(k, new(r.IntN(3)))
			}
		}
		got := maps.Clone(was)
		for k, v := range m.Flush() {
			old, had := was[k]
			switch {
			case v == nil && !had, v != nil && had && *v == old:
				t.Fatalf("%d is the same as before, and told", k)
			case v == nil:
				delete(got, k)
			default:
				got[k] = *v
			}
		}
		if !maps.Equal(got, values()) {
			t.Fatalf("the difference leads from %v to %v, not to %v", was, got, values())
		}
	}
}

// A member is in a set for as long as there is a reason.
func TestSetTellsTheDifference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	now, reasons := map[int]struct{}{}, map[int]int{}
	s := diff.NewSet(now)
	for range 2000 {
		was := maps.Clone(now)
		for range r.IntN(8) {
			if k := r.IntN(4); r.IntN(2) == 0 {
				s.Add(k)
				reasons[k]++
			} else if reasons[k] > 0 {
				s.Remove(k)
				reasons[k]--
			}
		}
		for k, came := range s.Flush() {
			if _, had := was[k]; came == had {
				t.Fatalf("%d came (%t), and was there (%t)", k, came, had)
			}
			if came {
				was[k] = struct{}{}
			} else {
				delete(was, k)
			}
		}
		if !maps.Equal(was, now) {
			t.Fatalf("the difference leads to %v, not to %v", was, now)
		}
		for k, n := range reasons {
			if _, in := now[k]; in != (n > 0) {
				t.Fatalf("%d has %d reasons; it is in the set: %t", k, n, in)
			}
		}
	}
}

// Before it is published, a set tells nothing; all that it has is new then.
func TestSetBeforeItIsPublished(t *testing.T) {
	var s diff.Set[int]
	s.Add(1)
	s.Add(2)
	s.Remove(2)
	if len(s.Touched()) > 0 || len(s.Members()) != 1 {
		t.Fatalf("touched %v of %v", s.Touched(), s.Members())
	}
	s.Publish()
	s.Remove(1)
	if d := s.Flush(); len(d) != 1 || d[1] {
		t.Fatalf("%v", d)
	}
}
