// Package admission decides which rules of policies may have the sets that they ask for.
//
// It owns the limits: what one policy may ask for by its own size (Excess), and what selectors may
// select, those of one Demand and those of all together (Limits). Whose demand comes before
// another's is decided by package fair, so that no namespace goes without for what another one asks
// for. It neither counts nor changes anything itself: it is told what there is, and says what is to
// be.
package admission

import (
	"fmt"
	"iter"
	"math"

	"sluice.dev/sluice/internal/lib/fair"
)

// Each selector takes a set of its own, so that without bounds the sets come to the number of
// selectors times that of pods.
var (
	maxAlone    = fair.Bound{Most: 1 << 20, Again: 7 << 17} // by the selectors of a policy in one direction
	maxTogether = fair.Bound{Most: 1 << 22, Again: 7 << 19} // by those of all policies that apply to anything here
)

// Limits bound what selectors may select, and say when that is to be checked again.
type Limits struct {
	Alone, Together fair.Bound // the constants, but in tests
	Crowded         bool       // some demands are too much with others

	usage Usage
	due   int // the moves at which demands are weighed
}

// Usage is what there is at the moment.
type Usage interface {
	Total() int // what the selectors of all sets select
	Moves() int // the sizes of all that came and went so far: it never falls
}

// Demand is what the rules of a policy ask for in one direction.
type Demand[T any] interface {
	Namespace() string // "": of none
	// Selections yields the selectors by a key, with how much they select.
	Selections(yield func(key string, size int) bool)
	Standing() Standing
	Compare(other T) int // tells those apart that ask for as much
}

// Standing is what was decided of a demand.
type Standing uint8

// The standings. One that is refused fits again once it comes to less than what is refused.
const (
	Admitted Standing = iota
	RefusedAlone
	RefusedTogether // with those of others
)

// New returns the limits for what is used.
func New(u Usage) *Limits { return &Limits{Alone: maxAlone, Together: maxTogether, usage: u} }

// IsDue reports whether so much has moved that demands are to be weighed.
func (l *Limits) IsDue() bool { return l.usage.Moves() >= l.due }

// After has demands weighed when so much has come or gone, but not for every little.
func (l *Limits) After(moves int) {
	l.due = min(l.due, l.usage.Moves()+max(moves, min(l.Alone.Most>>6, l.Together.Most>>8), 1))
}

// Soon has demands weighed in any case.
func (l *Limits) Soon() { l.due = l.usage.Moves() }

// Fits reports whether selectors may select so much more.
func (l *Limits) Fits(more int) bool { return l.usage.Total()+more <= l.Together.Most }

// Filled has demands weighed when one that has all of its sets now, which select so much, may come
// to select too much.
func (l *Limits) Filled(selected int) {
	l.After(l.Alone.Most + 1 - selected)
	if l.After(l.Together.Most + 1 - l.usage.Total()); !l.Fits(0) || selected > l.Alone.Most {
		l.Soon() // more has come since it was counted
	}
}

// Weigh yields how each demand stands from now on, in the order in which they may have their sets:
// where all are too much together, those go without whose turn comes last (see fair.Turns). One
// that was refused alone counts for nothing when it is admitted, as not all of its selectors were
// counted. Weighed is to be called once that is carried out.
func Weigh[T Demand[T]](l *Limits, demands []T) iter.Seq2[T, Standing] {
	return func(yield func(T, Standing) bool) {
		l.due = math.MaxInt
		known, total := map[string]struct{}{}, 0
		for _, d := range fair.Turns(demands, T.Namespace, func(d T) iter.Seq2[string, int] { return d.Selections }, T.Compare) {
			n, more := Sum(d.Selections), 0
			for key, size := range d.Selections {
				if _, shared := known[key]; !shared {
					more += size
				}
			}
			was, now := d.Standing(), Admitted
			switch {
			case n > l.Alone.Limit(was == RefusedAlone):
				now = RefusedAlone
				l.After(n - l.Alone.Again)
			case was == RefusedAlone:
			case total+more > l.Together.Limit(was == RefusedTogether):
				now = RefusedTogether
			default:
				l.After(l.Alone.Most + 1 - n)
				for key := range d.Selections {
					known[key] = struct{}{}
				}
				total += more
			}
			if !yield(d, now) {
				return
			}
		}
	}
}

// Weighed ends a Weigh: some demands are still too much with others, or none.
func (l *Limits) Weighed(crowded bool) {
	if l.Crowded = crowded; crowded {
		l.After(1)
	}
	l.After(l.Together.Most + 1 - l.usage.Total())
}

// Sum is what all selections come to.
func Sum(selections iter.Seq2[string, int]) (n int) {
	for _, size := range selections {
		n += size
	}
	return n
}

// TooManyAlone says why a policy that was read is not applied.
func (l *Limits) TooManyAlone() string {
	return fmt.Sprintf("its selectors select more than %d addresses in one direction, each selector counted by itself and a network set as one; it allows nothing until then: use fewer selectors, or ones that select less", l.Alone.Most)
}

// TooManyTogether says the same of one that is too much with others.
func (l *Limits) TooManyTogether(namespace string) string {
	who := "the policies of its namespace are among those that select most"
	if namespace == "" {
		who = "it is among those that select most"
	}
	return fmt.Sprintf("the selectors of all policies that apply here select more than %d addresses, each selector counted once, and %s; it allows nothing until then: use fewer selectors, or ones that select less", l.Together.Most, who)
}
