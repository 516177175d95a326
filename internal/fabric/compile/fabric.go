// Package compile turns Nodes and IPPools into the way by which one node reaches the pods of the
// others: tunnels, their far ends, and routes.
//
// It is pure and incremental. The fabric is a function of the current objects alone, except for the
// own Node: once it is deleted, what it said last counts. A Node that comes, goes or changes costs
// what it has itself, and those that claim the same.
package compile

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Port is the UDP port of VXLAN, as Calico's.
const Port = 4789

// WireGuardPort is the UDP port of WireGuard, as Calico's.
const WireGuardPort = 51820

// What tunnels are to the network between nodes, by the numbers of RFC 7348, RFC 2003 and
// WireGuard.
var (
	carrierVXLAN = model.Carrier{Name: "VXLAN", Protocol: uint8(model.UDP), Port: Port}
	carrierIPIP  = model.Carrier{Name: "IPIP", Protocol: 4}
	carrierWG    = model.Carrier{Name: "WireGuard", Protocol: uint8(model.UDP), Port: WireGuardPort}
)

// What a tunnel adds to each packet, by the family that it travels in.
const (
	overheadVXLAN4 = 50
	overheadVXLAN6 = 70
	overheadIPIP   = 20
	overheadWG4    = 60
	overheadWG6    = 80
)

// Config is what the user sets for a node. It does not change while a Compiler lives.
type Config struct {
	Node string // the name of the node's object
	// Pools are those that no API has: flags say them. Of several pools that hold an address, the
	// smallest counts, so that one of 0.0.0.0/0 is for what no other holds.
	Pools []*model.IPPool
	// ClusterCIDRs, if there are any of a family, hold all pod CIDRs of those pools, and
	// ServiceCIDRs none.
	ClusterCIDRs, ServiceCIDRs []netip.Prefix
	// Key, unless it is zero, is this node's for WireGuard: packets to pods of nodes that have one,
	// too, are encrypted, whatever the pool says.
	Key model.PublicKey
	BGP bool // the node speaks it
	// Resolve says how the next hop of a learned route is reached that is on no subnet of this
	// node: by which device, and by which gateway, unless it is on the device's link. "": it is
	// not. Nil: none is.
	Resolve func(nextHop netip.Addr) (via netip.Addr, device string)
}

// Compiler holds one node's fabric and keeps it in step with a store. It is not safe for concurrent
// use.
type Compiler struct {
	cfg      Config
	underlay []model.HostAddress
	moved    bool // the underlay, or the API, is not the one that all was compiled with
	started  bool
	fabric   *state.Fabric
	tunnels  diff.Map[string, state.Tunnel]
	vteps    diff.Map[state.VTEPKey, state.VTEP]
	peers    diff.Map[model.PublicKey, state.Peer]
	routes   diff.Map[netip.Prefix, state.Route]

	issues []model.Issue // of the last call of Issues
	listed bool          // they are what there is to say

	own       *model.Node // as it is, or was last; nil: there has been none
	nodes     map[string]*node
	pools     []*model.IPPool // the smallest first
	byCIDR    *bart.Table[*model.IPPool]
	blocks    map[string]*model.BlockAffinity
	of        map[string]map[string]netip.Prefix // node → the names of its blocks
	cidrs     *bart.Table[*cidr]
	addrs     nodeClaims[netip.Addr]
	nodeAddrs bart.Lite // the same
	everyone  bool      // all nodes are compiled again in this Update, whichever claims change
	macs      nodeClaims[state.MAC]
	keys      nodeClaims[model.PublicKey]

	learned    *bart.Table[*learned]
	relearned  map[netip.Prefix]bool // to be looked at in the next Update
	rehopped   map[netip.Addr]bool   // next hops whose routes are to be, which many nodes may claim
	foreign    map[netip.Prefix]bool // routes of the fabric that were learned
	refused    map[netip.Prefix]*learned
	byHop      *bart.Table[map[netip.Prefix]struct{}] // learned routes by their next hop
	hops       map[netip.Addr]hop                     // those that Resolve was asked for
	served     []netip.Prefix
	serves     bart.Lite // the same
	apiServers []netip.Addr
	reclaimed  map[netip.Prefix]bool // CIDRs that other nodes have since the last Update
	podLinks   map[string]bool       // interfaces that lead to pods of this node
	guarded    []guarded
	ownPods    bart.Lite // which are guarded, too
	doubted    bool      // what is served has changed
}

