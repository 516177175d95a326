package speaker

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"sluice.dev/sluice/internal/bgp"
)

// session is how it stands with a peer.
type session struct {
	state   string
	up      bool
	since   time.Time // up, or not
	ended   string    // why the last session ended
	failed  string    // why there has been none since
	closing string    // what was heard of the end of this session, or attempt, before it came

	probing bool      // the peer is asked why there is none
	probed  time.Time // and was
	answer  string    // what it said, until something else is in the way

	restarting bool // it is away, and its routes are kept

	local   netip.Addr // of the session
	hop     netip.Addr // of the other family
	cross   bool       // it takes IPv4 routes by way of IPv6
	decided decided

	begun  time.Time                          // when the server got the peer
	heard  time.Time                          // when it last told of a route
	told   map[gobgp.Family]bool              // all its routes
	passed map[bool]map[netip.Prefix]struct{} // by whether they are of IPv4
	excess string                             // what it announces too much of; "": it does not
	counts counts
}

// decided are the policies that a peer's routes were decided by.
type decided struct{ in, out string }

type counts struct{ received, advertised int }

// noneOfBoth has no prefix of IPv4, and none of IPv6.
func noneOfBoth() map[bool]map[netip.Prefix]struct{} {
	return map[bool]map[netip.Prefix]struct{}{true: {}, false: {}}
}

func newSession() session {
	return session{state: "idle", since: time.Now(), told: map[gobgp.Family]bool{}, passed: noneOfBoth()}
}

// status is what a Report says of a peer, nil if it is none any more.
func (s *Speaker) status(name string) *bgp.PeerStatus {
	p := s.peers[name]
	if p == nil || p.want == nil {
		return nil
	}
	accepted := len(p.passed[false]) + len(p.passed[true])
	return &bgp.PeerStatus{
		State: p.state, Since: p.since, Why: p.why(),
		Received: max(p.counts.received, accepted), Accepted: accepted, Advertised: p.counts.advertised, // received are counted later
	}
}

// notConnected is said of a peer that this node waits for, as one end alone opens the session.
const notConnected = "the peer has not connected: it is the end that opens the session, and 'sluice bgp' there may say why"

// why says what ended the last session, and what has been in the way of a new one.
func (p *peer) why() string {
	failed := p.failed
	if failed == "" && p.want.Passive {
		failed = notConnected
	}
	switch {
	case p.up || failed == "":
		return p.ended
	case p.ended == "":
		return failed
	}
	return p.ended + "; since then: " + failed
}

// states are those of RFC 4271, section 8.2.2.
var states = map[gobgp.FSMState]string{
	gobgp.BGP_FSM_IDLE: "idle", gobgp.BGP_FSM_CONNECT: "connect", gobgp.BGP_FSM_ACTIVE: "active",
	gobgp.BGP_FSM_OPENSENT: "opensent", gobgp.BGP_FSM_OPENCONFIRM: "openconfirm", gobgp.BGP_FSM_ESTABLISHED: "established",
}

// changed notes a peer's new state.
func (s *Speaker) changed(e *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	p := s.at[e.Peer.State.NeighborAddress]
	if p == nil || e.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	was, before := p.up, p.state
	p.state = states[e.Peer.State.SessionState]
	if before == states[gobgp.BGP_FSM_OPENCONFIRM] && p.state == states[gobgp.BGP_FSM_IDLE] {
		closeLost(p.added.Address, s.settings.Port)
	}
	s.report.Peers[p.name] = nil
	switch {
	case e.Peer.State.SessionState == gobgp.BGP_FSM_ESTABLISHED:
		s.established(p, e.Peer.State.RemoteCap, at)
	case was && p.excess != "":
		s.flooded(p)
	case was:
		s.down(p, endOf(e.Peer.State.DisconnectReason, p.closing))
		p.since = at
		if e.Peer.State.DisconnectReason == api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART {
			p.restarting = true
			for _, f := range families(p.added) {
				s.stale(p, true, f)
			}
		}
	case e.Peer.State.SessionState == gobgp.BGP_FSM_IDLE && e.Peer.State.DisconnectReason != api.PeerState_DISCONNECT_REASON_RESTART_TIMER_EXPIRED:
		s.refused(p, endOf(e.Peer.State.DisconnectReason, ""))
	}
}

// established notes a new session. What is announced on it hangs on its addresses, which are known
// only now.
func (s *Speaker) established(p *peer, capabilities []gobgp.ParameterCapabilityInterface, at time.Time) {
	p.up, p.since, p.heard = true, at, at
	p.failed, p.closing, p.answer = "", "", ""
	clear(p.told)
	cross := p.cross
	p.cross = offers(capabilities, gobgp.BGP_CAP_EXTENDED_NEXTHOP)
	s.counter.due = true
	s.log.Debug("BGP session is established", "peer", p.name)
	if p.restarting && !offers(capabilities, gobgp.BGP_CAP_GRACEFUL_RESTART) {
		// It will never say that it has told all its routes, so that the server would keep the
		// others for ever (RFC 4724, section 4.2: they go at once).
		s.removePeer(p)
		s.update()
		return
	}
	p.restarting = false
	if !both(p.added) {
		return
	}
	if now := s.ask(p, false); now != nil {
		p.local, _ = netip.ParseAddr(now.GetTransport().GetLocalAddress())
	}
	if s.findHops(p) || p.cross != cross {
		s.policyDue = true
		s.update()
	}
}

