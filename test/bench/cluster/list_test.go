package cluster_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/test/bench/cluster"
)

// TestLists: a list has the requested number of entries, sorted and unique, and none of them
// contains an address that must not match.
func TestLists(t *testing.T) {
	for name, tc := range map[string]struct {
		list    []netip.Prefix
		size    int
		lengths int
	}{
		"addresses":      {cluster.Addresses(1_000), 1_000, 1},
		"networks":       {cluster.Networks(10_000), 10_000, 20},
		"a few networks": {cluster.Networks(100), 100, 20},
	} {
		lengths := map[int]int{}
		for _, p := range tc.list {
			lengths[p.Bits()]++
			if first := p.Addr().As4()[0]; first < 32 || first > 62 || first%2 != 0 || p.Bits() < 8 {
				t.Fatalf("%s: %s may hold what the list must not", name, p)
			}
		}
		if len(tc.list) != tc.size || len(lengths) != tc.lengths {
			t.Errorf("%s: %d entries of lengths %v, want %d of %d", name, len(tc.list), slices.Sorted(maps.Keys(lengths)), tc.size, tc.lengths)
		}
		if !slices.IsSortedFunc(tc.list, netip.Prefix.Compare) || len(slices.Compact(slices.Clone(tc.list))) != tc.size {
			t.Errorf("%s: not sorted and unique", name)
		}
	}
}
