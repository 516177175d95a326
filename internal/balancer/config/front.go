package config

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"

	"sluice.dev/sluice/internal/lib/cow"
	"sluice.dev/sluice/internal/model"
)

// fronts says which farm serves which ports. What several farms claim is refused.
type fronts struct{ cow.Map[frontKey, []front] }

// frontKey is an address and a protocol. An address of the machine, whichever, is the unspecified
// one of the family. Answers are what backends of stateless farms send: nothing but their address
// and port says whose they are.
type frontKey struct {
	addr     netip.Addr
	protocol model.Protocol
	answers  bool
}

// front is a range of ports of a farm. Those of a key are sorted and do not overlap.
type front struct {
	model.PortSpan
	farm string
}

// eachFront calls do with what a farm serves, and with where its backends answer from.
func eachFront(f *model.Farm, do func(frontKey, model.PortSpan)) {
	hasPorts := f.HasPorts()
	f.Each(func(addr netip.Addr, is4 bool, p model.Protocol, s model.PortSpan) {
		switch {
		case addr.IsValid():
		case is4:
			addr = netip.IPv4Unspecified()
		default:
			addr = netip.IPv6Unspecified()
		}
		do(frontKey{addr: addr, protocol: p}, s)
		for _, b := range f.Backends {
			if f.Mode != model.StatelessDNAT || b.Addr.Is4() != is4 {
				continue
			}
			from := s
			if b.Port != 0 && hasPorts {
				from = model.PortSpan{First: b.Port, Last: b.Port}
			}
			do(frontKey{b.Addr, p, true}, from)
		}
	})
}

// sameFronts reports whether two versions of a farm serve the same; nil: nothing.
func sameFronts(a, b *model.Farm) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Mode != model.StatelessDNAT && b.Mode != model.StatelessDNAT && reflect.DeepEqual(a.Addresses, b.Addresses)
}

// takes returns which of the program's own addresses a farm would take from it; invalid: none. A
// program that is served at all addresses of the machine is still found at those that no farm has,
// but loopback has to be left, for who can reach no other.
func takes(f *model.Farm, own []netip.AddrPort) (at netip.AddrPort) {
	if f.Mode == model.Local { // it sends nobody elsewhere
		return at
	}
	eachFront(f, func(k frontKey, s model.PortSpan) {
		for _, o := range own {
			is := k.addr == o.Addr() || k.addr.Is4() == o.Addr().Is4() && (k.addr.IsUnspecified() || o.Addr().IsUnspecified() && k.addr.IsLoopback())
			if is && k.protocol == model.TCP && s.First <= o.Port() && o.Port() <= s.Last {
				at = o
			}
		}
	})
	return at
}

// clash is a range of ports that two farms claim, or one twice.
type clash struct {
	key   frontKey
	ports model.PortSpan
	with  string
}

// add enters a farm. After a clash, a part of it may be there.
func (x *fronts) add(f *model.Farm) (at *clash) {
	if f == nil {
		return nil
	}
	eachFront(f, func(k frontKey, s model.PortSpan) {
		if at != nil {
			return
		}
		list := x.Get(k)
		i := search(list, s.First)
		switch {
		case i > 0 && list[i-1].Last >= s.First:
			at = &clash{k, s, list[i-1].farm}
		case i < len(list) && list[i].First <= s.Last:
			at = &clash{k, s, list[i].farm}
		default:
			x.Set(k, slices.Concat(list[:i], []front{{s, f.Name}}, list[i:]))
		}
	})
	return at
}

// remove takes a farm out.
func (x *fronts) remove(f *model.Farm) {
	if f == nil {
		return
	}
	eachFront(f, func(k frontKey, s model.PortSpan) {
		list := x.Get(k)
		i := search(list, s.First)
		if i == len(list) || list[i] != (front{s, f.Name}) {
			return
		}
		if len(list) == 1 {
			x.Delete(k)
		} else {
			x.Set(k, slices.Concat(list[:i], list[i+1:]))
		}
	})
}

// search returns where a range that begins at first is, or belongs.
func search(list []front, first uint16) int {
	i, _ := slices.BinarySearchFunc(list, first, func(f front, first uint16) int { return cmp.Compare(f.First, first) })
	return i
}
