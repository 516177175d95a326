package sets

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"sluice.dev/sluice/internal/state"
)

// Ids depend on the names in use alone, also where nearly all of them are taken.
func TestIDsDependOnNamesInUse(t *testing.T) {
	for seed := range uint64(200) {
		w := rand.New(rand.NewPCG(seed, 1))
		space := []uint32{11, 40, IDSpace}[w.IntN(3)]
		x := newIDs(space)
		in := map[string]*handle{}
		for range 60 {
			key := fmt.Sprint("name ", w.IntN(10))
			before := current(in)
			x.moved = false
			if h := in[key]; h != nil {
				x.remove(h)
				delete(in, key)
				if h.id != 0 {
					t.Fatalf("seed %d: %s is removed and has the id %x", seed, key, h.id)
				}
			} else {
				in[key] = &handle{key: key}
				x.add(in[key])
			}
			fresh := newIDs(space)
			again := map[string]*handle{}
			for key := range in { // in some order
				again[key] = &handle{key: key}
				fresh.add(again[key])
			}
			got := current(in)
			if !maps.Equal(got, current(again)) {
				t.Fatalf("seed %d: ids %v, want %v", seed, got, current(again))
			}
			taken := map[state.SetID]bool{0: true}
			for key, id := range got {
				if taken[id] || id >= 1<<24 {
					t.Fatalf("seed %d: %s has the id %x", seed, key, id)
				}
				taken[id] = true
				if was := before[key]; was != 0 && was != id && !x.moved {
					t.Fatalf("seed %d: %s moved from %x to %x unnoticed", seed, key, was, id)
				}
			}
		}
	}
}

func current(in map[string]*handle) map[string]state.SetID {
	ids := map[string]state.SetID{}
	for key, h := range in {
		ids[key] = h.id
	}
	return ids
}
