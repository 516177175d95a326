package iptables

import (
	"maps"
	"net/netip"
	"slices"
	"sort"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// tree is how a connection finds its frontend, or a pod: a radix tree of chains over address,
// protocol and port; pods have addresses alone. A chain with few frontends asks for each, one with
// more asks for the next two bits in which they differ. Its shape depends on the set of frontends
// alone, and one frontend more or less changes the chains on the way to it, and no others.
type tree struct {
	bits int                 // of an address
	keys []state.FrontendKey // sorted
	goal map[state.FrontendKey]goal

	root, kind string // how its chains are called: the first one, and the others
	end        string // of a packet, that has the address: "-d "
	miss       string // what befalls packets that have no key; "": there are none
}

const (
	leafSize  = 16 // frontends that a chain asks for one by one
	step      = 2  // bits that a chain tells apart
	slotsMost = 16 // backends of frontends that share slots
)

// goal is what serves a frontend: a chain, or backends of which one is chosen and nothing else. Of
// the latter, those of a leaf that have equally many share the choice of a slot, and have a rule
// each in a chain for each slot. That is the least that iptables can be given for a backend: a rule
// without any match but that of the address.
type goal struct {
	chain    string
	backends []netip.AddrPort
	device   string // of a pod: the match for the interface that it sends by
}

func (g goal) none() bool { return g.chain == "" && len(g.backends) == 0 }

func (g goal) equal(o goal) bool {
	return g.chain == o.chain && g.device == o.device && slices.Equal(g.backends, o.backends)
}

// keyPrefix is where a chain of the tree stands: all frontends below begin with so many bits of a
// key.
type keyPrefix struct {
	bits int
	key  state.FrontendKey // what follows the bits is zero
}

var protocols = [...]model.Protocol{model.TCP, model.UDP, model.SCTP} // by their number in a key

// digit returns the two bits of a key at a position: an address, a protocol, and a port.
func (t *tree) digit(k state.FrontendKey, at int) int {
	switch {
	case at < t.bits:
		b := k.Addr.AsSlice()
		return int(b[at/8]>>(6-at%8)) & 3
	case at == t.bits:
		return slices.Index(protocols[:], k.Protocol)
	}
	return int(k.Port>>(14-(at-t.bits-step))) & 3
}

// size is how many bits a key has.
func (t *tree) size() int { return t.bits + step + 16 }

// at returns the prefix of a key's first bits.
func (t *tree) at(k state.FrontendKey, bits int) keyPrefix {
	p := keyPrefix{bits: bits, key: k}
	if bits < t.size() {
		p.key.Port = k.Port &^ (1<<(t.size()-max(bits, t.bits+step)) - 1)
	}
	if bits <= t.bits {
		p.key.Protocol = 0
		prefix, err := k.Addr.Prefix(bits)
		if err == nil {
			p.key.Addr = prefix.Addr()
		}
	}
	return p
}

// common is how many bits all of some sorted keys share, in whole digits.
func (t *tree) common(keys []state.FrontendKey, from int) int {
	first, last := keys[0], keys[len(keys)-1]
	for from < t.size() && t.digit(first, from) == t.digit(last, from) {
		from += step
	}
	return from
}

// children returns the ranges of the keys that differ in the digit at a position.
func (t *tree) children(keys []state.FrontendKey, at int) (all [][]state.FrontendKey) {
	for len(keys) > 0 {
		digit := t.digit(keys[0], at)
		n := sort.Search(len(keys), func(i int) bool { return t.digit(keys[i], at) > digit })
		all = append(all, keys[:n])
		keys = keys[n:]
	}
	return all
}

// each yields the prefixes of all chains of the tree, with the frontends below each.
func (t *tree) each(yield func(keyPrefix, []state.FrontendKey)) {
	t.below(keyPrefix{}, t.keys, yield)
}

func (t *tree) below(p keyPrefix, keys []state.FrontendKey, yield func(keyPrefix, []state.FrontendKey)) {
	yield(p, keys)
	if len(keys) <= leafSize {
		return
	}
	at := t.common(keys, p.bits)
	for _, c := range t.children(keys, at) {
		t.below(t.at(c[0], at+step), c, yield)
	}
}

// find returns the frontends below a prefix, and false if the tree has no chain for it.
func (t *tree) find(want keyPrefix) ([]state.FrontendKey, bool) {
	p, keys := keyPrefix{}, t.keys
	for p != want {
		if len(keys) <= leafSize || p.bits >= want.bits {
			return nil, false
		}
		at := t.common(keys, p.bits)
		keys = t.child(keys, at, want.key)
		if at+step > want.bits || len(keys) == 0 {
			return nil, false
		}
		p = t.at(keys[0], at+step)
	}
	return keys, true
}

// child returns the range of the keys that begin like k up to and with the digit at a position.
func (t *tree) child(keys []state.FrontendKey, at int, k state.FrontendKey) []state.FrontendKey {
	if t.at(k, at) != t.at(keys[0], at) {
		return nil
	}
	digit := t.digit(k, at)
	from := sort.Search(len(keys), func(i int) bool { return t.digit(keys[i], at) >= digit })
	to := sort.Search(len(keys), func(i int) bool { return t.digit(keys[i], at) > digit })
	return keys[from:to]
}

// near notes the prefixes on the way to a key, and those one step beside it: the chains of these
// may differ once the key comes or goes.
func (t *tree) near(k state.FrontendKey, note map[keyPrefix]bool) {
	p, keys := keyPrefix{}, t.keys
	for {
		note[p] = true
		if len(keys) <= leafSize {
			return
		}
		at := t.common(keys, p.bits)
		for _, c := range t.children(keys, at) {
			note[t.at(c[0], at+step)] = true
		}
		keys = t.child(keys, at, k)
		if len(keys) == 0 {
			return
		}
		p = t.at(k, at+step)
	}
}

// with returns the tree after a change of what serves some frontends, and the prefixes whose
// chains may differ.
func (t *tree) with(change map[state.FrontendKey]goal) (*tree, map[keyPrefix]bool) {
	same := *t
	next := &same
	prefixes := map[keyPrefix]bool{}
	if len(change) == 0 {
		return next, prefixes
	}
	next.keys, next.goal = slices.Clone(t.keys), maps.Clone(t.goal)
	many := len(change) > 64 // then looking at every chain is cheaper
	for k, goal := range change {
		i, found := slices.BinarySearchFunc(next.keys, k, state.FrontendKey.Compare)
		if !many {
			next.near(k, prefixes)
		}
		switch {
		case goal.none() && found && !many:
			next.keys = slices.Delete(next.keys, i, i+1)
		case !goal.none() && !found && !many:
			next.keys = slices.Insert(next.keys, i, k)
		}
		if delete(next.goal, k); !goal.none() {
			next.goal[k] = goal
		}
		if !many {
			next.near(k, prefixes)
		}
	}
	if many {
		next.keys = next.keys[:0]
		for k := range next.goal {
			next.keys = append(next.keys, k)
		}
		slices.SortFunc(next.keys, state.FrontendKey.Compare)
		note := func(p keyPrefix, _ []state.FrontendKey) { prefixes[p] = true }
		t.each(note)
		next.each(note)
	}
	return next, prefixes
}
