package agent

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.dev/sluice/internal/bgp"
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

// sessions are how it stands with BGP.
type sessions struct {
	peers   map[string]*bgp.PeerStatus
	learned map[netip.Prefix]*bgp.Learned
	settled bool // all was learned once
	failure string
}

// learn takes over what the speaker reports.
func (l *loop) learn(ctx context.Context) {
	r := l.Speaker.Take()
	l.compiling.Lock()
	s := &l.sessions
	if s.peers == nil {
		s.peers, s.learned = map[string]*bgp.PeerStatus{}, map[netip.Prefix]*bgp.Learned{}
	}
	for name, now := range r.Peers {
		l.logPeer(name, s.peers[name], now)
	}
	follow(s.peers, r.Peers)
	follow(s.learned, r.Learned)
	if s.failure != r.Error && r.Error != "" {
		l.Log.Error("BGP does not work as it should", "error", r.Error)
	}
	s.failure, s.settled = r.Error, s.settled || r.Settled
	l.Compiler.SetLearned(r.Learned)
	l.compiling.Unlock()
	l.attempt(ctx)
}

// follow changes a map by what is new, or gone.
func follow[K comparable, V any](m, changes map[K]*V) {
	maps.Copy(m, changes)
	maps.DeleteFunc(m, func(_ K, v *V) bool { return v == nil })
}

// logPeer says when a session comes and goes.
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

// BGPReport is how it stands with BGP.
type BGPReport struct {
	Node     string        `json:"node"`
	AS       uint32        `json:"as"`
	RouterID netip.Addr    `json:"routerID"`
	Peers    []PeerReport  `json:"peers"`   // sorted by name
	Routes   []OwnRoute    `json:"routes"`  // announced, sorted by prefix
	Learned  []LearnedFrom `json:"learned"` // sorted by prefix
	Settled  bool          `json:"settled"` // all was learned once since the agent started
	Error    string        `json:"error,omitempty"`
	Issues   []model.Issue `json:"issues"`
}

// PeerReport is how it stands with a peer.
type PeerReport struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	AS      uint32     `json:"as"`
	bgp.PeerStatus
}

// OwnRoute is a route that this node announces.
type OwnRoute struct {
	Prefix netip.Prefix `json:"prefix"`
	bgp.Route
}

// LearnedFrom is a route that a peer announces.
type LearnedFrom struct {
	Prefix netip.Prefix `json:"prefix"`
	bgp.Learned
}

// bgpReport returns how it stands with BGP.
func (a *Agent) bgpReport() (BGPReport, error) {
	if a.Speaker == nil {
		return BGPReport{}, errNoBGP
	}
	a.compiling.Lock()
	defer a.compiling.Unlock()
	view, issues := a.Compiler.BGPView()
	s := &a.sessions
	r := BGPReport{
		Node: view.Node, AS: view.AS, RouterID: view.RouterID, Settled: s.settled, Error: s.failure,
		Peers: []PeerReport{}, Routes: []OwnRoute{}, Learned: []LearnedFrom{}, Issues: append([]model.Issue{}, issues...),
	}
	for name, p := range view.Peers {
		status := bgp.PeerStatus{State: "idle"}
		if now := s.peers[name]; now != nil {
			status = *now
		}
		r.Peers = append(r.Peers, PeerReport{Name: name, Address: p.Address, Port: p.Port, AS: p.AS, PeerStatus: status})
	}
	for p, own := range view.Routes {
		r.Routes = append(r.Routes, OwnRoute{p, *own})
	}
	for p, l := range s.learned {
		r.Learned = append(r.Learned, LearnedFrom{p, *l})
	}
	slices.SortFunc(r.Peers, func(a, b PeerReport) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(r.Routes, func(a, b OwnRoute) int { return a.Prefix.Compare(b.Prefix) })
	slices.SortFunc(r.Learned, func(a, b LearnedFrom) int { return a.Prefix.Compare(b.Prefix) })
	return r, nil
}

var (
	descBGPPeers   = desc("bgp_peers", "BGP peers, by whether their session is established.", "state")
	descBGPLearned = desc("bgp_routes_learned", "Best routes that BGP peers announce.")
	descBGPOwn     = desc("bgp_routes_announced", "Routes of its own that this node announces by BGP.")
)

// collectBGP makes the metrics of BGP, if the agent speaks it.
func (c collector) collectBGP(gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	if c.Speaker == nil {
		return
	}
	c.compiling.Lock()
	defer c.compiling.Unlock()
	view, _ := c.Compiler.BGPView()
	up := 0
	for name := range view.Peers {
		if p := c.sessions.peers[name]; p != nil && p.State == bgp.Established {
			up++
		}
	}
	gauge(descBGPPeers, float64(up), "established")
	gauge(descBGPPeers, float64(len(view.Peers)-up), "down")
	gauge(descBGPLearned, float64(len(c.sessions.learned)))
	gauge(descBGPOwn, float64(len(view.Routes)))
}
