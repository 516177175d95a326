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

// newTree returns the tree of some goals.
func (f family) newTree(root, kind, end, miss string, goals map[state.FrontendKey]goal) *tree {
	keys := slices.SortedFunc(maps.Keys(goals), state.FrontendKey.Compare)
	return &tree{bits: f.bits(), keys: keys, goal: goals, root: root, kind: kind, end: end, miss: miss}
}

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

// prefixes are those of all chains of the tree, with the frontends below each.
func (t *tree) prefixes() map[keyPrefix][]state.FrontendKey {
	all := map[keyPrefix][]state.FrontendKey{}
	t.below(keyPrefix{}, t.keys, all)
	return all
}

func (t *tree) below(p keyPrefix, keys []state.FrontendKey, all map[keyPrefix][]state.FrontendKey) {
	if all[p] = keys; len(keys) <= leafSize {
		return
	}
	at := t.common(keys, p.bits)
	for _, c := range t.children(keys, at) {
		t.below(t.at(c[0], at+step), c, all)
	}
}

// with returns the tree after a change of what serves some frontends, and the prefixes of chains
// that may differ: of those that there were, and of those that there are.
func (t *tree) with(change map[state.FrontendKey]goal) (next *tree, was, is map[keyPrefix][]state.FrontendKey) {
	if len(change) == 0 {
		return t, nil, nil
	}
	same := *t
	next = &same
	next.goal, next.keys = maps.Clone(t.goal), slices.Clone(t.keys)
	for k, goal := range change {
		if _, is := next.goal[k]; !is {
			next.keys = append(next.keys, k)
		}
		next.goal[k] = goal
	}
	maps.DeleteFunc(next.goal, func(_ state.FrontendKey, g goal) bool { return g.none() })
	next.keys = slices.DeleteFunc(next.keys, func(k state.FrontendKey) bool { return next.goal[k].none() })
	slices.SortFunc(next.keys, state.FrontendKey.Compare)
	changes := func(k state.FrontendKey) bool { _, named := change[k]; return named }
	was, is = t.prefixes(), next.prefixes()
	maps.DeleteFunc(is, func(p keyPrefix, keys []state.FrontendKey) bool {
		old, there := was[p]
		stays := there && slices.Equal(old, keys) && !(len(keys) <= leafSize && slices.ContainsFunc(keys, changes))
		if stays {
			delete(was, p)
		}
		return stays
	})
	return next, was, is
}
