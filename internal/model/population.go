package model

import (
	"iter"
	"math/bits"
	"slices"
)

// Population is objects with labels, each at its place, of which a selector finds all that it
// selects at once. That costs as many steps as the labels that the selector names have values, and
// one for each 64 objects: far less than to look at each object. The zero Population is empty. It
// is immutable.
type Population struct {
	size int
	all  Places
	keys map[string]*populationKey
}

// populationKey is the places of those that have a label, by its values.
type populationKey struct {
	has    []int
	values map[string][]int
}

// NewPopulation returns that of objects with the labels, in this order.
func NewPopulation(labels []LabelMap) *Population {
	p := &Population{size: len(labels), keys: map[string]*populationKey{}}
	p.all = p.None()
	for i, l := range labels {
		p.all.Add(i)
		for key, value := range l {
			k := p.keys[key]
			if k == nil {
				k = &populationKey{values: map[string][]int{}}
				p.keys[key] = k
			}
			k.has, k.values[value] = append(k.has, i), append(k.values[value], i)
		}
	}
	return p
}

// Places is a set of places in a Population. The zero value has none, and None is what others are
// added to.
type Places []uint64

// Has reports whether a place is in the set.
func (s Places) Has(i int) bool { return i/64 < len(s) && s[i/64]>>(i%64)&1 != 0 }

// Add adds a place.
func (s Places) Add(i int) { s[i/64] |= 1 << (i % 64) }

// Remove removes a place.
func (s Places) Remove(i int) { s[i/64] &^= 1 << (i % 64) }

// Join adds all that another set of the same Population has.
func (s Places) Join(o Places) {
	for i := range o {
		s[i] |= o[i]
	}
}

// Empty reports whether there is no place in the set.
func (s Places) Empty() bool {
	return !slices.ContainsFunc(s, func(word uint64) bool { return word != 0 })
}

// Each yields the places, in order. They may be removed meanwhile.
func (s Places) Each() iter.Seq[int] { return s.Common(s) }

// Common yields the places that two sets of the same Population have, in order. They may be removed
// meanwhile.
func (s Places) Common(o Places) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range min(len(s), len(o)) {
			for word := s[i] & o[i]; word != 0; word &= word - 1 {
				if !yield(64*i + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// Without returns the places that another set of the same Population has not. The caller only reads
// them.
func (s Places) Without(o Places) Places {
	if len(s) == 0 || len(o) == 0 {
		return s
	}
	rest := make(Places, len(s))
	for i := range s {
		rest[i] = s[i] &^ o[i]
	}
	return rest
}

// Within returns the places that another set of the same Population has, too. The caller only reads
// them.
func (s Places) Within(o Places) Places {
	if len(s) == 0 || len(o) == 0 {
		return nil
	}
	both := make(Places, len(s))
	for i := range s {
		both[i] = s[i] & o[i]
	}
	return both
}

// None returns an empty set, to which places may be added.
func (p *Population) None() Places { return make(Places, (p.size+63)/64) }

// All returns all places. The caller only reads them.
func (p *Population) All() Places { return p.all }

// Selected returns the places of what s selects, as Matches says of each. The caller only reads
// them.
func (p *Population) Selected(s Selector) Places {
	switch s.op {
	case opNone:
		return nil
	case opAll:
		return p.all
	case opNot:
		return p.all.Without(p.Selected(s.terms[0]))
	case opAnd:
		set := p.all
		for _, t := range s.terms {
			set = set.Within(p.Selected(t))
		}
		return set
	case opOr:
		set := p.None()
		for _, t := range s.terms {
			set.Join(p.Selected(t))
		}
		return set
	}
	k := p.keys[s.key]
	if k == nil {
		return nil
	}
	set := p.None()
	add := func(list []int) {
		for _, i := range list {
			set.Add(i)
		}
	}
	switch s.op {
	case opHas:
		add(k.has)
	case opIn:
		for _, v := range s.values {
			add(k.values[v])
		}
	default:
		for v, list := range k.values {
			if s.admits(v) {
				add(list)
			}
		}
	}
	return set
}
