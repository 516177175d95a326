package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Routes that BGP peers announce become routes of the fabric where it has no route of its own to
// exactly that prefix. A peer is not believed everything: see refusal.
//
// An agent that begins has learned nothing yet, and what an earlier one learned is to stay in the
// kernel meanwhile. That is not said here: the driver keeps it (driver.Keep.Fabric) until the
// speaker is settled. When a speaker ends, its routes are not taken back by SetLearned before the
// one after it is settled.

// learned is a route that a peer announces.
type learned struct {
	*bgp.Learned
	// Why it is not followed, as a fault, or because nobody needs it; both "": it is.
	why, unneeded string
}

// hop is how packets get to a next hop that is on no subnet of this node.
type hop struct {
	via    netip.Addr
	device string
}

// SetLearned says what has changed in the routes that this node's BGP speaker has learned, nil: no
// longer; the next Update follows.
func (c *Compiler) SetLearned(routes map[netip.Prefix]*bgp.Learned) {
	for p, l := range routes {
		if old, there := c.learned.Get(p); there {
			by, _ := c.byHop.Get(single(old.NextHop))
			if delete(by, p); len(by) == 0 {
				c.byHop.Delete(single(old.NextHop))
				delete(c.hops, old.NextHop)
			}
		}
		c.relearned[p] = true
		if l == nil {
			c.learned.Delete(p)
			continue
		}
		c.learned.Insert(p, &learned{Learned: l})
		by, _ := c.byHop.Get(single(l.NextHop))
		if by == nil {
			by = map[netip.Prefix]struct{}{}
			c.byHop.Insert(single(l.NextHop), by)
		}
		by[p] = struct{}{}
	}
}

// SetServed says to which addresses each node has services by itself: routes to those are not
// followed, or packets to addresses that no Service has would go from node to node for ever. The
// next Update follows.
func (c *Compiler) SetServed(ranges []netip.Prefix) {
	if !slices.Equal(c.served, ranges) {
		c.served, c.serves, c.doubted = ranges, bart.Lite{}, true
		for _, p := range ranges {
			c.serves.Insert(p)
		}
	}
}

// SetLinks says what interfaces the node has, of which those that lead to its pods lead to no next
// hop, and that the kernel's routes may have changed, so that Config.Resolve may answer otherwise
// than before. The next Update follows.
func (c *Compiler) SetLinks(l model.Links) {
	pods := map[string]bool{}
	for _, link := range l.Links {
		if link.Pod {
			pods[link.Name] = true
		}
	}
	for to, old := range c.hops {
		now := c.resolve(to)
		c.hops[to] = now
		if now != old || pods[now.device] != c.podLinks[now.device] {
			c.relearnBy(to)
		}
	}
	c.podLinks = pods
}

// SetAPIServers says which addresses no peer and no pod CIDR may draw to itself, beside this node's
// own; the next Update follows.
func (c *Compiler) SetAPIServers(addrs []netip.Addr) {
	if !slices.Equal(c.apiServers, addrs) {
		c.apiServers, c.moved = addrs, true
	}
}

func (c *Compiler) resolve(to netip.Addr) (h hop) {
	if c.cfg.Resolve != nil {
		h.via, h.device = c.cfg.Resolve(to)
	}
	return h
}

// relearnBy has the routes by a next hop looked at again, and those to it.
func (c *Compiler) relearnBy(nextHop netip.Addr) {
	by, _ := c.byHop.Get(single(nextHop))
	for p := range by {
		c.relearned[p] = true
	}
	for p := range c.learned.Supernets(single(nextHop)) {
		c.relearned[p] = true
	}
}

// rehop has the routes by a node looked at again.
func (c *Compiler) rehop(n *node) {
	for _, a := range addresses(n.Node) {
		c.rehopped[a] = true
	}
}

// relearn has the route to a prefix looked at again.
func (c *Compiler) relearn(p netip.Prefix) {
	if _, learned := c.learned.Get(p); learned {
		c.relearned[p] = true
	}
}

// relearnIn has the routes in a CIDR looked at again, and those by next hops there.
func (c *Compiler) relearnIn(cidr netip.Prefix) {
	for p := range c.learned.Subnets(cidr) {
		c.relearned[p] = true
	}
	for to := range c.byHop.Subnets(cidr) {
		c.relearnBy(to.Addr())
	}
}

// follow brings the learned routes in step: those that have changed since the last Update, or all.
func (c *Compiler) follow(all bool) {
	if all || c.doubted {
		clear(c.hops)
		for p := range c.learned.All() {
			c.relearned[p] = true
		}
	} else {
		for p := range c.reclaimed {
			c.relearnIn(p)
		}
	}
	if all {
		c.setGuarded()
	}
	for p := range c.relearned {
		l, _ := c.learned.Get(p)
		c.followOne(p, l)
	}
	clear(c.relearned)
	clear(c.reclaimed)
	c.doubted = false
}

