package speaker

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// policies has the server go by what is wanted now, and decide anew about the routes of the peers
// for which that makes a difference. Their sessions stay.
func (s *Speaker) policies() {
	for _, prefix := range s.changedRoutes {
		if r := s.routes[prefix]; r != nil && r.want != nil {
			known := len(s.marks.known)
			_, _ = s.marks.of(r.want) // what is wrong with it is said when it is announced
			s.policyDue = s.policyDue || len(s.marks.known) > known
		}
	}
	if !s.policyDue {
		return
	}
	s.policyDue = false
	peers := s.partners()
	s.findHops(peers...)
	var parties []*party
	for _, p := range peers {
		parties = append(parties, s.partyOf(p))
	}
	ctx := context.Background()
	err := s.server.SetPolicies(ctx, compile(parties, s.settings.PassOn, s.marks.known).request())
	s.fault("rules", prefixed("rules of peers do not hold: ", err))
	if err != nil {
		return
	}
	for i, p := range peers {
		s.reset(ctx, p, parties[i])
	}
}

// partyOf is what the policies have to know of a peer.
func (s *Speaker) partyOf(p *peer) *party {
	w := p.want
	x := &party{name: p.name, address: w.Address, external: s.external(w), keepHop: w.KeepNextHop, imports: w.Import, exports: w.Export,
		loop: loopOf(s.localAS(w), w.AllowOwnAS)}
	if both(w) {
		x.other, x.hop = gobgp.RF_IPv6_UC, p.hop
		if !w.Address.Is4() {
			x.other, x.cross = gobgp.RF_IPv4_UC, p.cross && !p.hop.IsValid()
		}
	}
	return x
}

// reset has the routes of a peer that is there already decided anew if its policies have changed.
func (s *Speaker) reset(ctx context.Context, p *peer, x *party) {
	in, out := fmt.Sprint(x.imports), fmt.Sprint(x.exports, x.hop, x.cross, x.keepHop, s.settings.PassOn)
	was := p.decided
	p.decided = decided{in, out}
	if p.added == nil {
		return
	}
	// What of a peer needs no new session has taken effect.
	p.added = p.want
	direction := api.ResetPeerRequest_DIRECTION_BOTH
	switch {
	case was == p.decided:
		return
	case was.in == in:
		direction = api.ResetPeerRequest_DIRECTION_OUT
	case was.out == out:
		direction = api.ResetPeerRequest_DIRECTION_IN
	}
	err := s.server.ResetPeer(ctx, &api.ResetPeerRequest{Address: x.address.String(), Soft: true, Direction: direction})
	if err != nil {
		s.log.Warn("a peer's routes are not decided anew", "peer", p.name, "error", err)
	}
}

// tidy forgets what no route needs any more. It waits for the routes that have just changed: what
// they were announced with decides from which peers they are to be withdrawn.
func (s *Speaker) tidy() {
	used := map[uint32]bool{}
	for _, r := range s.routes {
		if r.had {
			used[r.mark] = true
		}
	}
	s.policyDue = s.marks.keep(used) || s.policyDue
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
