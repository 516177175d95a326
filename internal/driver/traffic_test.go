package driver

import (
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Sums only grow, whatever becomes of the counters, and are those of backends that are there.
func TestTally(t *testing.T) {
	var tally Tally[string]
	web := map[string]*state.Farm{"web": {Farm: &model.Farm{Name: "web", Backends: []model.FarmBackend{{Name: "a"}, {Name: "b"}}}}}
	a, b := Backend{"web", "a"}, Backend{"web", "b"}
	read := func(farms map[string]*state.Farm, of map[string]Backend, counters map[string]uint64) map[Backend]uint64 {
		for key, n := range counters {
			tally.Count(key, of[key], Counts{n, 10 * n})
		}
		sums := map[Backend]uint64{}
		tally.End(farms, func(b Backend, _ *state.Farm, got Counts) {
			if sums[b] = got.Times; got.Bytes != 10*got.Times {
				t.Errorf("%d bytes for %d", got.Bytes, got.Times)
			}
		})
		return sums
	}
	of := map[string]Backend{"1": a, "2": a, "3": b}
	for i, step := range []struct {
		name     string
		counters map[string]uint64
		a, b     uint64
	}{
		{"what an earlier process has left", map[string]uint64{"1": 100, "2": 5}, 0, 0},
		{"more", map[string]uint64{"1": 103, "2": 5}, 3, 0},
		{"a counter comes", map[string]uint64{"1": 103, "2": 6, "3": 7}, 4, 7},
		{"one begins again", map[string]uint64{"1": 2, "2": 6, "3": 7}, 6, 7},
		{"one is missed", map[string]uint64{"1": 2, "3": 8}, 6, 8},
		{"and found", map[string]uint64{"1": 2, "2": 7, "3": 8}, 7, 8},
		{"all go", nil, 7, 8},
		{"for long", nil, 7, 8},
		{"and come anew", map[string]uint64{"3": 1}, 7, 9},
	} {
		sums := read(web, of, step.counters)
		if sums[a] != step.a || sums[b] != step.b {
			t.Errorf("%d, %s: %v", i, step.name, sums)
		}
	}
	if sums := read(nil, nil, nil); len(sums) > 0 || len(tally.sums) > 0 {
		t.Errorf("sums of farms that are gone: %v", sums)
	}
	if sums := read(web, of, map[string]uint64{"1": 1}); sums[a] != 1 || sums[b] != 0 {
		t.Errorf("a farm that came back has %v", sums)
	}
}