// followOne brings the route to a prefix in step, of which l is what was learned; nil: nothing.
func (c *Compiler) followOne(p netip.Prefix, l *learned) {
	if c.fabric.Routes[p] != nil && !c.foreign[p] {
		if l != nil {
			l.why, l.unneeded = "", "Nodes and blocks say the way"
		}
		c.note(p, l)
		return
	}
	var route *state.Route
	if l != nil {
		if l.why, l.unneeded = "", c.unneeded(p, l.NextHop); l.unneeded == "" {
			route, l.why = c.way(p, l.Learned)
		}
	}
	if _, claimed := c.cidrs.Get(p); c.foreign[p] != (route != nil) {
		c.listed = c.listed && !claimed
	}
	switch {
	case route != nil:
		c.foreign[p] = true
		c.routes.Set(p, route)
	case c.foreign[p]:
		delete(c.foreign, p)
		c.routes.Set(p, nil)
	}
	c.note(p, l)
}

// note has Issues tell of a route that is not followed.
func (c *Compiler) note(p netip.Prefix, l *learned) {
	_, was := c.refused[p]
	if l != nil && l.why != "" {
		c.refused[p], c.listed = l, false
	} else if was {
		delete(c.refused, p)
		c.listed = false
	}
}

// NotFollowed says why a route that was learned does not lead packets, as of the last Update; "":
// it does, or it was not learned.
func (c *Compiler) NotFollowed(p netip.Prefix) string {
	if l, there := c.learned.Get(p); there {
		return cmp.Or(l.why, l.unneeded)
	}
	return ""
}

// way is how packets to a learned prefix travel, or why they do not.
func (c *Compiler) way(p netip.Prefix, l *bgp.Learned) (r *state.Route, why string) {
	to, is4 := l.NextHop, p.Addr().Is4()
	if why := c.refusal(p); why != "" {
		return nil, why
	}
	if !to.IsValid() || to.Is4() != is4 || reserved.Contains(to) || model.Unusable(to) != "" {
		return nil, fmt.Sprintf("the next hop %s is no %s address to send to", to, model.FamilyName(is4))
	}
	direct, n := c.direct(to, c.local(is4)), c.nodeAt(to)
	if _, of := c.holder(single(to), nil); n == nil && of != nil {
		return nil, fmt.Sprintf("the next hop %s is a pod of Node %s", to, of.Name)
	}
	if n != nil {
		if r, why := c.wayTo(n, p, to, direct); r != nil || why != "" {
			if r != nil {
				r.Node = l.Peer
			}
			return r, why
		}
	}
	if direct != nil {
		return &state.Route{Node: l.Peer, Device: direct.Device, Via: to}, ""
	}
	h, known := c.hops[to]
	if !known {
		h = c.resolve(to)
		c.hops[to] = h
	}
	if c.podLinks[h.device] {
		return nil, fmt.Sprintf("the next hop %s is a pod of this node", to)
	}
	if h.device == "" {
		return nil, fmt.Sprintf("this node has no route to the next hop %s; give it one, or have the peer set itself as the next hop", to)
	}
	if !h.via.IsValid() {
		h.via = to
	}
	return &state.Route{Node: l.Peer, Device: h.device, Via: h.via}, ""
}

// unneeded says why nobody needs a route, "" if it is needed: services are served by each node, and
// what this node announces may come back to it.
func (c *Compiler) unneeded(p netip.Prefix, nextHop netip.Addr) string {
	switch {
	case c.serves.LookupPrefix(p):
		return "this node serves Services by itself"
	case slices.ContainsFunc(c.underlay, func(h model.HostAddress) bool { return h.Prefix.Addr() == nextHop }):
		return "the next hop is this node"
	}
	return ""
}

// nodeAt returns the other node that has an address; nil: none has.
func (c *Compiler) nodeAt(a netip.Addr) *node {
	if len(c.addrs[a]) == 0 || c.addrs.winner(a) == c.cfg.Node {
		return nil
	}
	if n := c.nodes[c.addrs.winner(a)]; c.lost(a, n.Node) == "" {
		return n
	}
	return nil
}

