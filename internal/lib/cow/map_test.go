package cow

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// TestMap compares with Go's maps: what is written to a copy is in no other one.
func TestMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	type version struct {
		got  Map[int, int]
		want map[int]int
	}
	versions := []version{{want: map[int]int{}}}
	for step := range 3000 {
		v := versions[r.IntN(len(versions))]
		v.want = maps.Clone(v.want)
		for range r.IntN(20) {
			if key := r.IntN(300); r.IntN(2) == 0 {
				v.got.Set(key, step)
				v.want[key] = step
			} else {
				v.got.Delete(key)
				delete(v.want, key)
			}
		}
		versions = append(versions, v)
	}
	for _, v := range versions {
		if got := maps.Collect(v.got.All()); !maps.Equal(got, v.want) || v.got.Len() != len(v.want) {
			t.Fatalf("%d entries: %v, want %v", v.got.Len(), got, v.want)
		}
		for key := range 300 {
			if v.got.Get(key) != v.want[key] {
				t.Fatalf("%d: %d, want %d", key, v.got.Get(key), v.want[key])
			}
		}
	}
}

// TestEmpty leaves nothing of a map whose entries are gone, and stops where it is told to.
func TestEmpty(t *testing.T) {
	var m Map[string, bool]
	m.Set("a", true)
	m.Set("b", true)
	for range m.All() {
		break
	}
	m.Delete("c")
	m.Delete("a")
	if m.Delete("b"); m.root != nil || m.Len() != 0 {
		t.Errorf("left: %v", m)
	}
}
