// Package bgp is the contract between the agent and its BGP speaker, the program sluice-bgp: what
// the speaker is to do, and what it says of its peers and of the routes that it learns.
//
// Both are plain values that travel as lines of JSON: Orders from the agent on the speaker's
// standard input, Reports from the speaker on its standard output. The speaker ends when its input
// ends, without a word to its peers, so that those that know graceful restart keep the routes.
package bgp

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
)

// Order is a change of what the speaker is to do. The first one after the start has all.
type Order struct {
	// Settings replace those before; nil: as they were.
	Settings *Settings `json:"settings,omitempty"`
	// Peers by name; nil: no longer a peer.
	Peers map[string]*Peer `json:"peers,omitempty"`
	// Routes to announce, by their prefix; nil: no longer.
	Routes map[netip.Prefix]*Route `json:"routes,omitempty"`
}

// Settings are what holds for all peers. With another AS, RouterID, Listen, Port or Restart than
// before, all sessions begin anew, and learned routes stay until they are learned again, or the
// peers have had the time to tell them.
type Settings struct {
	AS       uint32       `json:"as"`
	RouterID netip.Addr   `json:"routerID"` // an IPv4 address
	Listen   []netip.Addr `json:"listen,omitempty"`
	Port     uint16       `json:"port"` // to listen on
	// Restart is how long peers keep our routes after the session broke (RFC 4724); 0: no graceful
	// restart.
	Restart time.Duration `json:"restart"`
	// PassOn are the ranges of learned routes that are passed on to peers, as far as BGP has it;
	// others are not.
	PassOn []netip.Prefix `json:"passOn,omitempty"`
}

// Equal reports whether two are the same.
func (s *Settings) Equal(o *Settings) bool {
	return s.AS == o.AS && s.RouterID == o.RouterID && s.Port == o.Port && s.Restart == o.Restart &&
		slices.Equal(s.Listen, o.Listen) && slices.Equal(s.PassOn, o.PassOn)
}

// Peer is another speaker. No two have the same address.
type Peer struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	AS      uint32     `json:"as"`
	LocalAS uint32     `json:"localAS,omitempty"` // towards this peer; 0: that of Settings
	Source  netip.Addr `json:"source"`            // that sessions are opened from; invalid: the kernel chooses
	// Password is that of TCP MD5 (RFC 2385); "": none.
	Password string `json:"password,omitempty"`
	Passive  bool   `json:"passive,omitempty"` // waits for the peer to open the session

	Hold      time.Duration `json:"hold,omitempty"`      // 0: 90 s
	Keepalive time.Duration `json:"keepalive,omitempty"` // 0: a third of Hold
	Retry     time.Duration `json:"retry,omitempty"`     // between two attempts to connect; 0: 10 s

	// Hops is how many routers a packet to a peer of another AS may pass; 0: the peer is on a
	// subnet of this node. Security is the TTL security of RFC 5082: how many hops away a peer may
	// be; 0: none.
	Hops     uint8 `json:"hops,omitempty"`
	Security uint8 `json:"security,omitempty"`

	IPv4 bool `json:"ipv4,omitempty"` // routes of the family are exchanged
	IPv6 bool `json:"ipv6,omitempty"`

	// Cluster, if valid, makes this node a route reflector and the peer its client (RFC 4456).
	Cluster     netip.Addr `json:"cluster"`
	KeepNextHop bool       `json:"keepNextHop,omitempty"` // of what is passed on
	AllowOwnAS  uint8      `json:"allowOwnAS,omitempty"`  // how often the own AS may be in a path that is learned
	Restart     bool       `json:"restart,omitempty"`     // graceful restart

	// MaxRoutes is how many routes of a family the peer may announce that Import accepts; 0: any
	// number. With those that it rejects, which the speaker keeps as Import may change, there may
	// be RejectedToo times as many. The session with a peer that announces more ends, and its
	// routes go; the next one is tried after 5 minutes, or once the Peer differs.
	MaxRoutes uint32 `json:"maxRoutes,omitempty"`

	// The first rule that holds decides; what none holds for is accepted.
	Import []Rule `json:"import,omitempty"`
	Export []Rule `json:"export,omitempty"`
}

// RejectedToo is how many times MaxRoutes a peer may announce with what Import rejects. With the
// agent's own limit that is twice the Internet's table of IPv4.
const RejectedToo = 32

