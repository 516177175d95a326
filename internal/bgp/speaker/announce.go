package speaker

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"sluice.dev/sluice/internal/bgp"
)

// route is a prefix that is to be announced, or to be withdrawn.
type route struct {
	want *bgp.Route // nil: to be withdrawn
	mark uint32     // that the server has it with, once told
	told bool       // the server has it as wanted
	had  bool       // the server has it, wanted so or not
}

// setRoute notes what is wanted of a route.
func (s *Speaker) setRoute(prefix netip.Prefix, want *bgp.Route) {
	r := s.routes[prefix]
	switch {
	case r == nil && want == nil:
		return
	case r == nil:
		r = &route{}
		s.routes[prefix] = r
	case want != nil && r.want != nil && r.told && r.want.Equal(want):
		return
	}
	r.want, r.told = want, false
	s.changedRoutes = append(s.changedRoutes, prefix)
}

// announce tells the server of the routes that have changed.
func (s *Speaker) announce() {
	for _, prefix := range s.changedRoutes {
		r := s.routes[prefix]
		if r == nil || r.told {
			continue
		}
		about := "route " + prefix.String()
		var err error
		if r.want == nil {
			err = s.withdraw(prefix, r)
			delete(s.routes, prefix)
		} else {
			err = s.tell(prefix, r)
		}
		s.fault(about, prefixed(about+" is not announced: ", err))
	}
	s.changedRoutes = s.changedRoutes[:0]
}

// tell announces a route, whose mark the policies know.
func (s *Speaker) tell(prefix netip.Prefix, r *route) error {
	mark, err := s.marks.of(r.want)
	if err == nil {
		var p *apiutil.Path
		if p, err = pathOf(prefix, mark); err == nil {
			_, err = s.server.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{p}})
		}
	}
	if err != nil { // rather not at all than with what is no longer wanted
		_ = s.withdraw(prefix, r)
		return err
	}
	r.mark, r.told, r.had = mark, true, true
	return nil
}

func (s *Speaker) withdraw(prefix netip.Prefix, r *route) error {
	if !r.had {
		return nil
	}
	r.had = false
	p, err := pathOf(prefix, 0)
	if err != nil {
		return err
	}
	return s.server.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{p}})
}

// pathOf is a route as the server takes it. Its next hop is this node's address on each session.
func pathOf(prefix netip.Prefix, mark uint32) (*apiutil.Path, error) {
	nlri, err := gobgp.NewIPAddrPrefix(prefix)
	if err != nil {
		return nil, err
	}
	attrs := []gobgp.PathAttributeInterface{gobgp.NewPathAttributeOrigin(gobgp.BGP_ORIGIN_ATTR_TYPE_IGP)}
	if mark != 0 {
		attrs = append(attrs, gobgp.NewPathAttributeCommunities([]uint32{mark}))
	}
	family := gobgp.RF_IPv6_UC
	if prefix.Addr().Is4() {
		family = gobgp.RF_IPv4_UC
		hop, err := gobgp.NewPathAttributeNextHop(netip.IPv4Unspecified())
		if err != nil {
			return nil, err
		}
		attrs = append(attrs, hop)
	} else {
		reach, err := gobgp.NewPathAttributeMpReachNLRI(family, []gobgp.PathNLRI{{NLRI: nlri}}, netip.IPv6Unspecified())
		if err != nil {
			return nil, err
		}
		attrs = append(attrs, reach)
	}
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: attrs}, nil
}

// said is what one peer gets with a route.
type said struct {
	communities []string // standard ones, as numbers
	large       []string
	localPref   uint32 // 0: 100
}

// saying is what some announcements say: what those peers get with a route that get it.
type saying struct {
	all   *said            // for peers without an entry of their own; nil: they do not get it
	named map[string]*said // by peer
	key   string
}

// sayingOf adds up announcements. Of several local preferences the highest holds.
func sayingOf(r *bgp.Route) (*saying, error) {
	out := &saying{named: map[string]*said{}}
	for _, a := range r.Announcements {
		for _, name := range a.Peers {
			out.named[name] = &said{}
		}
		if len(a.Peers) == 0 {
			out.all = &said{}
		}
	}
	for _, a := range r.Announcements {
		var x said
		if err := x.add(a); err != nil {
			return nil, err
		}
		if len(a.Peers) == 0 {
			out.all.merge(&x)
		}
		for name, to := range out.named {
			if len(a.Peers) == 0 || slices.Contains(a.Peers, name) {
				to.merge(&x)
			}
		}
	}
	out.key = out.text()
	return out, nil
}

func (x *said) add(a bgp.Announcement) error {
	x.localPref = a.LocalPref
	for _, text := range a.Communities {
		if text, ok := strings.CutPrefix(text, "large:"); ok {
			c, err := gobgp.ParseLargeCommunity(text)
			if err != nil {
				return fmt.Errorf("large:%s is no large community, as large:64500:1:2 is", text)
			}
			x.large = append(x.large, c.String())
			continue
		}
		c, err := community(text)
		if err != nil {
			return err
		}
		x.communities = append(x.communities, c)
	}
	return nil
}

func (x *said) merge(y *said) {
	x.localPref = max(x.localPref, y.localPref)
	x.communities = union(x.communities, y.communities)
	x.large = union(x.large, y.large)
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

func (x *said) plain() bool { return x.localPref == 0 && len(x.communities)+len(x.large) == 0 }

func (x *said) text() string {
	return fmt.Sprint(x.communities, x.large, x.localPref)
}

func (y *saying) text() string {
	var b strings.Builder
	if y.all != nil {
		b.WriteString(y.all.text())
	}
	for _, name := range sortedKeys(y.named) {
		fmt.Fprintf(&b, "|%s %s", name, y.named[name].text())
	}
	return b.String()
}

// plain reports whether all peers get it, with nothing.
func (y *saying) plain() bool {
	return y.all != nil && y.all.plain() && len(y.named) == 0
}
