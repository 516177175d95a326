package speaker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"sluice.dev/sluice/internal/bgp"
)

// deferral is how long a restarted speaker waits for all its peers' routes before it announces its
// own (RFC 4724, section 4.1), which peers have kept that long.
const deferral = 3 * time.Second

// rest is how long there is no session with a peer that has announced too much.
const rest = 5 * time.Minute

// endsWithin is how long the server has to end the session with such a peer.
const endsWithin = 5 * time.Second

// peer is a wanted peer, or one that is no longer wanted and still to be removed.
type peer struct {
	name  string
	want  *bgp.Peer // nil: to be removed
	added *bgp.Peer // as the server has it; nil: not at all
	rests time.Time // when it may have a session again, having announced too much

	session
}

// setPeer notes what is wanted of a peer.
func (s *Speaker) setPeer(name string, want *bgp.Peer) {
	p := s.peers[name]
	if p == nil {
		if want == nil {
			return
		}
		p = &peer{name: name, session: newSession()}
		s.peers[name] = p
	}
	p.want, p.rests, s.policyDue = want, time.Time{}, true
	s.report.Peers[name] = nil
}

// removePeers takes from the server the peers that are no longer wanted as it has them.
func (s *Speaker) removePeers() {
	for name, p := range s.peers {
		if p.added != nil && (p.want == nil || s.differ(p.added, p.want)) {
			s.removePeer(p)
		}
		if p.want == nil {
			delete(s.peers, name)
			s.fault("peer "+name, "")
			s.fault("next hop "+name, "")
		}
	}
}

// differ reports whether a change of a peer takes a new session.
func (s *Speaker) differ(a, b *bgp.Peer) bool {
	x, y := *a, *b
	x.Import, x.Export, y.Import, y.Export = nil, nil, nil, nil
	x.KeepNextHop, y.KeepNextHop = false, false // the export policy's business
	return !x.Equal(&y)
}

func (s *Speaker) removePeer(p *peer) {
	ctx, address := context.Background(), p.added.Address.String()
	if p.added.Password != "" {
		// The server forgets the password of a listening socket only when it is changed.
		spec := s.peerOf(p.added, false)
		spec.Conf.AuthPassword = ""
		if _, err := s.server.UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: spec}); err != nil {
			s.log.Warn("the password of a peer that goes is not forgotten", "peer", p.name, "error", err)
		}
	}
	if err := s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: address}); err != nil {
		s.log.Warn("a peer that goes was not there", "peer", p.name, "error", err)
	}
	delete(s.at, p.added.Address)
	p.added = nil
	s.down(p, "its configuration changed")
}

// exceeds has the server end the session with a peer that announces too much, by a limit of its own
// that is exceeded as well. It is not told that limit earlier: it knows none of what is accepted
// alone, and goes through all routes of a peer at each of its messages. A peer that has withdrawn
// nearly all by then does not exceed that limit: it is taken from the server.
func (s *Speaker) exceeds(p *peer, excess string) {
	p.excess = excess
	spec := s.peerOf(p.added, false)
	for _, f := range spec.AfiSafis {
		f.PrefixLimits = &api.PrefixLimit{Family: f.Config.Family, MaxPrefixes: 1}
	}
	if _, err := s.server.UpdatePeer(context.Background(), &api.UpdatePeerRequest{Peer: spec}); err != nil {
		s.log.Warn("a peer that announces too much is not told so", "peer", p.name, "error", err)
		s.flooded(p)
		return
	}
	time.AfterFunc(endsWithin, func() {
		s.inbox.post(func() {
			if p.added != nil && p.excess != "" {
				s.flooded(p)
			}
		})
	})
}

// flooded takes from the server, with all its routes, a peer that announced too much.
func (s *Speaker) flooded(p *peer) {
	s.down(p, "this node closed the session: "+notificationText(gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_MAXIMUM_NUMBER_OF_PREFIXES_REACHED))
	s.removePeer(p)
	p.rests = time.Now().Add(rest)
	p.failed = fmt.Sprintf("it announces %s: have it announce fewer; the next session is tried after %.0f minutes", p.excess, rest.Minutes())
	s.fault("peer "+p.name, fmt.Sprintf("peer %s (%s): %s", p.name, p.want.Address, p.failed))
}

// addPeers gives the server the wanted peers that it does not have.
func (s *Speaker) addPeers() {
	for _, p := range s.sortedPeers() {
		if p.added != nil || time.Now().Before(p.rests) {
			continue
		}
		err := check(p.want)
		if err == nil {
			err = s.addPeer(p)
		}
		s.fault("peer "+p.name, prefixed(fmt.Sprintf("peer %s (%s): ", p.name, p.want.Address), err))
	}
}

func (s *Speaker) addPeer(p *peer) error {
	if other := s.at[p.want.Address]; other != nil {
		return fmt.Errorf("peer %s has the same address", other.name)
	}
	// What the server has at its start is what the last one had: its peers may have kept the
	// routes.
	restarting := time.Since(s.server.started) < deferral
	s.at[p.want.Address] = p
	if err := s.server.AddPeer(context.Background(), &api.AddPeerRequest{Peer: s.peerOf(p.want, restarting)}); err != nil {
		delete(s.at, p.want.Address)
		return err
	}
	p.added, p.failed, p.excess, p.begun, p.since = p.want, "", "", time.Now(), time.Now()
	return nil
}

