package speaker

import (
	"fmt"
	"net/netip"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/kernel/link"
)

// findHops finds this node's address of the other family towards each peer that exchanges routes
// of both: the server knows the session's own address alone. It reports whether any has changed.
func (s *Speaker) findHops(peers ...*peer) bool {
	var all []link.Address
	changed := false
	for _, p := range peers {
		if check(p.want) != nil || !both(p.want) {
			s.fault("next hop "+p.name, "")
			continue
		}
		if all == nil {
			var err error
			if all, err = link.Here.Addresses(); err != nil {
				s.log.Warn("this node's addresses cannot be read", "error", err)
				return false // as they were
			}
		}
		changed = s.findHop(p, all) || changed
	}
	return changed
}

func (s *Speaker) findHop(p *peer, all []link.Address) bool {
	local, on := p.local, 0
	if !p.up || !local.IsValid() {
		local = source(p.want)
	}
	if zone := p.want.Address.Zone(); zone != "" {
		on, _ = link.Here.Index(zone) // without it, there is no session either
	}
	hop, device := otherAddress(all, local, on, p.want.Address.Is4())
	changed := hop != p.hop
	p.hop = hop
	s.fault("next hop "+p.name, s.missingHop(p, local, device))
	return changed
}

// missingHop says why routes of a family are not announced to a peer, if there are any.
func (s *Speaker) missingHop(p *peer, local netip.Addr, device int) string {
	four := !p.want.Address.Is4()
	if p.hop.IsValid() || four && p.cross || device == 0 {
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
		name, err := link.Here.Name(device)
		if err != nil {
			name = fmt.Sprintf("interface %d", device)
		}
		return fmt.Sprintf("peer %s (%s): %s routes are not announced to it: %s, which has the session's address %s, has no %s address to be their next hop",
			p.name, p.want.Address, family, name, local, family)
	}
	return ""
}

// source is the address that a session with a peer has here, as far as is known without one.
func source(p *bgp.Peer) netip.Addr {
	if p.Source.IsValid() {
		return p.Source
	}
	r, err := link.Here.Route(p.Address.WithZone(""))
	if err != nil {
		return netip.Addr{}
	}
	return r.Source
}

// otherAddress returns the first address of the other family, one that is good beyond its link, of
// the interface that has an address, and the interface; 0: none has. on is the interface that is
// asked about where several may have the address, which are link-local ones; else 0.
func otherAddress(all []link.Address, local netip.Addr, on int, six bool) (netip.Addr, int) {
	local = local.WithZone("")
	for _, a := range all {
		if a.Prefix.Addr() != local || local.IsLinkLocalUnicast() && a.Link != on {
			continue
		}
		for _, other := range all {
			if other.Link == a.Link && other.Global && other.Prefix.Addr().Is6() == six {
				return other.Prefix.Addr(), a.Link
			}
		}
		return netip.Addr{}, a.Link
	}
	return netip.Addr{}, 0
}