// node is another node, or the own one, as it was compiled.
type node struct {
	*model.Node
	cidrs  []netip.Prefix          // its pod CIDRs, then its blocks that are not in them
	denied map[netip.Prefix]string // of each, why the node does not have the pods in it; "": it does
	routes []netip.Prefix
	vteps  []state.VTEPKey
	peer   *state.Peer // nil: what goes there is not encrypted
	paths  []model.Path
	ends   []model.FarEnd
	faults []string
	lacks  []lack
}

// lack is a pod CIDR to which the fabric has no way of its own.
type lack struct {
	cidr netip.Prefix
	pool *model.IPPool
}

// New returns a Compiler whose fabric is empty.
func New(cfg Config) *Compiler {
	f := state.NewFabric()
	return &Compiler{
		cfg: cfg, fabric: f, byCIDR: new(bart.Table[*model.IPPool]), nodes: map[string]*node{}, blocks: map[string]*model.BlockAffinity{}, of: map[string]map[string]netip.Prefix{},
		cidrs: new(bart.Table[*cidr]), addrs: nodeClaims[netip.Addr]{}, macs: nodeClaims[state.MAC]{}, keys: nodeClaims[model.PublicKey]{},
		learned: new(bart.Table[*learned]), relearned: map[netip.Prefix]bool{}, rehopped: map[netip.Addr]bool{}, foreign: map[netip.Prefix]bool{}, refused: map[netip.Prefix]*learned{},
		byHop: new(bart.Table[map[netip.Prefix]struct{}]), hops: map[netip.Addr]hop{}, reclaimed: map[netip.Prefix]bool{},
		tunnels: diff.NewMap(f.Tunnels, diff.Values[state.Tunnel]),
		vteps:   diff.NewMap(f.VTEPs, diff.Values[state.VTEP]),
		peers:   diff.NewMap(f.Peers, (*state.Peer).Equal),
		routes:  diff.NewMap(f.Routes, diff.Values[state.Route]),
	}
}

// Fabric is the whole fabric after the last Update. The Compiler owns it and changes it in the next
// Update; callers only read.
func (c *Compiler) Fabric() *state.Fabric { return c.fabric }

// SetUnderlay says what addresses the host's interfaces have; the next Update follows. Until it is
// called there is no way to other nodes.
func (c *Compiler) SetUnderlay(addrs []model.HostAddress) {
	if !slices.Equal(c.underlay, addrs) {
		c.underlay, c.moved = addrs, true
	}
}

// Update brings the fabric in step with a version of the store in which d changed, and returns what
// differs.
func (c *Compiler) Update(v *store.View, d store.Dirty) state.FabricDelta {
	all := !c.started || c.moved
	if !c.started {
		d = v.All()
	}
	if len(d.Objects[model.IPPoolKind]) > 0 || !c.started {
		c.setPools(v.IPPools())
		all = true
	}
	again, changed := map[string]bool{}, map[string]bool{}
	for name := range d.Objects[model.BlockAffinityKind] {
		c.takeBlock(name.Name, v.BlockAffinity(name.Name), changed)
	}
	for name := range d.Objects[model.NodeKind] {
		changed[name.Name] = true
	}
	families := [2]bool{c.pods(true), c.pods(false)}
	c.everyone = len(changed) > many
	c.take(v, changed, again)
	all = all || changed[c.cfg.Node] || families != [2]bool{c.pods(true), c.pods(false)}
	c.started, c.moved, c.listed = true, false, c.listed && !all && len(changed) == 0
	if all {
		c.compileOwn()
	}
	if all || c.everyone {
		for name := range c.nodes {
			again[name] = true
		}
	}
	c.decide(again)
	for name := range again { // before anything is set that one may have from another
		if n := c.nodes[name]; n != nil {
			c.clear(n)
		}
	}
	for name := range again {
		if n := c.nodes[name]; n != nil {
			c.compile(n)
		}
	}
	for name := range again {
		if n := c.nodes[name]; n != nil {
			c.rehop(n)
			for _, p := range n.cidrs {
				c.relearn(p)
			}
		}
	}
	for a := range c.rehopped {
		c.relearnBy(a)
	}
	clear(c.rehopped)
	c.follow(all)
	return state.FabricDelta{Tunnels: c.tunnels.Flush(), VTEPs: c.vteps.Flush(), Peers: c.peers.Flush(), Routes: c.routes.Flush()}
}

