package sets

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// lists are the lists of networks that rules refer to.
type lists struct {
	shared[string, list, *list]
	table diff.Map[state.SetID, state.List]
}

// list holds the networks of a network set, or those that a rule names.
type list struct {
	handle
	content *state.List
	ref     state.ListRef // without ID
}

// holdSet holds the list of a network set.
func (x *lists) holdSet(set *model.NetworkSet) *list {
	l, created := x.hold("set " + set.Key.String())
	if created {
		l.fill(set.Key.String(), set.Nets)
	}
	return l
}

// holdNets holds a list of networks that a rule names.
func (x *lists) holdNets(nets []netip.Prefix) *list {
	nets = sorted(nets)
	text := abridged(nets, netip.Prefix.String)
	l, created := x.hold("nets " + text)
	if created {
		l.fill(text, nets)
	}
	return l
}

// refill gives the list of a network set its new content, if anyone holds it.
func (x *lists) refill(set *model.NetworkSet) {
	if l := x.all["set "+set.Key.String()]; l != nil {
		l.fill(set.Key.String(), set.Nets)
		x.touch(l)
	}
}

func (l *list) fill(name string, nets []netip.Prefix) {
	l.content = &state.List{Name: name, Prefixes: nets}
	var four, six [129]bool
	for _, p := range nets {
		if p.Addr().Is4() {
			four[p.Bits()] = true
		} else {
			six[p.Bits()] = true
		}
	}
	l.ref = state.ListRef{IPv4: lengths(&four), IPv6: lengths(&six)}
}

func lengths(in *[129]bool) []uint8 {
	var list []uint8
	for n, there := range in {
		if there {
			list = append(list, uint8(n))
		}
	}
	return list
}

// reference returns what a rule says of the list.
func (l *list) reference() state.ListRef {
	ref := l.ref
	ref.ID = l.id
	return ref
}

// sorted returns the valid prefixes masked, sorted and unique.
func sorted(nets []netip.Prefix) []netip.Prefix {
	list := make([]netip.Prefix, 0, len(nets))
	for _, p := range nets {
		if p.IsValid() {
			list = append(list, model.UnmapPrefix(p).Masked())
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}

// EqualPrefixes looks at the elements, of which there may be millions, only if the slices are two.
func EqualPrefixes(a, b []netip.Prefix) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// without returns the networks less the exceptions, as networks. An exception leaves of the network
// around it one for each bit by which it is longer, at the most.
func without(nets, except []netip.Prefix) (left []netip.Prefix) {
	if len(except) == 0 {
		return nets
	}
	except = sorted(except)
	for _, n := range sorted(nets) {
		left = cutOut(left, n, except)
	}
	return left
}

// cutOut appends what is left of n.
func cutOut(left []netip.Prefix, n netip.Prefix, except []netip.Prefix) []netip.Prefix {
	var inside []netip.Prefix
	for _, e := range except {
		if !e.Overlaps(n) {
			continue
		}
		if e.Bits() <= n.Bits() {
			return left
		}
		inside = append(inside, e)
	}
	if len(inside) == 0 {
		return append(left, n)
	}
	lower := netip.PrefixFrom(n.Addr(), n.Bits()+1)
	return cutOut(cutOut(left, lower, inside), upperHalf(n), inside)
}

// upperHalf is the second of the two networks that a network is made of.
func upperHalf(n netip.Prefix) netip.Prefix {
	b := n.Addr().AsSlice()
	b[n.Bits()/8] |= 0x80 >> (n.Bits() % 8)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, n.Bits()+1)
}
