package soak

import (
	"slices"
	"testing"
)

func TestDifference(t *testing.T) {
	for _, tc := range []struct{ a, b, onlyA, onlyB []string }{
		{nil, nil, nil, nil},
		{[]string{"a", "b"}, []string{"a", "b"}, nil, nil},
		{[]string{"a", "c"}, []string{"b", "c", "d"}, []string{"a"}, []string{"b", "d"}},
		{[]string{"a", "a"}, []string{"a"}, []string{"a"}, nil},
	} {
		if a, b := difference(tc.a, tc.b); !slices.Equal(a, tc.onlyA) || !slices.Equal(b, tc.onlyB) {
			t.Errorf("difference(%q, %q) = %q, %q", tc.a, tc.b, a, b)
		}
	}
}