// many nodes change at once: to compile all again costs less than to find those to which it
// matters.
const many = 100

// setPools sorts the pools so that the first that holds an address counts.
func (c *Compiler) setPools(pools []*model.IPPool) {
	c.pools = append(pools, c.cfg.Pools...)
	slices.SortFunc(c.pools, comparePools)
	c.byCIDR = new(bart.Table[*model.IPPool])
	for _, p := range slices.Backward(c.pools) { // so that the first of one CIDR stays
		c.byCIDR.Insert(p.CIDR, p)
	}
}

// pods reports whether nodes have pods of a family.
func (c *Compiler) pods(is4 bool) bool {
	if is4 {
		return c.cidrs.Size4() > 0
	}
	return c.cidrs.Size6() > 0
}

// takeBlock follows a block, nil if it is gone, and adds the nodes to changed that had it, and have
// it now.
func (c *Compiler) takeBlock(name string, now *model.BlockAffinity, changed map[string]bool) {
	if old := c.blocks[name]; old != nil {
		changed[old.Node] = true
		delete(c.of[old.Node], name)
		delete(c.blocks, name)
	}
	if now == nil || now.Node == "" {
		return
	}
	if c.of[now.Node] == nil {
		c.of[now.Node] = map[string]netip.Prefix{}
	}
	changed[now.Node], c.blocks[name], c.of[now.Node][name] = true, now, now.CIDR
}

// cidrsOf are a node's pod CIDRs and then those of its blocks that are not in them.
func (c *Compiler) cidrsOf(n *model.Node) []netip.Prefix {
	all, has := slices.Clip(n.PodCIDRs), new(bart.Lite)
	if len(c.of[n.Name]) == 0 {
		return all
	}
	for _, p := range n.PodCIDRs {
		has.Insert(p)
	}
	for _, block := range slices.SortedFunc(maps.Values(c.of[n.Name]), netip.Prefix.Compare) { // the larger first
		if !has.LookupPrefix(block) {
			has.Insert(block)
			all = append(all, block)
		}
	}
	return all
}

// take follows the Nodes that changed, and adds the nodes to again whose claims that touches.
func (c *Compiler) take(v *store.View, changed, again map[string]bool) {
	var gone []*node
	var come []*model.Node
	for name := range changed {
		now := v.Node(name)
		if name == c.cfg.Node {
			if now == nil {
				now = c.own // it has not gone for that
			}
			c.own = now
		}
		if old := c.nodes[name]; old != nil {
			gone = append(gone, old)
		}
		if now != nil {
			come = append(come, now)
		}
	}
	// The youngest go first and come last: so each is at the end of the lists of claims.
	slices.SortFunc(gone, func(a, b *node) int { return older(b.Node, a.Node) })
	slices.SortFunc(come, older)
	for _, n := range gone {
		c.drop(n, again)
	}
	for _, n := range come {
		c.add(n, again)
	}
}

// drop takes back what a node claims.
func (c *Compiler) drop(old *node, again map[string]bool) {
	c.clear(old)
	delete(c.nodes, old.Name)
	for _, p := range old.cidrs {
		c.claimCIDR(p, old, false, again)
	}
	for _, a := range addresses(old.Node) {
		c.claimAddress(a, old.Node, false, again)
	}
	c.rehop(old)
	for _, m := range macs(old.Node) {
		c.macs.drop(m, old.Node, again)
	}
	if key := old.Key(); key != (model.PublicKey{}) {
		c.keys.drop(key, old.Node, again)
	}
}

// add has a node claim what it has.
func (c *Compiler) add(now *model.Node, again map[string]bool) {
	n := &node{Node: now, cidrs: c.cidrsOf(now), denied: map[netip.Prefix]string{}}
	c.nodes[n.Name], again[n.Name] = n, true
	for _, p := range n.cidrs {
		c.claimCIDR(p, n, true, again)
	}
	for _, a := range addresses(now) {
		c.claimAddress(a, now, true, again)
	}
	for _, m := range macs(now) {
		c.macs.add(m, now, again)
	}
	if key := now.Key(); key != (model.PublicKey{}) {
		c.keys.add(key, now, again)
	}
}

