package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/bgp"
	bgpcompile "sluice.dev/sluice/internal/bgp/compile"
	"sluice.dev/sluice/internal/model"
)

// Speaker carries out what the compiler says of BGP.
type Speaker interface {
	// Follow follows a change. It returns at once.
	Follow(bgp.Order)
	// Reported delivers whenever Take has something to say.
	Reported() <-chan struct{}
	// Take returns what has changed since the last call.
	Take() bgp.Report
	// Run works until ctx ends.
	Run(ctx context.Context)
}

// speaking is the subject of BGP.
func (a *Agent) speaking() subject {
	return subject{
		run:     []func(context.Context){a.Speaker.Run, hear(a, a.Speaker.Reported(), func(l *loop, ctx context.Context, _ struct{}) { l.learn(ctx) })},
		moved:   a.Compiler.BGP.SecretsChanged,
		follow:  func() { a.Speaker.Follow(reading(a, a.Compiler.BGP.Changes)) },
		collect: collector{a}.collectBGP,
	}
}

// sessions is the state of BGP, as the speaker reports it.
type sessions struct {
	peers   map[string]*bgp.PeerStatus
	learned map[netip.Prefix]*bgp.Learned
	settled bool // all was learned once
	failure string
	ready   chan struct{} // closed once settled
}

func newSessions() sessions {
	return sessions{peers: map[string]*bgp.PeerStatus{}, learned: map[netip.Prefix]*bgp.Learned{}, ready: make(chan struct{})}
}

// learned returns once the loop has the first full set of routes of all BGP peers that answer.
func (a *Agent) learned(ctx context.Context) error {
	if a.Speaker == nil {
		return nil
	}
	select {
	case <-a.sessions.ready:
		return nil
	case <-ctx.Done():
	}
	a.compiling.Lock()
	defer a.compiling.Unlock()
	err := fmt.Errorf("wait for the routes of BGP peers: %w", ctx.Err())
	if a.sessions.failure != "" {
		err = fmt.Errorf("%w\n%s", err, a.sessions.failure)
	}
	return err
}

// learn takes over the speaker's report.
func (l *loop) learn(ctx context.Context) {
	r := l.Speaker.Take()
	l.compiling.Lock()
	s := &l.sessions
	for name, now := range r.Peers {
		l.logPeer(name, s.peers[name], now)
	}
	bgp.Apply(s.peers, r.Peers)
	bgp.Apply(s.learned, r.Learned)
	if s.failure != r.Error && r.Error != "" {
		l.Log.Error("BGP does not work as it should", "error", r.Error)
	}
	if r.Settled && !s.settled {
		s.settled = true
		close(s.ready)
	}
	s.failure = r.Error
	l.Compiler.SetLearned(r.Learned)
	l.compiling.Unlock()
	l.attempt(ctx)
}

// logPeer logs the begin and the end of a session.
func (l *loop) logPeer(name string, was, now *bgp.PeerStatus) {
	up := func(p *bgp.PeerStatus) bool { return p != nil && p.State == bgp.Established }
	switch {
	case up(now) && !up(was):
		l.Log.Info("BGP session is established", "peer", name)
	case up(was) && now != nil && !up(now):
		l.Log.Warn("BGP session has ended", "peer", name, "reason", now.Why)
	}
}

// errNoBGP is the answer of an agent that speaks no BGP.
var errNoBGP = errors.New("the agent speaks no BGP: it runs without --bgp")

// BGPReport is the state of BGP: what this node is to announce, its sessions, and what it has
// learned.
type BGPReport struct {
	bgpcompile.View
	Sessions map[string]bgp.PeerStatus `json:"sessions"` // by the name of the peer
	Learned  []LearnedFrom             `json:"learned"`  // sorted by prefix
	Settled  bool                      `json:"settled"`  // all was learned once since the agent started
	Error    string                    `json:"error,omitempty"`
	Issues   []model.Issue             `json:"issues"`
}

// LearnedFrom is a route that a peer announces.
type LearnedFrom struct {
	Prefix netip.Prefix `json:"prefix"`
	bgp.Learned
	NotFollowed string `json:"notFollowed,omitempty"` // why it leads no packets; "": it does
}

// bgpReport returns the state of BGP.
func (a *Agent) bgpReport() (BGPReport, error) {
	if a.Speaker == nil {
		return BGPReport{}, errNoBGP
	}
	a.compiling.Lock()
	issues, s := a.Compiler.BGPIssues(), &a.sessions
	r := BGPReport{
		View: a.Compiler.BGP.View(), Sessions: map[string]bgp.PeerStatus{}, Learned: make([]LearnedFrom, 0, len(s.learned)),
		Settled: s.settled, Error: s.failure,
	}
	for _, p := range r.Peers {
		r.Sessions[p.Name] = s.of(p.Name)
	}
	for p, l := range s.learned {
		r.Learned = append(r.Learned, LearnedFrom{p, *l, a.Compiler.Fabric.NotFollowed(p)})
	}
	a.compiling.Unlock()
	slices.SortFunc(r.Learned, func(a, b LearnedFrom) int { return a.Prefix.Compare(b.Prefix) })
	r.Issues = a.issuesAbout(issues, model.BGPConfigurationKind, model.BGPPeerKind, model.BGPFilterKind,
		model.MetalLBPeerKind, model.BGPAdvertisementKind, model.CommunityKind, model.BFDProfileKind)
	return r, nil
}

// BGPStatus sums up the state of BGP.
type BGPStatus struct {
	Peers int      `json:"peers"`
	Down  []string `json:"down,omitempty"`  // the peers without a session, and why, sorted
	Error string   `json:"error,omitempty"` // why the speaker does not do as it was told
}

// bgpStatus returns a summary; nil: the agent speaks no BGP.
func (a *Agent) bgpStatus() *BGPStatus {
	if a.Speaker == nil {
		return nil
	}
	a.compiling.Lock()
	defer a.compiling.Unlock()
	peers, _ := a.Compiler.BGP.Counts()
	s := &BGPStatus{Peers: len(peers), Error: a.sessions.failure}
	for _, name := range peers {
		if p := a.sessions.of(name); p.State != bgp.Established {
			s.Down = append(s.Down, fmt.Sprintf("%s: %s", name, cmp.Or(p.Why, p.State)))
		}
	}
	slices.Sort(s.Down)
	return s
}

// of returns the state of the session with a peer.
func (s *sessions) of(peer string) bgp.PeerStatus {
	if p := s.peers[peer]; p != nil {
		return *p
	}
	return bgp.PeerStatus{State: "idle"}
}

var (
	descBGPPeers   = desc("bgp_peers", "BGP peers, by whether their session is established.", "state")
	descBGPLearned = desc("bgp_routes_learned", "Best routes that BGP peers announce.")
	descBGPOwn     = desc("bgp_routes_announced", "Routes of its own that this node announces by BGP.")
)

// collectBGP makes the metrics of BGP.
func (c collector) collectBGP(s samples) {
	c.compiling.Lock()
	defer c.compiling.Unlock()
	peers, routes := c.Compiler.BGP.Counts()
	up := 0
	for _, name := range peers {
		if c.sessions.of(name).State == bgp.Established {
			up++
		}
	}
	s.put(descBGPPeers, float64(up), "established")
	s.put(descBGPPeers, float64(len(peers)-up), "down")
	s.put(descBGPLearned, float64(len(c.sessions.learned)))
	s.put(descBGPOwn, float64(routes))
}
