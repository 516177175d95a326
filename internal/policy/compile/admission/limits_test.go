package admission_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/lib/fair"
	"sluice.dev/sluice/internal/policy/compile/admission"
)

// claim is one of a namespace, by what it selects.
type claim struct {
	name     string // "namespace/name"
	selects  map[string]int
	standing admission.Standing
}

func (c *claim) Namespace() string { return c.name[:strings.Index(c.name, "/")] }

func (c *claim) Selections(yield func(string, int) bool) { maps.All(c.selects)(yield) }

func (c *claim) Standing() admission.Standing { return c.standing }

func (c *claim) Compare(o *claim) int { return strings.Compare(c.name, o.name) }

// used is what there is.
type used struct{ total, moves int }

func (u *used) Total() int { return u.total }
func (u *used) Moves() int { return u.moves }

func TestWeigh(t *testing.T) {
	const in, alone, together = admission.Admitted, admission.RefusedAlone, admission.RefusedTogether
	one := func(name string, standing admission.Standing, sizes ...int) *claim {
		c := &claim{name, map[string]int{}, standing}
		for i, n := range sizes {
			c.selects[fmt.Sprint(name, i)] = n
		}
		return c
	}
	shared := func(name string, n int) *claim { return &claim{name, map[string]int{"shared": n}, in} }
	for _, c := range []struct {
		name   string
		claims []*claim
		want   string // the names of those that are refused, together ones in brackets
	}{
		{"all fit", []*claim{one("a/x", in, 50, 50), one("b/x", in, 100)}, ""},
		{"too much alone", []*claim{one("a/x", in, 50, 51), one("b/x", in, 100)}, "a/x"},
		{"less, and not enough less", []*claim{one("a/x", alone, 81)}, "a/x"},
		{"less", []*claim{one("a/x", alone, 80)}, ""},
		{"the namespace that asks for most loses its largest", []*claim{one("a/x", in, 20), one("a/y", in, 50), one("a/z", in, 80), one("b/x", in, 90)}, "[a/z]"},
		{"what is shared counts once", []*claim{shared("a/x", 90), shared("b/x", 90), shared("c/x", 90), shared("d/x", 90)}, ""},
		{"what stands has room up to the limit", []*claim{one("a/x", in, 100), one("b/x", in, 100)}, ""},
		{"what was refused has less", []*claim{one("a/x", in, 90), one("b/x", together, 90)}, "[b/x]"},
		{"what was refused fits", []*claim{one("a/x", in, 80), one("b/x", together, 80)}, ""},
		{"of alike ones the first", []*claim{one("c/x", in, 90), one("a/x", in, 90), one("b/x", in, 90)}, "[c/x]"},
		{"of what comes back from alone nothing counts yet", []*claim{one("a/x", alone, 70), one("b/x", in, 90), one("c/x", in, 90)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := admission.New(&used{})
			l.Alone, l.Together = fair.Bound{Most: 100, Again: 80}, fair.Bound{Most: 200, Again: 170}
			var refused []string
			seen := 0
			for one, standing := range admission.Weigh(l, c.claims) {
				switch seen++; standing {
				case alone:
					refused = append(refused, one.name)
				case together:
					refused = append(refused, "["+one.name+"]")
				}
			}
			slices.Sort(refused)
			if got := strings.Join(refused, " "); got != c.want || seen != len(c.claims) {
				t.Errorf("refused are %q of %d, want %q of %d", got, seen, c.want, len(c.claims))
			}
		})
	}
}

// Claims are weighed again when so much has moved that another one may be refused, or fit, and not
// for every little.
func TestDue(t *testing.T) {
	u := &used{}
	l := admission.New(u)
	l.Alone, l.Together = fair.Bound{Most: 1000, Again: 800}, fair.Bound{Most: 2000, Again: 1600}
	if !l.IsDue() {
		t.Error("it is not due at first")
	}
	weigh := func(crowded bool, claims ...*claim) {
		for range admission.Weigh(l, claims) {
		}
		l.Weighed(crowded)
	}
	due := func(when string, want int) {
		t.Helper()
		for from := u.moves; ; u.moves++ {
			if l.IsDue() {
				if got := u.moves - from; got != want {
					t.Errorf("%s: it is due after %d, want %d", when, got, want)
				}
				return
			}
			if u.moves > from+10*want {
				t.Fatalf("%s: it is not due", when)
			}
		}
	}
	u.total = 900
	weigh(false, &claim{"a/x", map[string]int{"x": 900}, admission.Admitted})
	due("one may be too much", 101)
	weigh(false, &claim{"a/x", map[string]int{"x": 999}, admission.Admitted})
	due("one is close to too much", 7) // a 256th of 2000
	u.total = 1950
	weigh(false)
	due("all may be too much", 51)
	weigh(true)
	due("others wait for room", 7)
	weigh(false, &claim{"a/x", map[string]int{"x": 1300}, admission.RefusedAlone})
	due("one may fit again", 51)
	u.total = 0
	weigh(false)
	l.Filled(990)
	due("one is filled", 11)
	weigh(false)
	l.Filled(1001)
	due("more has come than fits", 0)
	weigh(false)
	l.Soon()
	due("somebody asks", 0)
	if !l.Fits(2000) || l.Fits(2001) {
		t.Error("what fits is not what is left")
	}
}
