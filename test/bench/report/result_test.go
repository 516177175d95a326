package report

import "testing"

func TestSpread(t *testing.T) {
	for _, tc := range []struct {
		in   []float64
		want Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{3, 1, 2}, Spread{2, 1, 3}},
		{[]float64{4, 1, 2, 3}, Spread{2.5, 1, 4}},
	} {
		if got := SpreadOf(tc.in); got != tc.want {
			t.Errorf("spread(%v) = %v, want %v", tc.in, got, tc.want)
		}
	}
}

// TestRatiosPairRounds: no ratio changes if the machine is half as fast during the second round.
func TestRatiosPairRounds(t *testing.T) {
	a, base := &Measurement{Samples: []float64{11, 22, 11}}, &Measurement{Samples: []float64{10, 20, 10}}
	if got, want := Ratios(a, base), (Spread{1.1, 1.1, 1.1}); got != want {
		t.Errorf("ratios = %v, want %v", got, want)
	}
}