func offers(all []gobgp.ParameterCapabilityInterface, code gobgp.BGPCapabilityCode) bool {
	return slices.ContainsFunc(all, func(c gobgp.ParameterCapabilityInterface) bool { return c.Code() == code })
}

// down notes the end of a session, or that there will be none.
func (s *Speaker) down(p *peer, why string) {
	if p.up {
		p.up, p.since, p.ended = false, time.Now(), why
		s.log.Debug("BGP session has ended", "peer", p.name, "reason", why)
	}
	p.restarting = false
	p.state, p.failed, p.closing, p.answer = "idle", "", "", ""
	p.counts = counts{}
	clear(p.told)
	p.passed = noneOfBoth()
	s.report.Peers[p.name] = nil
}

// hear notes what the server's log says of a peer, which its events do not.
func (s *Speaker) hear(about netip.Addr, r heard) {
	s.inbox.post(func() {
		p := s.at[about]
		if p == nil {
			return
		}
		switch {
		case p.closing == unreadable: // the notification says less
		case p.up && r.text == unreadable:
			p.closing = r.text
			s.begins(p)
		case p.up:
			p.closing = r.text
		case r.vague:
			s.refused(p, r.text)
		default:
			p.answer = ""
			s.fails(p, r.text)
		}
	})
}

// begins has the session with a peer begin anew: it then tells all its routes again.
func (s *Speaker) begins(p *peer) {
	err := s.server.ResetPeer(context.Background(), &api.ResetPeerRequest{Address: p.added.Address.String()})
	if err != nil {
		p.closing = ""
		s.log.Warn("the session with a peer does not begin anew", "peer", p.name, "error", err)
	}
}

// refused notes that a connection did not become a session, for a reason that the peer knows
// better.
func (s *Speaker) refused(p *peer, text string) {
	s.askWhy(p)
	s.fails(p, cmp.Or(p.answer, text))
}

// fails notes why there is no session. A peer that has closed a session for an error may close what
// is opened for a while after it: that does not hide the error.
func (s *Speaker) fails(p *peer, text string) {
	if p.failed == text || text == closesEarly && spoken(p.failed) {
		return
	}
	p.failed = text
	s.report.Peers[p.name] = nil
}

// told notes that a peer has told all its routes of a family (End-of-RIB).
func (s *Speaker) told(from netip.Addr, family gobgp.Family) {
	p := s.at[from]
	if p == nil {
		return
	}
	p.session.told[family] = true
	s.counter.due = true
	s.stale(p, false, family)
	s.settle()
}

// counter says when routes are to be counted: after a change, at most once a second, and so that it
// takes no more than a twentieth of the time. Routes that a reflector sends back to this node are
// passed over without a change that could be seen, so that it is done now and then as well.
type counter struct {
	due  bool
	next time.Time
	late time.Time
}

// countInterval is how late routes are counted without a change.
const countInterval = 10 * time.Second

// count counts the routes, if there may be more or fewer.
func (s *Speaker) count() {
	begin := time.Now()
	due := s.counter.due || begin.After(s.counter.late)
	if s.server == nil || !due || begin.Before(s.counter.next) {
		return
	}
	s.counter.due = false
	for _, p := range s.peers {
		if !p.up || p.added == nil || p.excess != "" {
			continue
		}
		now := s.ask(p, true)
		if now == nil {
			continue
		}
		var c counts
		most := uint64(p.added.MaxRoutes) * bgp.RejectedToo
		for _, f := range now.AfiSafis {
			if most > 0 && p.excess == "" && f.GetState().GetReceived() > most {
				s.exceeds(p, fmt.Sprintf("more than %d routes of a family, those that its filters reject included", most))
			}
			c.received += int(f.GetState().GetReceived())
			c.advertised += int(f.GetState().GetAdvertised())
		}
		if c != p.counts {
			p.counts = c
			s.report.Peers[p.name] = nil
		}
	}
	s.counter.next = time.Now().Add(20 * time.Since(begin))
	s.counter.late = time.Now().Add(countInterval)
}

// ask returns what the server says of a peer, nil if it does not have it.
func (s *Speaker) ask(p *peer, counting bool) *api.Peer {
	var found *api.Peer
	err := s.server.ListPeer(context.Background(), &api.ListPeerRequest{Address: p.added.Address.String(), EnableAdvertised: counting},
		func(now *api.Peer) { found = now })
	if err != nil {
		s.log.Warn("the BGP server does not say how it stands with a peer", "peer", p.name, "error", err)
	}
	return found
}