// Equal reports whether two are the same.
func (p *Peer) Equal(o *Peer) bool {
	a, b := *p, *o
	a.Import, a.Export, b.Import, b.Export = nil, nil, nil, nil
	return reflect.DeepEqual(a, b) && sameRules(p.Import, o.Import) && sameRules(p.Export, o.Export)
}

// sameRules compares rules, of which peers may share many.
func sameRules(a, b []Rule) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// Rule accepts or rejects routes. It holds for those of its family that meet all it says; one
// without a Prefix and without Learned holds for all of both families.
type Rule struct {
	Accept bool           `json:"accept,omitempty"`
	Prefix netip.Prefix   `json:"prefix"`          // invalid: any
	Match  model.BGPMatch `json:"match,omitempty"` // how a route's prefix has to be to Prefix
	// Min and Max are the lengths that a route within Prefix may have, with BGPIn; 0: that of
	// Prefix, and that of an address.
	Min int `json:"min,omitempty"`
	Max int `json:"max,omitempty"`
	// Learned says that it holds for routes that were learned from peers alone.
	Learned bool `json:"learned,omitempty"`
	// Family is 4 or 6; 0: both.
	Family int `json:"family,omitempty"`
}

// Route is a prefix to announce, by this node's own address. Each peer that some Announcement names
// gets it, with what all of those say together.
type Route struct {
	Announcements []Announcement `json:"announcements"`
}

// Announcement says to whom a route is announced, and with what.
type Announcement struct {
	Peers       []string `json:"peers,omitempty"`       // by name; none: all
	Communities []string `json:"communities,omitempty"` // "64500:1" (RFC 1997), "large:64500:1:2" (RFC 8092)
	LocalPref   uint32   `json:"localPref,omitempty"`   // to peers of the own AS; 0: 100
}

// Equal reports whether two are the same.
func (r *Route) Equal(o *Route) bool {
	return slices.EqualFunc(r.Announcements, o.Announcements, func(a, b Announcement) bool {
		return a.LocalPref == b.LocalPref && slices.Equal(a.Peers, b.Peers) && slices.Equal(a.Communities, b.Communities)
	})
}

// Report is what has changed since the last one. The first one after the start has all.
type Report struct {
	// Learned are the best routes that peers announce, by their prefix; nil: no longer.
	Learned map[netip.Prefix]*Learned `json:"learned,omitempty"`
	// Peers by name; nil: no longer a peer.
	Peers map[string]*PeerStatus `json:"peers,omitempty"`
	// Settled is true once every peer has told all its routes, or has had its time to: its Retry
	// and 5 s to come up, and then 10 s to tell them. Routes of an earlier speaker that are not
	// learned again may go from then on.
	Settled bool `json:"settled,omitempty"`
	// Error says why the speaker does not do as it was told; "": it does, as of this report.
	Error string `json:"error,omitempty"`
}

// Learned is a route that a peer announces.
type Learned struct {
	Peer        string     `json:"peer"`
	NextHop     netip.Addr `json:"nextHop"`
	Path        []uint32   `json:"path,omitempty"` // the ASes that it came through, the nearest first
	LocalPref   uint32     `json:"localPref,omitempty"`
	MED         uint32     `json:"med,omitempty"`
	Communities []string   `json:"communities,omitempty"`
	// Stale says that the peer is away, and that its route stays for graceful restart.
	Stale bool `json:"stale,omitempty"`
}

// Equal reports whether two are the same.
func (l *Learned) Equal(o *Learned) bool {
	return l.Peer == o.Peer && l.NextHop == o.NextHop && l.LocalPref == o.LocalPref && l.MED == o.MED && l.Stale == o.Stale &&
		slices.Equal(l.Path, o.Path) && slices.Equal(l.Communities, o.Communities)
}

// PeerStatus is how it stands with a peer.
type PeerStatus struct {
	// State is that of RFC 4271, section 8.2.2, in small letters: idle, connect, active, opensent,
	// openconfirm or established.
	State string    `json:"state"`
	Since time.Time `json:"since"` // of State, as far as idle, connect, active, … count as one: not established
	// Why says what ended the last session, or why there is none, as far as is known: "the peer
	// closed the session: hold timer expired", "wrong AS: it says 64501".
	Why        string `json:"why,omitempty"`
	Received   int    `json:"received"`   // routes that the peer announces
	Accepted   int    `json:"accepted"`   // of them, those that pass the rules
	Advertised int    `json:"advertised"` // routes that this node announces to it
}

// Established is the state of a peer that a session is established with.
const Established = "established"
