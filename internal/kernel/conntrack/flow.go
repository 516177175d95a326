package conntrack

import (
	"fmt"
	"net/netip"

	"sluice.dev/sluice/internal/model"
)

// Bits of Flow.Status, as the kernel's ip_conntrack_status has them.
const (
	StatusSeenReply uint32 = 1 << 1 // seen in both directions
	StatusAssured   uint32 = 1 << 2
	StatusConfirmed uint32 = 1 << 3
	StatusSNAT      uint32 = 1 << 4
	StatusDNAT      uint32 = 1 << 5
	StatusOffload   uint32 = 1 << 14 // it is in a flowtable: its packets pass by the chains
)

// Family is an address family as netlink writes it: unix.AF_INET or unix.AF_INET6.
type Family uint8

// Tuple is one direction of a flow. Protocols without ports have ports of 0.
type Tuple struct {
	Src, Dst netip.AddrPort
	ICMP     ICMP // of ICMP and ICMPv6
}

// ICMP is what tells flows of ICMP and ICMPv6 apart.
type ICMP struct {
	Type, Code uint8
	ID         uint16
}

// Flow is an entry of the connection tracking table.
type Flow struct {
	Family   Family
	Protocol model.Protocol // any IANA number, ICMP's too
	Orig     Tuple          // as the first packet was sent
	Reply    Tuple          // as answers are expected: Src is the backend that the flow was translated to
	Status   uint32
	Labels   Labels
	// Bytes were sent in both directions, where the kernel counts them
	// (net.netfilter.nf_conntrack_acct).
	Bytes uint64

	id   uint32 // the kernel's CTA_ID
	rest rest
	cut  bool // it is to have the cut label
}

// rest is what an entry holds beside, for making it anew.
type rest struct {
	timeout uint32 // seconds
	mark    uint32
	tcp     tcpInfo
}

// tcpInfo is what connection tracking knows of a TCP connection, by direction.
type tcpInfo struct {
	state         uint8
	scales, flags [2]uint8
}

// Offloaded says whether the flow's packets pass by the chains.
func (f *Flow) Offloaded() bool { return f.Status&StatusOffload != 0 }

// Answered says whether a packet was seen in the other direction.
func (f *Flow) Answered() bool { return f.Status&StatusSeenReply != 0 }

// Translated says whether the flow's destination was changed.
func (f *Flow) Translated() bool { return f.Reply.Src != f.Orig.Dst }

// Filter selects flows. A Filter that is neither bound to a port of the frontend nor to
// a backend matches nothing.
type Filter struct {
	Protocol model.Protocol
	// Frontend is the destination that clients asked for. Without an address it is that port on
	// every address (a NodePort); the zero value is any frontend.
	Frontend netip.AddrPort
	// Backend is where the flow was sent to instead. With the zero value every
	// flow to the frontend matches, those also that were never translated;
	// with a Backend only translated flows do, so that pods which talk to each other directly are
	// left alone. The Frontend itself as the Backend selects those that were never translated.
	Backend netip.AddrPort
	// Unanswered leaves those alone of which a packet was seen in the other direction.
	Unanswered bool
}

// String returns the filter as "TCP 10.96.0.1:80 -> 10.0.0.7:8080".
func (f Filter) String() string {
	side := func(a netip.AddrPort) string {
		switch {
		case a.Addr().IsValid():
			return a.String()
		case a.Port() != 0:
			return fmt.Sprintf("*:%d", a.Port())
		}
		return "*"
	}
	text := fmt.Sprintf("%v %s -> %s", f.Protocol, side(f.Frontend), side(f.Backend))
	if f.Unanswered {
		text += ", unanswered"
	}
	return text
}

// normal returns the filter with IPv4 addresses in their short form and
// without zones, as flows have them.
func (f Filter) normal() Filter {
	f.Frontend = normal(f.Frontend)
	f.Backend = normal(f.Backend)
	return f
}

// valid says whether the filter may match anything.
func (f Filter) valid() bool {
	front, back := f.Frontend.Addr(), f.Backend.Addr()
	if back.IsValid() {
		return f.Backend.Port() != 0 && (!front.IsValid() || f.Frontend.Port() != 0 && front.Is4() == back.Is4())
	}
	return f.Frontend.Port() != 0 && f.Backend.Port() == 0
}

// families are the address families that the filter's flows can have.
func (f Filter) families() []Family {
	for _, a := range []netip.Addr{f.Backend.Addr(), f.Frontend.Addr()} {
		switch {
		case a.Is4():
			return []Family{familyV4}
		case a.Is6():
			return []Family{familyV6}
		}
	}
	return []Family{familyV4, familyV6}
}

func normal(a netip.AddrPort) netip.AddrPort {
	if !a.Addr().IsValid() {
		return a
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// shape says which parts of a filter are given.
type shape uint8

const (
	frontAddr shape = 1 << iota
	frontPort
	backend
	unanswered
	shapes
)

func (f Filter) shape() shape {
	var s shape
	if f.Frontend.Addr().IsValid() {
		s |= frontAddr
	}
	if f.Frontend.Port() != 0 {
		s |= frontPort
	}
	if f.Backend.Addr().IsValid() {
		s |= backend
	}
	if f.Unanswered {
		s |= unanswered
	}
	return s
}

// index answers which flows any of a set of filters matches, at a cost that
// does not depend on their number: one look-up per shape in use.
type index struct {
	filters map[Filter]struct{}
	used    [shapes]bool
}

func newIndex(filters []Filter) *index {
	x := &index{filters: make(map[Filter]struct{}, len(filters))}
	for _, f := range filters {
		if f = f.normal(); f.valid() {
			x.filters[f] = struct{}{}
			x.used[f.shape()] = true
		}
	}
	return x
}

func (x *index) match(flow *Flow) bool {
	for s, used := range x.used {
		if !used {
			continue
		}
		s := shape(s)
		if s&unanswered != 0 && flow.Answered() {
			continue
		}
		key := Filter{Protocol: flow.Protocol, Unanswered: s&unanswered != 0}
		if s&frontPort != 0 {
			key.Frontend = netip.AddrPortFrom(netip.Addr{}, flow.Orig.Dst.Port())
		}
		if s&frontAddr != 0 {
			key.Frontend = flow.Orig.Dst
		}
		if s&backend != 0 {
			if !flow.Translated() && s&frontAddr == 0 {
				continue
			}
			key.Backend = flow.Reply.Src
		}
		if _, ok := x.filters[key]; ok {
			return true
		}
	}
	return false
}
