package compile

import (
	"cmp"
	"net/netip"
	"slices"

	speaker "sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
)

// View is what the speaker is to do, for people, as of the last Update.
type View struct {
	Node     string         `json:"node"`
	AS       uint32         `json:"as,omitempty"` // 0: the node cannot speak
	RouterID netip.Addr     `json:"routerID"`
	Listen   []netip.Addr   `json:"listen,omitempty"` // none: on all addresses
	Port     uint16         `json:"port,omitempty"`
	Restart  model.Duration `json:"restart,omitempty"`
	Mesh     bool           `json:"mesh"`    // the nodes are each other's peers
	Cluster  netip.Addr     `json:"cluster"` // of which this node is a route reflector; invalid: of none
	PassOn   []netip.Prefix `json:"passOn,omitempty"`
	Peers    []PeerView     `json:"peers"`
	Routes   []RouteView    `json:"routes"`
}

// PeerView is a peer.
type PeerView struct {
	Name     string     `json:"name"`
	Object   model.Ref  `json:"object,omitzero"` // that asks for it; zero: it is of the mesh
	Node     string     `json:"node,omitempty"`  // that it is; "": none
	Address  netip.Addr `json:"address"`
	Port     uint16     `json:"port"`
	AS       uint32     `json:"as"`
	LocalAS  uint32     `json:"localAS,omitempty"`
	Password bool       `json:"password,omitempty"`
	Client   bool       `json:"client,omitempty"` // of this node as a route reflector
	Filters  []string   `json:"filters,omitempty"`
}

// RouteView is a route that is announced.
type RouteView struct {
	Prefix        netip.Prefix           `json:"prefix"`
	Why           []model.Ref            `json:"why"` // the objects that have it announced
	Announcements []speaker.Announcement `json:"announcements"`
}

// View returns what the speaker is to do, for people.
func (c *Compiler) View() View {
	v := View{Node: c.cfg.Node, Peers: []PeerView{}, Routes: []RouteView{}}
	own := c.self()
	if own == nil || c.settings == nil {
		return v
	}
	s := c.settings
	v.AS, v.RouterID, v.Listen, v.Port, v.Restart, v.PassOn = s.AS, s.RouterID, s.Listen, s.Port, model.Duration(s.Restart), s.PassOn
	v.Mesh, v.Cluster = !c.config.NoMesh && !own.cluster.IsValid(), own.cluster
	filters := map[model.Ref][]string{}
	for _, p := range c.associations {
		filters[p.Ref()] = p.Filters
	}
	for _, p := range c.chosen {
		v.Peers = append(v.Peers, PeerView{
			Name: p.name, Object: p.of, Node: p.node, Address: p.Address, Port: p.Port, AS: p.AS, LocalAS: p.LocalAS,
			Password: p.Password != "", Client: p.Cluster.IsValid(), Filters: filters[p.of],
		})
	}
	slices.SortFunc(v.Peers, func(a, b PeerView) int { return cmp.Compare(a.Name, b.Name) })
	for to, r := range c.allRoutes {
		v.Routes = append(v.Routes, RouteView{Prefix: to, Why: why(c.reasons[to]), Announcements: r.Announcements})
	}
	slices.SortFunc(v.Routes, func(a, b RouteView) int { return a.Prefix.Compare(b.Prefix) })
	return v
}

// Counts returns the names of the peers, in no order, and how many routes are announced.
func (c *Compiler) Counts() (peers []string, routes int) {
	for _, p := range c.chosen {
		peers = append(peers, p.name)
	}
	return peers, len(c.allRoutes)
}

// By returns the route by which an address is announced, the smallest of several; false: none is.
func (c *Compiler) By(a netip.Addr) (netip.Prefix, bool) {
	for bits := a.BitLen(); bits >= 0; bits-- {
		if p := netip.PrefixFrom(a, bits).Masked(); c.allRoutes[p] != nil {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// why are the objects that give reasons: of an address of a pool, its Services are not told.
func why(reasons map[reason]speaker.Announcement) (list []model.Ref) {
	for r := range reasons {
		list = append(list, r.by)
	}
	slices.SortFunc(list, model.Ref.Compare)
	return slices.Compact(list)
}