// clear takes what a node has out of the fabric.
func (c *Compiler) clear(n *node) {
	for _, p := range n.routes {
		c.routes.Set(p, nil)
		c.relearn(p)
	}
	for _, k := range n.vteps {
		c.vteps.Set(k, nil)
	}
	if n.peer != nil {
		c.peers.Set(n.Key(), nil)
	}
	n.routes, n.vteps, n.peer, n.paths, n.ends, n.faults, n.lacks = nil, nil, nil, nil, nil, nil, nil
}

// compile puts what a node has into the fabric, which has nothing of it.
func (c *Compiler) compile(n *node) {
	own := n.Name == c.cfg.Node
	if !own {
		n.peer = c.peerOf(n)
	}
	for i, cidr := range n.cidrs {
		pool := c.pool(cidr)
		if pool != nil && i < len(n.PodCIDRs) { // blocks are as Calico gives them out
			n.judge(cidr, pool)
		}
		switch why := n.denied[cidr]; {
		case why != "":
			n.fault("its pod CIDR %s %s: its pods there are not reached; give it another", cidr, why)
		case pool == nil:
			n.fault("no IPPool holds its pod CIDR %s: its pods there are not reached; add one", cidr)
		case c.holdsOwn(cidr): // which is said of the own node, as it came later
		case own:
			c.route(n, cidr, state.Route{Node: n.Name})
		default:
			c.reach(n, cidr, pool)
		}
	}
	if n.peer != nil {
		slices.SortFunc(n.peer.Allowed, netip.Prefix.Compare)
		c.peers.Set(n.Key(), n.peer)
	}
}

// peerOf returns another node as a peer of WireGuard, with its own addresses alone; nil: it is
// none.
func (c *Compiler) peerOf(n *node) *state.Peer {
	own := c.encrypted()
	if own == nil || len(n.cidrs) == 0 {
		return nil
	}
	is4, key := own.Prefix.Addr().Is4(), n.Key()
	endpoint := n.Node.Address(is4)
	plain := func(why string, args ...any) *state.Peer {
		n.fault("what goes to its pods is not encrypted: "+why, args...)
		return nil
	}
	switch {
	case key == model.PublicKey{}:
		return plain("it has no key for WireGuard; run its agent with --encrypt")
	case c.keys.winner(key) != n.Name:
		return plain("its key for WireGuard is that of Node %s, too; remove the key's file there", c.keys.winner(key))
	case key == c.cfg.Key:
		return plain("its key for WireGuard is that of Node %s, too; remove the key's file there", c.cfg.Node)
	case !endpoint.IsValid():
		return plain("it has no %s address", model.FamilyName(is4))
	case c.lost(endpoint, n.Node) != "":
		return nil // which is said of its routes
	}
	p := &state.Peer{Node: n.Name, Endpoint: netip.AddrPortFrom(endpoint, WireGuardPort)}
	for _, a := range addresses(n.Node) {
		if c.lost(a, n.Node) == "" {
			p.Allowed = append(p.Allowed, single(a))
		}
	}
	return p
}

// published reports whether other nodes can know this node's key: before, they would not take what
// is encrypted for them.
func (c *Compiler) published() bool { return c.own.Key() == c.cfg.Key }

// encrypted returns the own address that encrypted packets travel from, IPv4 if there is one; nil:
// nothing is encrypted.
func (c *Compiler) encrypted() *model.HostAddress {
	if c.cfg.Key == (model.PublicKey{}) {
		return nil
	}
	return cmp.Or(c.local(true), c.local(false))
}

// route adds a route to a node's pods.
func (c *Compiler) route(n *node, to netip.Prefix, r state.Route) {
	n.routes = append(n.routes, to)
	c.routes.Set(to, &r)
	delete(c.foreign, to)
	c.relearn(to)
}

