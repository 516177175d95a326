package ruleset

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/kernel/attr"
)

func someBackends(n int) []netip.AddrPort {
	bs := make([]netip.AddrPort, n)
	for i := range bs {
		bs[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8080)
	}
	return bs
}

func TestLayoutHoldsEachBackendOnce(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 300; n++ {
		backends := someBackends(n)
		slots := layout(backends)
		if len(slots) != class(n) {
			t.Fatalf("%d backends: %d slots, class is %d", n, len(slots), class(n))
		}
		if !slots[0].IsValid() {
			t.Fatalf("%d backends: slot 0 is empty", n)
		}
		filled := slices.DeleteFunc(slices.Clone(slots), func(b netip.AddrPort) bool { return !b.IsValid() })
		slices.SortFunc(filled, netip.AddrPort.Compare)
		if !slices.Equal(filled, backends) {
			t.Fatalf("%d backends: slots hold %v", n, filled)
		}
	}
}

// One rule uses each map from frontends to chains: whenever a service comes, the kernel visits all
// of its elements for each.
func TestOneRuleUsesEachVerdictMap(t *testing.T) {
	t.Parallel()
	rs := New(Options{Policy: true})
	for _, s := range rs.Sets {
		if !s.Verdict || rs.OfPolicy(s) {
			continue
		}
		used := 0
		for _, c := range rs.Chains {
			for _, r := range c.Rules {
				var a attr.Attrs
				r.Write(&a, "", "")
				used += bytes.Count(a.B, append([]byte(s.Name), 0))
			}
		}
		if used != 1 {
			t.Errorf("%d rules use the map %s", used, s.Name)
		}
	}
}

func TestLayoutDependsOnTheSetAlone(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{2, 3, 5, 9, 17, 100} {
		backends := someBackends(n)
		want := layout(backends)
		for range 20 {
			r.Shuffle(n, func(i, j int) { backends[i], backends[j] = backends[j], backends[i] })
			if got := layout(backends); !slices.Equal(got, want) {
				t.Fatalf("%d backends in another order: %v, want %v", n, got, want)
			}
		}
	}
}

// Within a class a change of one backend moves few others, even where nine in
// ten slots are filled.
func TestLayoutMovesFew(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{10, 50, 100, 700, 5000} {
		backends := someBackends(n)
		moved, trials := 0, 50
		for range trials {
			without := slices.Delete(slices.Clone(backends), 0, 0)
			i := r.IntN(n)
			without = slices.Delete(without, i, i+1)
			if class(n) != class(n-1) {
				t.Fatalf("test wants sizes inside a class, %d is not", n)
			}
			before, after := layout(backends), layout(without)
			for s := range before {
				if before[s] != after[s] {
					moved++
				}
			}
		}
		if mean := float64(moved) / float64(trials); mean > 20 {
			t.Errorf("%d backends: removing one changes %.1f slots on average", n, mean)
		}
	}
}

func TestSizeClasses(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(sizeClasses) || sizeClasses[0] != 1 {
		t.Fatalf("size classes %v", sizeClasses)
	}
	for i, size := range sizeClasses[1:] {
		fewest := sizeClasses[i] + 1
		if class(fewest) != size || class(size) != size {
			t.Errorf("class(%d) = %d, class(%d) = %d, want %d", fewest, class(fewest), size, class(size), size)
		}
		if 3*fewest < 2*size {
			t.Errorf("class %d may be filled with %d only", size, fewest)
		}
	}
}

// The share of slot 0 is what a pick chain's fairness hangs on.
func TestTriesAreEnough(t *testing.T) {
	t.Parallel()
	for i, size := range sizeClasses {
		fewest := 1
		if i > 0 {
			fewest = sizeClasses[i-1] + 1
		}
		missed := 1.0
		for range tries(size) {
			missed *= 1 - float64(fewest)/float64(size)
		}
		// A miss of every try goes to slot 0, which should have 1/fewest.
		if extra := missed * float64(fewest); extra > 0.02 {
			t.Errorf("class %d with %d backends: slot 0 gets %.1f%% too much", size, fewest, 100*extra)
		}
	}
}

func BenchmarkLayout(b *testing.B) {
	for _, n := range []int{10, 100, 5000} {
		backends := someBackends(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				layout(backends)
			}
		})
	}
}
