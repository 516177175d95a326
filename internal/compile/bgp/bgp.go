// Package bgp turns Nodes, Calico's and MetalLB's BGP objects and the addresses of Services into
// what one node's BGP speaker does: its peers, and the routes that it announces.
//
// It is pure. What it says is a function of the current objects alone, but for the own Node: once
// it is deleted, what it said last counts.
package bgp

import (
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/compile/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// DefaultAS and DefaultPort are those of Calico.
const (
	DefaultAS   = 64512
	DefaultPort = 179
)

// Config is what the user sets for a node. It does not change while a Compiler lives.
type Config struct {
	Node string // the name of the node's object
}

// Compiler holds what a speaker does and keeps it in step with a store. It is not safe for
// concurrent use.
type Compiler struct {
	cfg     Config
	started bool
	own     *model.Node // as it is, or was last; nil: there has been none

	settings *bgp.Settings // as Changes told them last; nil: not yet
	wanted   *bgp.Settings
	all      map[string]*bgp.Peer
	routes   map[netip.Prefix]*bgp.Route
	peers    diff.Map[string, bgp.Peer]
	announce diff.Map[netip.Prefix, bgp.Route]
	issues   []model.Issue
}

// New returns a Compiler that has nothing yet.
func New(cfg Config) *Compiler {
	c := &Compiler{cfg: cfg, all: map[string]*bgp.Peer{}, routes: map[netip.Prefix]*bgp.Route{}}
	c.peers = diff.NewMap(c.all, (*bgp.Peer).Equal)
	c.announce = diff.NewMap(c.routes, (*bgp.Route).Equal)
	return c
}

// Update brings all in step with a version of the store in which d changed.
func (c *Compiler) Update(v *store.View, d store.Dirty) {
	if !c.started {
		d = v.All()
	}
	c.started = true
	if len(d.Objects[model.NodeKind]) == 0 {
		return
	}
	for _, n := range v.Nodes() {
		if n.Name == c.cfg.Node {
			c.own = n
		}
	}
	peers, routes := map[string]*bgp.Peer{}, map[netip.Prefix]*bgp.Route{}
	if c.own != nil {
		c.wanted = &bgp.Settings{AS: DefaultAS, RouterID: routerID(c.own), Port: DefaultPort}
		for _, cidr := range c.own.PodCIDRs {
			routes[cidr.Masked()] = &bgp.Route{Announcements: []bgp.Announcement{{}}}
		}
		for _, n := range v.Nodes() {
			if n.Name == c.cfg.Node || len(n.IPs) == 0 {
				continue
			}
			peers["mesh "+n.Name] = &bgp.Peer{Address: n.IPs[0], Port: DefaultPort, AS: DefaultAS, IPv4: true, IPv6: true, Restart: true}
		}
	}
	replace(&c.peers, c.all, peers)
	replace(&c.announce, c.routes, routes)
}

// replace makes a map what it is wanted to be.
func replace[K comparable, V any](m *diff.Map[K, V], now, want map[K]*V) {
	for _, k := range slices.Collect(maps.Keys(now)) {
		if want[k] == nil {
			m.Set(k, nil)
		}
	}
	for k, v := range want {
		m.Set(k, v)
	}
}

// routerID is the node's IPv4 address, or what its name gives.
func routerID(n *model.Node) netip.Addr {
	for _, a := range n.IPs {
		if a.Is4() {
			return a
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(n.Name))
	s := h.Sum32()
	return netip.AddrFrom4([4]byte{byte(s >> 24), byte(s >> 16), byte(s >> 8), byte(s)})
}

// Changes returns what differs since the last call.
func (c *Compiler) Changes() bgp.Order {
	o := bgp.Order{Peers: c.peers.Flush(), Routes: c.announce.Flush()}
	if c.wanted != nil && (c.settings == nil || !c.wanted.Equal(c.settings)) {
		c.settings, o.Settings = c.wanted, c.wanted
	}
	return o
}

// View returns all of it for people.
func (c *Compiler) View() bgp.View {
	v := bgp.View{Node: c.cfg.Node, Peers: maps.Clone(c.all), Routes: maps.Clone(c.routes)}
	if c.wanted != nil {
		v.AS, v.RouterID = c.wanted.AS, c.wanted.RouterID
	}
	return v
}

// Issues returns what is wrong with the objects as of the last Update.
func (c *Compiler) Issues() []model.Issue { return c.issues }
