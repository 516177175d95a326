// Package cow has maps that are values: a copy costs nothing, and what is set in one of the two is
// not in the other (copy on write).
package cow

import (
	"hash/maphash"
	"iter"
)

// Map is a map that is a value. The zero value is an empty one. Maps that nobody writes to are safe
// for concurrent use, also while a copy of them is written to.
type Map[K comparable, V any] struct {
	root *branch[K, V]
	len  int
}

// A branch has a place for each value of the next four bits of keys' hashes, which holds nothing,
// an entry, or a branch of the entries that have these bits. It is never changed: a write copies
// the branches on the way to its entry, and shares all others.
type branch[K comparable, V any] [1 << hashBits]slot[K, V]

type slot[K comparable, V any] struct {
	entry *entry[K, V]
	below *branch[K, V]
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

const (
	hashBits = 4
	perHash  = 64 / hashBits // branches below each other that one hash is enough for
)

var seed = maphash.MakeSeed()

// place is where a key is, or belongs, at a depth. Where a hash does not tell two keys apart,
// another one follows.
func (b *branch[K, V]) place(key K, depth int) *slot[K, V] {
	hash := maphash.Comparable(seed, struct {
		key K
		nth int
	}{key, depth / perHash})
	return &b[hash>>(depth%perHash*hashBits)%(1<<hashBits)]
}

// Len is the number of entries.
func (m Map[K, V]) Len() int { return m.len }

// Get returns the value of a key, the zero value if there is none.
func (m Map[K, V]) Get(key K) (value V) {
	for at, depth := m.root, 0; at != nil; depth++ {
		p := at.place(key, depth)
		if p.entry != nil && p.entry.key == key {
			return p.entry.value
		}
		at = p.below
	}
	return value
}

// Set gives a key a value.
func (m *Map[K, V]) Set(key K, value V) {
	root, added := m.root.with(&entry[K, V]{key, value}, 0)
	m.root = root
	if added {
		m.len++
	}
}

// Delete removes a key, if it is there.
func (m *Map[K, V]) Delete(key K) {
	if root, removed := m.root.without(key, 0); removed {
		m.root = root
		m.len--
	}
}

// All yields all entries, in no order.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.each(yield) }
}

// with returns a branch with an entry, and whether its key is new.
func (b *branch[K, V]) with(e *entry[K, V], depth int) (next *branch[K, V], added bool) {
	next = b.clone()
	p := next.place(e.key, depth)
	switch {
	case p.entry == nil && p.below == nil:
		p.entry, added = e, true
	case p.entry != nil && p.entry.key == e.key:
		p.entry = e
	default:
		if p.entry != nil {
			p.below, _ = p.below.with(p.entry, depth+1)
			p.entry = nil
		}
		p.below, added = p.below.with(e, depth+1)
	}
	return next, added
}

// without returns a branch without a key, nil if nothing is left of it, and whether it had the key.
func (b *branch[K, V]) without(key K, depth int) (next *branch[K, V], removed bool) {
	if b == nil {
		return nil, false
	}
	next = b.clone()
	p := next.place(key, depth)
	if p.entry != nil && p.entry.key == key {
		p.entry, removed = nil, true
	} else if p.below, removed = p.below.without(key, depth+1); !removed {
		return b, false
	}
	if *next == (branch[K, V]{}) {
		return nil, true
	}
	return next, true
}

func (b *branch[K, V]) clone() *branch[K, V] {
	next := &branch[K, V]{}
	if b != nil {
		*next = *b
	}
	return next
}

func (b *branch[K, V]) each(yield func(K, V) bool) bool {
	if b == nil {
		return true
	}
	for _, p := range b {
		if p.entry != nil && !yield(p.entry.key, p.entry.value) || !p.below.each(yield) {
			return false
		}
	}
	return true
}
