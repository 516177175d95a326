package model

import (
	"net/netip"
	"slices"
	"time"
)

// Birth is what decides between objects that claim the same: the first of them has it.
type Birth struct {
	Created time.Time
	Name    Name
}

// Compare puts first what was there first: by creationTimestamp, the zero time last, then by name.
func (b Birth) Compare(o Birth) int {
	if b.Created.IsZero() != o.Created.IsZero() {
		if b.Created.IsZero() {
			return 1
		}
		return -1
	}
	if c := b.Created.Compare(o.Created); c != 0 {
		return c
	}
	return b.Name.Compare(o.Name)
}

// Precedence says in words why the object has what another one claims, too.
func (b Birth) Precedence(over Birth) string {
	if b.Created.Equal(over.Created) {
		return "which comes first by name"
	}
	return "which was there first"
}

// AddressOwner is the oldest node that has an address.
type AddressOwner struct {
	Birth
	Always bool // it has it whoever was there first
}

// Before reports whether the node has the address rather than a Service of that birth.
func (o AddressOwner) Before(s Birth) bool { return o.Always || o.Compare(s) < 0 }

// With is both as one owner.
func (o AddressOwner) With(other AddressOwner) AddressOwner {
	if other.Compare(o.Birth) < 0 {
		o.Birth = other.Birth
	}
	o.Always = o.Always || other.Always
	return o
}

// EachAddress calls f with each address of the node's, and the node as its owner. It has an
// InternalIP whoever was there first: see
// docs/decisions/0018-addresses-that-no-service-may-have.md.
func (n *Node) EachAddress(f func(netip.Addr, AddressOwner)) {
	for i, a := range n.IPs {
		f(a, AddressOwner{n.Birth(), i < len(n.IPs)-n.External})
	}
	for _, a := range n.OtherIPs {
		f(a, AddressOwner{Birth: n.Birth()})
	}
}

// SameAddresses reports whether two versions of a node, nil: it is not there, own the same
// addresses in the same way.
func (n *Node) SameAddresses(o *Node) bool {
	return n == o || n != nil && o != nil && n.Created.Equal(o.Created) && n.External == o.External && slices.Equal(n.IPs, o.IPs) && slices.Equal(n.OtherIPs, o.OtherIPs)
}

// Birth is the Service's.
func (s *Service) Birth() Birth { return Birth{s.Created, s.Name} }

// Birth is the Node's.
func (n *Node) Birth() Birth { return Birth{n.Created, Name{Name: n.Name}} }

// Birth is the pool's.
func (p *IPAddressPool) Birth() Birth { return Birth{p.Created, p.Name} }

// Birth is the host endpoint's.
func (h *HostEndpoint) Birth() Birth { return Birth{h.Created, Name{Name: h.Name}} }

// Birth is the peer's.
func (p *BGPPeer) Birth() Birth { return Birth{p.Created, Name{Name: p.Name}} }

// Birth is the advertisement's.
func (a *L2Advertisement) Birth() Birth { return Birth{a.Created, a.Name} }

// Birth is the advertisement's.
func (a *BGPAdvertisement) Birth() Birth { return Birth{a.Created, a.Name} }

// ByBirth orders objects: first comes what was there first.
func ByBirth[T interface{ Birth() Birth }](a, b T) int { return a.Birth().Compare(b.Birth()) }
