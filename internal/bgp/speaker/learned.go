package speaker

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"sluice.dev/sluice/internal/bgp"
)

// learn notes the best routes to some prefixes. One that this node announces itself is not
// learned, whoever else does.
func (s *Speaker) learn(paths []*apiutil.Path) {
	for _, p := range paths {
		prefix, ok := prefixOf(p.Nlri)
		if !ok {
			continue
		}
		delete(s.left, prefix)
		from := s.at[p.PeerAddress]
		if p.Withdrawal || from == nil || from.excess != "" {
			s.forget(prefix)
			continue
		}
		l := learnedOf(p)
		l.Peer = from.name
		if old := s.learned[prefix]; old != nil && old.Equal(l) {
			continue
		}
		s.learned[prefix] = l
		s.report.Learned[prefix] = l
	}
	s.counter.due = true
}

func (s *Speaker) forget(prefix netip.Prefix) {
	if s.learned[prefix] == nil {
		return
	}
	delete(s.learned, prefix)
	s.report.Learned[prefix] = nil
}

// stale marks all that is left of a peer's routes of a family, or not.
func (s *Speaker) stale(p *peer, stale bool, family gobgp.Family) {
	for prefix, l := range s.learned {
		if l.Peer != p.name || l.Stale == stale || prefix.Addr().Is4() != (family == gobgp.RF_IPv4_UC) {
			continue
		}
		n := *l
		n.Stale = stale
		s.learned[prefix] = &n
		s.report.Learned[prefix] = &n
	}
}

// accept counts the routes of peers that pass the rules, and ends the session with one that has too
// many.
func (s *Speaker) accept(paths []*apiutil.Path) {
	for _, path := range paths {
		p := s.at[path.PeerAddress]
		prefix, ok := prefixOf(path.Nlri)
		if p == nil || !ok || p.excess != "" {
			continue
		}
		p.heard = time.Now()
		passed := p.passed[prefix.Addr().Is4()]
		if path.Withdrawal {
			delete(passed, prefix)
		} else {
			passed[prefix] = struct{}{}
		}
		if most := int(p.added.MaxRoutes); most > 0 && len(passed) > most {
			s.exceeds(p, fmt.Sprintf("more than %d routes of a family that its filters accept", most))
		}
		s.report.Peers[p.name] = nil
	}
	s.counter.due = true
}

func prefixOf(n gobgp.NLRI) (netip.Prefix, bool) {
	p, ok := n.(*gobgp.IPAddrPrefix)
	if !ok {
		return netip.Prefix{}, false
	}
	return p.Prefix, true
}

// learnedOf reads a path's attributes.
func learnedOf(p *apiutil.Path) *bgp.Learned {
	l := &bgp.Learned{Stale: p.Stale}
	for _, a := range p.Attrs {
		switch a := a.(type) {
		case *gobgp.PathAttributeNextHop:
			l.NextHop = a.Value
		case *gobgp.PathAttributeMpReachNLRI:
			l.NextHop = a.Nexthop
		case *gobgp.PathAttributeAsPath:
			for _, part := range a.Value {
				l.Path = append(l.Path, part.GetAS()...)
			}
		case *gobgp.PathAttributeLocalPref:
			l.LocalPref = a.Value
		case *gobgp.PathAttributeMultiExitDisc:
			l.MED = a.Value
		case *gobgp.PathAttributeCommunities:
			for _, c := range a.Value {
				l.Communities = append(l.Communities, communityText(c))
			}
		case *gobgp.PathAttributeLargeCommunities:
			for _, c := range a.Values {
				l.Communities = append(l.Communities, "large:"+c.String())
			}
		}
	}
	return l
}

func communityText(c uint32) string {
	if name, ok := gobgp.WellKnownCommunityNameMap[gobgp.WellKnownCommunity(c)]; ok {
		return name
	}
	return fmt.Sprintf("%d:%d", c>>16, c&0xffff)
}
