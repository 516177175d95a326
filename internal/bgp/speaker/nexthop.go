package speaker

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"sluice.dev/sluice/internal/bgp"
)

// findHops finds this node's address of the other family towards each peer that exchanges routes of
// both: the server knows the session's own address alone.
func (s *Speaker) findHops(peers []*peer) {
	var links []link
	for _, p := range peers {
		if !both(p.want) {
			s.fault("next hop "+p.name, "")
			continue
		}
		if links == nil {
			links = readLinks()
		}
		local := p.local
		if !p.up || !local.IsValid() {
			local = source(p.want)
		}
		var device string
		p.hop, device = otherAddress(links, local, p.want.Address.Is4())
		s.fault("next hop "+p.name, s.missingHop(p, local, device))
	}
}

// missingHop says why routes of a family are not announced to a peer, if there are any.
func (s *Speaker) missingHop(p *peer, local netip.Addr, device string) string {
	four := !p.want.Address.Is4()
	if p.hop.IsValid() || four && p.cross || !local.IsValid() {
		return ""
	}
	for prefix, r := range s.routes {
		if r.want == nil || prefix.Addr().Is4() != four {
			continue
		}
		family := "IPv6"
		if four {
			family = "IPv4"
		}
		return fmt.Sprintf("peer %s (%s): %s routes are not announced to it: %s, which has the session's address %s, has no %s address to be their next hop",
			p.name, p.want.Address, family, device, local, family)
	}
	return ""
}

// source is the address that a session with a peer has here, as far as is known without one.
func source(p *bgp.Peer) netip.Addr {
	if p.Source.IsValid() {
		return p.Source
	}
	c, err := net.Dial("udp", net.JoinHostPort(p.Address.String(), strconv.Itoa(int(p.Port)))) // sends nothing
	if err != nil {
		return netip.Addr{}
	}
	defer func() { _ = c.Close() }()
	a, _ := netip.ParseAddrPort(c.LocalAddr().String())
	return a.Addr()
}

// link is an interface and its addresses.
type link struct {
	name      string
	addresses []netip.Addr
}

func readLinks() []link {
	all, _ := net.Interfaces()
	links := []link{}
	for _, i := range all {
		l := link{name: i.Name}
		addresses, _ := i.Addrs()
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				l.addresses = append(l.addresses, p.Addr())
			}
		}
		links = append(links, l)
	}
	return links
}

// otherAddress returns the first address of the other family, one that routers can forward to, of
// the interface that has an address, and the interface's name.
func otherAddress(links []link, local netip.Addr, six bool) (netip.Addr, string) {
	for _, l := range links {
		for _, a := range l.addresses {
			if a.WithZone("") != local.WithZone("") || local.Zone() != "" && local.Zone() != l.name {
				continue
			}
			for _, other := range l.addresses {
				if other.Is6() == six && other.IsGlobalUnicast() {
					return other, l.name
				}
			}
			return netip.Addr{}, l.name
		}
	}
	return netip.Addr{}, "no interface"
}