// reach adds the way to pods of another node.
func (c *Compiler) reach(n *node, cidr netip.Prefix, pool *model.IPPool) {
	is4 := cidr.Addr().Is4()
	remote, local := n.Node.Address(is4), c.local(is4)
	if local == nil || remote == local.Prefix.Addr() {
		return // which is said of the own node
	}
	if !remote.IsValid() {
		n.fault("it has no %s address: its pods of %s are not reached", model.FamilyName(is4), cidr)
		return
	}
	if by := c.lost(remote, n.Node); by != "" {
		n.fault("its address %s is %s: its pods of %s are not reached; give it another address", remote, by, cidr)
		return
	}
	direct := c.direct(remote, local)
	n.path(remote, cmp.Or(direct, local))
	if n.peer != nil {
		n.peer.Allowed = append(n.peer.Allowed, cidr)
	}
	switch mac := macOf(n.Node, is4); {
	case n.peer != nil && c.published():
		c.route(n, cidr, state.Route{Node: n.Name, Device: state.DeviceWG})
		c.end(n, state.DeviceWG, n.peer.Endpoint.Addr(), c.tunnelAddress(n.Node, is4, netip.Addr{}), carrierWG)
	case tunnels(pool.VXLAN, direct) && c.macs.winner(mac) != n.Name:
		by := c.macs[mac][0]
		n.fault("the MAC %s of its VXLAN device is that of Node %s, %s: its pods of %s are not reached; remove its annotation", mac, by.Name, by.Birth().Precedence(n.Birth()), cidr)
	case tunnels(pool.VXLAN, direct):
		device, gateway := c.vtep(n, is4, remote)
		c.route(n, cidr, state.Route{Node: n.Name, Device: device, Via: gateway})
		c.end(n, device, remote, c.tunnelAddress(n.Node, is4, vxlanAddress(n.Node, is4)), carrierVXLAN)
	case tunnels(pool.IPIP, direct):
		c.route(n, cidr, state.Route{Node: n.Name, Device: state.DeviceIPIP, Via: remote})
		c.end(n, state.DeviceIPIP, remote, c.tunnelAddress(n.Node, is4, fabricOf(n.Node).IPIP), carrierIPIP)
	case direct != nil:
		c.route(n, cidr, state.Route{Node: n.Name, Device: direct.Device, Via: remote})
		c.end(n, direct.Device, remote, remote, model.Carrier{})
	default:
		n.lacks = append(n.lacks, lack{cidr, pool})
	}
}

// path notes the way to a node's address by an interface of this one.
func (n *node) path(to netip.Addr, by *model.HostAddress) {
	if p := (model.Path{Node: n.Name, To: to, Device: by.Device, MTU: by.MTU}); !slices.Contains(n.paths, p) {
		n.paths = append(n.paths, p)
	}
}

// end notes where a way to a node ends. One whose tunnel there has no address but the node's is
// left out: answers from that would not come by the tunnel.
func (c *Compiler) end(n *node, device string, remote, to netip.Addr, carrier model.Carrier) {
	e := model.FarEnd{Node: n.Name, Device: device, Uplink: c.uplink(remote), Remote: remote, To: to, Carrier: carrier}
	if (carrier == (model.Carrier{}) || to != n.Node.Address(to.Is4())) && !slices.Contains(n.ends, e) {
		n.ends = append(n.ends, e)
	}
}

// FarEnds returns where the ways to pods of other nodes end, learned ones too, as of the last
// Update, in no order.
func (c *Compiler) FarEnds() (all []model.FarEnd) {
	for _, n := range c.nodes {
		all = append(all, n.ends...)
	}
	for hop, by := range c.byHop.All() {
		for p := range by {
			if c.foreign[p] {
				all = append(all, c.learnedEnds(hop.Addr(), c.fabric.Routes[p])...)
				break // the others by this next hop end there, too
			}
		}
	}
	return all
}

// learnedEnds is where learned routes by a next hop end: nowhere if that cannot be asked, or if the
// ways to the node that is the next hop end there already.
func (c *Compiler) learnedEnds(hop netip.Addr, r *state.Route) []model.FarEnd {
	e := model.FarEnd{Node: r.Node, Device: r.Device, Uplink: c.uplink(r.Via), Remote: r.Via, To: hop}
	n := c.nodeAt(hop)
	if n == nil {
		return []model.FarEnd{e}
	}
	e.Node = n.Name
	if r.Device == state.DeviceIPIP {
		if e.Carrier, e.To = carrierIPIP, c.tunnelAddress(n.Node, true, fabricOf(n.Node).IPIP); e.To == hop {
			return nil
		}
	}
	if slices.Contains(n.ends, e) {
		return nil
	}
	return []model.FarEnd{e}
}