// wayTo is how packets to a learned prefix travel to the node that announces it, as the pool says
// that holds the prefix; neither a route nor why there is none: as they are.
func (c *Compiler) wayTo(n *node, p netip.Prefix, to netip.Addr, direct *model.HostAddress) (r *state.Route, why string) {
	pool := c.pool(p)
	var held netip.Prefix
	for held = range c.nodeAddrs.Subnets(p) {
		break
	}
	switch {
	case n.peer != nil && c.published():
		return nil, fmt.Sprintf("what goes to Node %s is encrypted, and neither the Node nor a block says that it has such pods", n.Name)
	case pool == nil:
		return nil, ""
	case tunnels(pool.VXLAN, direct):
		return nil, fmt.Sprintf("IPPool %s has packets travel by VXLAN, for which Node %s or a block has to say that it has such pods", pool.Name, n.Name)
	case !tunnels(pool.IPIP, direct):
		return nil, ""
	case held.IsValid(): // packets between nodes would go where those to pods do
		return nil, fmt.Sprintf("it holds %s, which is the address of a node, and IPPool %s has packets travel by IPIP", held.Addr(), pool.Name)
	case c.fabric.Tunnels[state.DeviceIPIP] == nil:
		return nil, fmt.Sprintf("IPPool %s has packets travel by IPIP, and this node has no tunnel, as no node has pods there", pool.Name)
	}
	return &state.Route{Device: state.DeviceIPIP, Via: to}, ""
}

// guarded is a range of addresses that no peer may draw to itself, or any part of it.
type guarded struct {
	prefix netip.Prefix
	what   string
}

// reserved are addresses that some clusters have for pods all the same, as their Nodes say.
var reserved = netip.MustParsePrefix("240.0.0.0/4")

// setGuarded finds what is guarded.
func (c *Compiler) setGuarded() {
	c.guarded, c.ownPods = nil, bart.Lite{}
	for _, h := range c.underlay {
		if c.fabric.Tunnels[h.Device] == nil && !h.Prefix.Addr().IsLoopback() {
			c.guarded = append(c.guarded, guarded{h.Prefix.Masked(), "the subnet of this node on " + h.Device})
		}
	}
	for _, a := range c.apiServers {
		c.guarded = append(c.guarded, guarded{single(a), "the API server"})
	}
	if own := c.nodes[c.cfg.Node]; own != nil {
		for _, p := range own.cidrs {
			c.ownPods.Insert(p)
		}
	}
}

// guardedBy returns what is guarded and overlaps a prefix; the zero value: nothing.
func (c *Compiler) guardedBy(p netip.Prefix) guarded {
	if i := slices.IndexFunc(c.guarded, func(g guarded) bool { return p.Overlaps(g.prefix) }); i >= 0 {
		return c.guarded[i]
	}
	if within, kind := model.Special(p); kind != "" {
		return guarded{within, kind}
	}
	const ours = "pods of this node"
	if around, ok := c.ownPods.LookupPrefixLPM(p); ok {
		return guarded{around, ours}
	}
	for within := range c.ownPods.Subnets(p) {
		return guarded{within, ours}
	}
	return guarded{}
}

// refusal says why no route to a prefix is taken from a peer; "": one is. By some routes a peer
// would cut the node off from its subnets, its own pods or its API, or take pods of others.
func (c *Compiler) refusal(p netip.Prefix) string {
	const advice = "; have the peer not announce it, or reject it by a BGPFilter"
	if g := c.guardedBy(p); g.what != "" {
		how := "lies in"
		if p.Bits() < g.prefix.Bits() {
			how = "holds"
		}
		return fmt.Sprintf("it %s %s, %s", how, g.prefix, g.what) + advice
	}
	by, n := c.holder(p, nil)
	of, _ := c.cidrs.Get(p)
	switch {
	case n != nil && by == p:
		return ""
	case n != nil:
		return fmt.Sprintf("it lies in %s, pods of Node %s", by, n.Name) + advice
	case of != nil:
		n := c.nodes[of.claims[0].Name]
		return fmt.Sprintf("it is a pod CIDR of Node %s, which %s", n.Name, n.denied[p])
	case p.Overlaps(reserved):
		return fmt.Sprintf("it has a part of %s, which is reserved", reserved) + advice
	}
	return ""
}

// maxTold is how many routes an issue names.
const maxTold = 3

// LearnedIssues name the routes that are not followed, by their peers and what is wrong with them.
func (c *Compiler) LearnedIssues() (list []model.Issue) {
	type fault struct{ peer, why string }
	by := map[fault][]netip.Prefix{}
	for p, l := range c.refused {
		f := fault{l.Peer, l.why}
		by[f] = append(by[f], p)
	}
	for f, routes := range by {
		slices.SortFunc(routes, netip.Prefix.Compare)
		text := fmt.Sprintf("its route to %s is not followed: %s", routes[0], f.why)
		if len(routes) > 1 {
			named := model.Join(routes[:min(len(routes), maxTold)], ", ")
			if more := len(routes) - maxTold; more > 0 {
				named += fmt.Sprintf(" and %d more", more)
			}
			why := f.why
			if rest, ok := strings.CutPrefix(why, "it "); ok {
				why = "each " + rest
			}
			text = fmt.Sprintf("its routes to %s are not followed: %s", named, why)
		}
		of := model.Ref{Kind: "peer", Name: model.Name{Name: f.peer}}
		list = append(list, of.Issue(text))
	}
	return list
}
