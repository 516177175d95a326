package compile

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/gaissmai/bart"

	speaker "sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/lib/sorted"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// What counts where no object says it.
const (
	defaultAS      = 64512
	defaultPort    = 179
	defaultRestart = 2 * time.Minute
)

// excludeLabel is on nodes that announce no services.
const excludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"

// node is a node as a speaker.
type node struct {
	*model.Node
	as        uint32
	port      uint16
	cluster   netip.Addr // of which it is a reflector; invalid: of none
	addresses []netip.Addr
	at        int // its place, see Compiler.placed
	// last are those of maxRivals BGPPeers that it has found, by the turns that it has; nil: it has
	// found fewer.
	last map[turn]*association
}

// address is the one of a family; invalid: it has none.
func (n *node) address(is4 bool) netip.Addr {
	i := slices.IndexFunc(n.addresses, func(a netip.Addr) bool { return a.Is4() == is4 })
	if i < 0 {
		return netip.Addr{}
	}
	return n.addresses[i]
}

// setConfiguration reads what BGPConfigurations say for all, and for this node.
func (c *Compiler) setConfiguration(v *store.View) {
	c.config = cmp.Or(v.BGPConfiguration(model.BGPDefault), &model.BGPConfiguration{})
	c.mine = cmp.Or(v.BGPConfiguration(model.BGPNodePrefix+c.cfg.Node), &model.BGPConfiguration{})
	c.setCommunitiesOf()
	c.clusterIPs, c.externalIPs, c.loadBalancerIPs = table(c.config.ClusterIPs), table(c.config.ExternalIPs), table(c.config.LoadBalancerIPs)
}

func table(prefixes []netip.Prefix) *bart.Lite {
	t := new(bart.Lite)
	for _, p := range prefixes {
		t.Insert(p)
	}
	return t
}

// followNodes follows the nodes: those that changed, or all. It returns the addresses that these
// have or had.
func (c *Compiler) followNodes(v *store.View, d store.Dirty, all bool) (moved map[netip.Addr]bool) {
	dirty := d.Objects[model.NodeKind]
	if all {
		clear(c.nodes)
		clear(c.addresses)
		dirty = map[model.Name]struct{}{{Name: c.cfg.Node}: {}}
		for _, n := range v.Nodes() {
			dirty[n.Ref().Name] = struct{}{}
		}
	}
	moved = map[netip.Addr]bool{}
	have := func(n *node, there bool) {
		for _, a := range n.addresses {
			moved[a] = true
			if c.addresses[a] = sorted.Set(c.addresses[a], n, there, model.ByBirth); len(c.addresses[a]) == 0 {
				delete(c.addresses, a)
			}
		}
	}
	for name := range dirty {
		old := c.nodes[name.Name]
		if old != nil {
			have(old, false)
			delete(c.nodes, name.Name)
		}
		o := v.Node(name.Name)
		if o == nil && name.Name == c.cfg.Node {
			o = c.own
		}
		var n *node
		if o != nil {
			n = c.speaker(v, o)
			have(n, true)
			c.nodes[o.Name] = n
		}
		if old == nil || n == nil || !maps.Equal(old.Labels, n.Labels) {
			c.unplaced = true
		} else {
			n.at, c.placed[old.at] = old.at, n
		}
	}
	return moved
}

// speaker makes a speaker of a Node.
func (c *Compiler) speaker(v *store.View, o *model.Node) *node {
	said := cmp.Or(v.BGPConfiguration(model.BGPNodePrefix+o.Name), &model.BGPConfiguration{})
	n := &node{Node: o, as: cmp.Or(said.AS, c.config.AS, defaultAS), port: cmp.Or(said.Port, c.config.Port, c.cfg.Port, defaultPort)}
	if o.Fabric != nil {
		n.as, n.cluster = cmp.Or(o.Fabric.AS, n.as), o.Fabric.Cluster
	}
	for _, is4 := range []bool{true, false} {
		if a := o.Address(is4); a.IsValid() {
			n.addresses = append(n.addresses, a)
		}
	}
	return n
}

// awaits reports whether it matters to the node that it is there by an association, or is not:
// whether it has not found enough of older ones.
func (n *node) awaits(a *association) bool {
	for in, last := range n.last {
		if in.of(a).Has(n.at) && (last == nil || model.ByBirth(a, last) <= 0) {
			return true
		}
	}
	return false
}

// self is this node; nil: there is none, or it has no address.
func (c *Compiler) self() *node {
	if n := c.nodes[c.cfg.Node]; n != nil && len(n.addresses) > 0 {
		return n
	}
	return nil
}

// setSettings says what holds for all peers.
func (c *Compiler) setSettings() {
	own := c.self()
	if own == nil {
		c.settings = nil
		return
	}
	s := &speaker.Settings{
		AS: own.as, Port: own.port, RouterID: own.address(true), Restart: c.restart(), PassOn: c.passOn(),
	}
	for _, p := range c.metalLB {
		if p.RouterID.Is4() {
			s.RouterID = p.RouterID
			break
		}
	}
	if !s.RouterID.IsValid() {
		s.RouterID = hashed(own.Name)
	}
	if c.config.NodeIP {
		s.Listen = own.addresses
	}
	c.settings = s
}

// restart is how long peers are to keep this node's routes.
func (c *Compiler) restart() time.Duration { return cmp.Or(c.config.MeshRestart, defaultRestart) }

// hashed is the router ID of a node without an IPv4 address, as Calico makes it of the name.
func hashed(name string) netip.Addr {
	sum := sha256.Sum256([]byte(name))
	if sum[0] > 223 { // where multicast begins
		sum[0] -= 32
	}
	return netip.AddrFrom4([4]byte(sum[:4]))
}