// Paths returns the ways to the other nodes as of the last Update, in no order.
func (c *Compiler) Paths() (all []model.Path) {
	for _, n := range c.nodes {
		all = append(all, n.paths...)
	}
	return all
}

// tunnels reports whether packets travel in a tunnel; direct is nil if the other node is on another
// subnet.
func tunnels(e model.Encapsulate, direct *model.HostAddress) bool {
	return e == model.Always || e == model.CrossSubnet && direct == nil
}

// vtep adds the far end of the tunnel to a node, and returns how routes name it.
func (c *Compiler) vtep(n *node, is4 bool, remote netip.Addr) (device string, gateway netip.Addr) {
	mac := macOf(n.Node, is4)
	device, gateway = state.DeviceVXLAN, remote // which only this node has
	if !is4 {
		device, gateway = state.DeviceVXLAN6, linkLocal(mac)
	}
	k := state.VTEPKey{Device: device, Gateway: gateway}
	n.vteps = append(n.vteps, k)
	c.vteps.Set(k, &state.VTEP{Node: n.Name, MAC: mac, Remote: remote})
	return device, gateway
}

// compileOwn puts the tunnel devices into the fabric: those that some pool may need for the pods
// that there are, so that packets of others are taken, whichever node changes its mode first.
func (c *Compiler) compileOwn() {
	want := map[string]*state.Tunnel{}
	for _, is4 := range []bool{true, false} {
		local := c.local(is4)
		if local == nil || !c.pods(is4) {
			continue
		}
		addr := local.Prefix.Addr()
		tunnel := state.Tunnel{Local: addr, Address: c.tunnelAddress(c.own, is4, vxlanAddress(c.own, is4))}
		if c.any(is4, func(p *model.IPPool) bool { return p.VXLAN != model.Never }) {
			t, name := tunnel, state.DeviceVXLAN
			t.Encapsulation, t.MAC, t.VNI, t.Port, t.MTU = state.VXLAN, macOf(c.own, is4), state.VNI, Port, local.MTU-overheadVXLAN4
			if !is4 {
				name, t.MTU = state.DeviceVXLAN6, local.MTU-overheadVXLAN6
			}
			want[name] = &t
		}
		if c.any(is4, func(p *model.IPPool) bool { return p.IPIP != model.Never }) {
			t := tunnel
			t.Address = c.tunnelAddress(c.own, is4, fabricOf(c.own).IPIP)
			t.Encapsulation, t.MTU = state.IPIP, local.MTU-overheadIPIP
			want[state.DeviceIPIP] = &t
		}
	}
	if local := c.encrypted(); local != nil {
		want[state.DeviceWG] = c.wireGuard(local)
	}
	for _, name := range []string{state.DeviceVXLAN, state.DeviceVXLAN6, state.DeviceIPIP, state.DeviceWG} {
		c.tunnels.Set(name, want[name])
	}
}

// wireGuard is the device that encrypts, from an own address.
func (c *Compiler) wireGuard(local *model.HostAddress) *state.Tunnel {
	addr := local.Prefix.Addr()
	t := &state.Tunnel{Encapsulation: state.WireGuard, Local: addr, Port: WireGuardPort, Key: c.cfg.Key, MTU: local.MTU - overheadWG4}
	if addr.Is6() {
		t.MTU = local.MTU - overheadWG6
	}
	t.Address = c.tunnelAddress(c.own, addr.Is4(), netip.Addr{})
	if addr.Is4() && c.local(false) != nil {
		t.Address6 = c.tunnelAddress(c.own, false, netip.Addr{})
	}
	return t
}

// any reports whether a pool of the family is of some kind.
func (c *Compiler) any(is4 bool, kind func(*model.IPPool) bool) bool {
	return slices.ContainsFunc(c.pools, func(p *model.IPPool) bool { return p.CIDR.Addr().Is4() == is4 && kind(p) })
}

// local returns the own node's address of a family as the host has it; nil: there is no such.
func (c *Compiler) local(is4 bool) *model.HostAddress {
	if c.own == nil {
		return nil
	}
	addr := c.own.Address(is4)
	i := slices.IndexFunc(c.underlay, func(h model.HostAddress) bool { return h.Prefix.Addr() == addr })
	if i < 0 {
		return nil
	}
	return &c.underlay[i]
}

