package compile

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// View is the fabric for people, as of the last Update.
type View struct {
	Node     string              `json:"node"`
	Underlay []model.HostAddress `json:"underlay"` // the node's own addresses, as the host has them
	Pools    []PoolView          `json:"pools"`
	Tunnels  []TunnelView        `json:"tunnels"`
	Blocks   []BlockView         `json:"blocks"`
}

// PoolView is a pool, and how many CIDRs of nodes lie in it.
type PoolView struct {
	Name   string       `json:"name"`
	CIDR   netip.Prefix `json:"cidr"`
	Mode   string       `json:"mode"` // "native", "VXLAN", "IPIP across subnets", …
	NAT    bool         `json:"natOutgoing"`
	Blocks int          `json:"blocks"`
}

// TunnelView is a tunnel device of this node.
type TunnelView struct {
	Device  string     `json:"device"`
	Kind    string     `json:"type"`    // "vxlan", "ipip", …
	Address netip.Addr `json:"address"` // that the node itself sends from through it
	Local   netip.Addr `json:"local"`
	MTU     int        `json:"mtu"`
	Nodes   int        `json:"nodes"` // whose pods are reached through it
}

// BlockView is a pod CIDR, or a block of Calico's, of a node, and how its pods are reached; or what
// else a BGP peer announces.
type BlockView struct {
	CIDR   netip.Prefix `json:"cidr"`
	Node   string       `json:"node"`          // or the peer's name
	Mode   string       `json:"mode"`          // "here", "native", "VXLAN", "IPIP", "WireGuard", "native by BGP"; "" if they are not reached
	Via    string       `json:"via,omitempty"` // the other node's address
	Device string       `json:"device,omitempty"`
	MTU    int          `json:"mtu,omitempty"`
	Heard  *model.Heard `json:"heard,omitempty"` // nil: nobody is asked; the agent fills it in
}

// View returns the fabric for people.
func (c *Compiler) View() View {
	v := View{Node: c.cfg.Node, Underlay: []model.HostAddress{}, Pools: []PoolView{}, Tunnels: []TunnelView{}, Blocks: []BlockView{}}
	mtus := map[string]int{}
	for _, is4 := range []bool{true, false} {
		if local := c.local(is4); local != nil {
			v.Underlay = append(v.Underlay, *local)
		}
	}
	for _, h := range c.underlay {
		mtus[h.Device] = h.MTU
	}
	through := map[string]map[string]bool{} // nodes, by device
	inside := map[*model.IPPool]int{}
	for name, n := range c.nodes {
		for _, cidr := range n.cidrs {
			if p := c.pool(cidr); p != nil {
				inside[p]++
			}
			b := BlockView{CIDR: cidr, Node: name}
			if r := c.fabric.Routes[cidr]; r != nil && r.Node == name {
				b.Mode, b.Device = c.modeOf(r), r.Device
				if t := c.fabric.Tunnels[r.Device]; t != nil {
					b.MTU = t.MTU
					if through[r.Device] == nil {
						through[r.Device] = map[string]bool{}
					}
					through[r.Device][name] = true
				} else {
					b.MTU = mtus[r.Device]
				}
				if to := n.Node.Address(cidr.Addr().Is4()); r.Device != "" && to.IsValid() {
					b.Via = to.String()
				}
				if n.peer != nil && r.Device == state.DeviceWG {
					b.Via = n.peer.Endpoint.Addr().String()
				}
			} else if c.foreign[cidr] {
				b = c.viewLearned(cidr, mtus)
				b.Node = name
			}
			v.Blocks = append(v.Blocks, b)
		}
	}
	for p := range c.foreign {
		if _, claimed := c.cidrs.Get(p); !claimed {
			v.Blocks = append(v.Blocks, c.viewLearned(p, mtus))
		}
	}
	slices.SortFunc(v.Blocks, func(a, b BlockView) int { return cmp.Or(strings.Compare(a.Node, b.Node), a.CIDR.Compare(b.CIDR)) })
	for _, p := range c.pools {
		v.Pools = append(v.Pools, PoolView{Name: p.Name, CIDR: p.CIDR, Mode: poolMode(p), NAT: p.NATOutgoing, Blocks: inside[p]})
	}
	for device, t := range c.fabric.Tunnels {
		v.Tunnels = append(v.Tunnels, TunnelView{Device: device, Kind: t.Encapsulation.String(), Address: t.Address, Local: t.Local, MTU: t.MTU, Nodes: len(through[device])})
	}
	slices.SortFunc(v.Tunnels, func(a, b TunnelView) int { return strings.Compare(a.Device, b.Device) })
	return v
}

// viewLearned is a route that was learned.
func (c *Compiler) viewLearned(p netip.Prefix, mtus map[string]int) BlockView {
	r := c.fabric.Routes[p]
	b := BlockView{CIDR: p, Node: r.Node, Mode: c.modeOf(r) + " by BGP", Via: r.Via.String(), Device: r.Device, MTU: mtus[r.Device]}
	if t := c.fabric.Tunnels[r.Device]; t != nil {
		b.MTU = t.MTU
	}
	return b
}

// modeOf is how packets travel by a route.
func (c *Compiler) modeOf(r *state.Route) string {
	if r.Device == "" {
		return "here"
	}
	if t := c.fabric.Tunnels[r.Device]; t != nil {
		return t.Encapsulation.String()
	}
	return state.Native.String()
}

func poolMode(p *model.IPPool) string {
	tunnel, when := state.VXLAN, p.VXLAN
	if p.IPIP != model.Never {
		tunnel, when = state.IPIP, p.IPIP
	}
	switch when {
	case model.Never:
		return state.Native.String()
	case model.CrossSubnet:
		return tunnel.String() + " across subnets"
	}
	return tunnel.String()
}