// check finds what the server would take without a word.
func check(p *bgp.Peer) error {
	switch {
	case !p.Address.IsValid():
		return fmt.Errorf("it has no address")
	case p.AS == 0:
		return fmt.Errorf("it has no AS")
	case !p.IPv4 && !p.IPv6:
		return fmt.Errorf("routes of neither IPv4 nor IPv6 are exchanged with it")
	case len(p.Password) > 80:
		return fmt.Errorf("its password has %d bytes, of 80 that TCP MD5 takes", len(p.Password))
	case p.Source.IsValid() && p.Source.Is4() != p.Address.Is4():
		return fmt.Errorf("its source, %s, is of another family", p.Source)
	}
	return nil
}

// peerOf is the peer as the server takes it.
func (s *Speaker) peerOf(p *bgp.Peer, restarting bool) *api.Peer {
	a := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: p.Address.String(), PeerAsn: p.AS, LocalAsn: s.localAS(p),
			AuthPassword: p.Password,
			AllowOwnAsn:  math.MaxUint8, // the import policy rejects them: see addLoops
		},
		Transport: &api.Transport{RemotePort: uint32(p.Port), PassiveMode: p.Passive},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime: seconds(holdOf(p)), KeepaliveInterval: seconds(p.Keepalive), ConnectRetry: seconds(retryOf(p)),
			IdleHoldTimeAfterReset: seconds(retryOf(p)), // not half a minute
		}},
		EbgpMultihop:   &api.EbgpMultihop{},
		TtlSecurity:    &api.TtlSecurity{},
		RouteReflector: &api.RouteReflector{},
	}
	if p.Source.IsValid() {
		a.Transport.LocalAddress = p.Source.String()
	}
	switch {
	case p.Security > 0: // a packet with a TTL of 255 has 256 - n left after n - 1 routers
		a.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 256 - uint32(p.Security)}
	case p.Hops > 0 && s.external(p):
		a.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: min(uint32(p.Hops)+1, 255)}
	}
	if p.Cluster.IsValid() {
		a.RouteReflector = &api.RouteReflector{RouteReflectorClient: true, RouteReflectorClusterId: p.Cluster.String()}
	}
	graceful := p.Restart && s.settings.Restart > 0
	if graceful {
		a.GracefulRestart = &api.GracefulRestart{
			Enabled: true, RestartTime: uint32(min(seconds(s.settings.Restart), 4095)), // a field of 12 bits
			DeferralTime: uint32(seconds(deferral)), LocalRestarting: restarting,
		}
	}
	for _, f := range families(p) {
		a.AfiSafis = append(a.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: apiFamily(f), Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: graceful}},
		})
	}
	return a
}

func (s *Speaker) localAS(p *bgp.Peer) uint32 { return cmp.Or(p.LocalAS, s.settings.AS) }

// external reports whether a peer is of another AS.
func (s *Speaker) external(p *bgp.Peer) bool { return s.localAS(p) != p.AS }

func holdOf(p *bgp.Peer) time.Duration  { return cmp.Or(p.Hold, 90*time.Second) }
func retryOf(p *bgp.Peer) time.Duration { return cmp.Or(p.Retry, 10*time.Second) }

// seconds rounds up, as 0 means something else.
func seconds(d time.Duration) uint64 { return uint64(math.Ceil(d.Seconds())) }

func families(p *bgp.Peer) []gobgp.Family {
	var all []gobgp.Family
	if p.IPv4 {
		all = append(all, gobgp.RF_IPv4_UC)
	}
	if p.IPv6 {
		all = append(all, gobgp.RF_IPv6_UC)
	}
	return all
}

func apiFamily(f gobgp.Family) *api.Family {
	return &api.Family{Afi: api.Family_Afi(f.Afi()), Safi: api.Family_Safi(f.Safi())}
}

// both reports whether a peer exchanges the family that its address is not of.
func both(p *bgp.Peer) bool {
	if p.Address.Is4() {
		return p.IPv6
	}
	return p.IPv4
}

// partners are the wanted peers that the server has or may get: those with rules that are to hold.
// Of two with the same address it is the one that the server has, or gets first.
func (s *Speaker) partners() []*peer {
	var all []*peer
	owners := maps.Clone(s.at)
	for _, p := range s.sortedPeers() {
		if owners[p.want.Address] == nil && check(p.want) == nil {
			owners[p.want.Address] = p
		}
		if owners[p.want.Address] == p {
			all = append(all, p)
		}
	}
	return all
}

// sortedPeers are the wanted peers, by their names.
func (s *Speaker) sortedPeers() []*peer {
	all := slices.SortedFunc(maps.Values(s.peers), func(a, b *peer) int { return strings.Compare(a.name, b.name) })
	return slices.DeleteFunc(all, func(p *peer) bool { return p.want == nil })
}