// direct returns the own address with a subnet that another address is on, that of the own node,
// local, before others; nil: there is none.
func (c *Compiler) direct(remote netip.Addr, local *model.HostAddress) *model.HostAddress {
	if local != nil && local.Prefix.Contains(remote) {
		return local
	}
	i := slices.IndexFunc(c.underlay, func(h model.HostAddress) bool { return h.Prefix.Contains(remote) })
	if i < 0 {
		return nil
	}
	return &c.underlay[i]
}

// uplink is the interface by which packets to another node's address leave; "": there is none.
func (c *Compiler) uplink(remote netip.Addr) string {
	local := c.local(remote.Is4())
	if by := cmp.Or(c.direct(remote, local), local); by != nil {
		return by.Device
	}
	return ""
}

// pool returns the pool that counts for pods' addresses, nil if none holds them.
func (c *Compiler) pool(cidr netip.Prefix) *model.IPPool {
	p, _ := c.byCIDR.LookupPrefix(cidr)
	return p
}

// elsewhere says why no pods are in a CIDR; "": they may be.
func (c *Compiler) elsewhere(cidr netip.Prefix) string {
	if i := slices.IndexFunc(c.cfg.ServiceCIDRs, cidr.Overlaps); i >= 0 {
		return fmt.Sprintf("overlaps %s, where --service-cidr has cluster IPs", c.cfg.ServiceCIDRs[i])
	}
	family := func(p netip.Prefix) bool { return p.Addr().Is4() == cidr.Addr().Is4() }
	around := func(p netip.Prefix) bool { return p.Bits() <= cidr.Bits() && p.Contains(cidr.Addr()) }
	if slices.Contains(c.cfg.Pools, c.pool(cidr)) && slices.ContainsFunc(c.cfg.ClusterCIDRs, family) && !slices.ContainsFunc(c.cfg.ClusterCIDRs, around) {
		return "lies outside of --cluster-cidr"
	}
	return ""
}

// addresses are the first of each family.
func addresses(n *model.Node) (list []netip.Addr) {
	for _, is4 := range []bool{true, false} {
		if a := n.Address(is4); a.IsValid() {
			list = append(list, a)
		}
	}
	return list
}

// fabricOf is what Calico's annotations say of a node.
func fabricOf(n *model.Node) model.NodeFabric {
	if n.Fabric == nil {
		return model.NodeFabric{}
	}
	return *n.Fabric
}

// tunnelAddress is what a node has as the address of a tunnel device: the one that Calico has set
// apart for it, said; or the first of its first pod CIDR, which no pod gets; or the node's own,
// where it has no pods, or where Calico gives addresses out of blocks.
func (c *Compiler) tunnelAddress(n *model.Node, is4 bool, said netip.Addr) netip.Addr {
	if said.IsValid() {
		return said
	}
	for _, p := range n.PodCIDRs {
		if p.Addr().Is4() == is4 && len(c.of[n.Name]) == 0 {
			return p.Masked().Addr()
		}
	}
	return n.Address(is4)
}

// vxlanAddress is what Calico has set apart for a node's VXLAN device; invalid: nothing.
func vxlanAddress(n *model.Node, is4 bool) netip.Addr {
	if is4 {
		return fabricOf(n).VXLAN
	}
	return fabricOf(n).VXLAN6
}

// macs are those of a node's VXLAN devices.
func macs(n *model.Node) []state.MAC {
	return slices.Compact([]state.MAC{macOf(n, true), macOf(n, false)})
}

// macOf is the MAC of a node's VXLAN device for a family, the same whoever asks, and whenever: what
// Calico's annotation says, or else one that its name gives.
func macOf(n *model.Node, is4 bool) (mac state.MAC) {
	said := fabricOf(n)
	if is4 && said.MAC != mac {
		return said.MAC
	}
	if !is4 && said.MAC6 != mac {
		return said.MAC6
	}
	sum := sha256.Sum256([]byte(n.Name))
	copy(mac[:], sum[:])
	mac[0] = mac[0]&^1 | 2 // locally administered, and of one device
	return mac
}

// linkLocal is the address that a device with the MAC would have by itself (RFC 4291, appendix A).
func linkLocal(m state.MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}
