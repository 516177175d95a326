package fabric

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

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
		if old := c.learned[p]; old != nil {
			if c.bits[p.Bits()]--; c.bits[p.Bits()] == 0 {
				delete(c.bits, p.Bits())
			}
			delete(c.byHop[old.NextHop], p)
			if len(c.byHop[old.NextHop]) == 0 {
				delete(c.byHop, old.NextHop)
				delete(c.hops, old.NextHop)
			}
		}
		c.relearned[p] = true
		if l == nil {
			delete(c.learned, p)
			continue
		}
		c.learned[p] = &learned{Learned: l}
		c.bits[p.Bits()]++
		if c.byHop[l.NextHop] == nil {
			c.byHop[l.NextHop] = map[netip.Prefix]struct{}{}
		}
		c.byHop[l.NextHop][p] = struct{}{}
	}
}

// SetServed says to which addresses each node has services by itself: routes to those are not
// followed, or packets to addresses that no Service has would go from node to node for ever. The
// next Update follows.
func (c *Compiler) SetServed(ranges []netip.Prefix) {
	if !slices.Equal(c.served, ranges) {
		c.served, c.doubted = ranges, true
	}
}

// SetAPIServers says which addresses no peer may draw to itself, beside this node's own; the next
// Update follows.
func (c *Compiler) SetAPIServers(addrs []netip.Addr) {
	if !slices.Equal(c.apiServers, addrs) {
		c.apiServers, c.doubted = addrs, true
	}
}

// RoutesMoved says that the kernel's routes have changed, so that Config.Resolve may answer
// otherwise than before; the next Update follows. Routes whose next hops are reached as before cost
// nothing.
func (c *Compiler) RoutesMoved() {
	for to, old := range c.hops {
		if c.hops[to] = c.resolve(to); c.hops[to] != old {
			c.relearnBy(to)
		}
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
	for p := range c.byHop[nextHop] {
		c.relearned[p] = true
	}
	for bits := range c.bits {
		if p, err := nextHop.Prefix(bits); err == nil && c.learned[p] != nil {
			c.relearned[p] = true
		}
	}
}

// rehop has the routes by a node looked at again.
func (c *Compiler) rehop(n *node) {
	for _, a := range addresses(n.Node) {
		c.rehopped[a] = true
	}
}

// follow brings the learned routes in step: those that have changed since the last Update, or all.
func (c *Compiler) follow(all bool) {
	if all || c.doubted {
		clear(c.hops)
		for p := range c.learned {
			c.relearned[p] = true
		}
	}
	if len(c.relearned) > 0 {
		c.setGuarded()
	}
	for p := range c.relearned {
		c.followOne(p, c.learned[p])
	}
	clear(c.relearned)
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
	if c.foreign[p] != (route != nil) {
		c.listed = c.listed && len(c.cidrs[p]) == 0
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
	if l := c.learned[p]; l != nil {
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
	if !to.IsValid() || to.Is4() != is4 || model.Unusable(to) != "" {
		return nil, fmt.Sprintf("the next hop %s is no %s address to send to", to, familyName(is4))
	}
	direct := c.direct(to, c.local(is4))
	if n := c.nodeAt(to); n != nil {
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
	case slices.ContainsFunc(c.served, func(s netip.Prefix) bool { return s.Bits() <= p.Bits() && s.Contains(p.Addr()) }):
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
	return c.nodes[c.addrs.winner(a)]
}

// wayTo is how packets to a learned prefix travel to the node that announces it, as the pool says
// that holds the prefix; neither a route nor why there is none: as they are.
func (c *Compiler) wayTo(n *node, p netip.Prefix, to netip.Addr, direct *model.HostAddress) (r *state.Route, why string) {
	pool := c.pool(p)
	switch {
	case n.peer != nil && c.published():
		return nil, fmt.Sprintf("what goes to Node %s is encrypted, and neither the Node nor a block says that it has such pods", n.Name)
	case pool == nil:
		return nil, ""
	case tunnels(pool.VXLAN, direct):
		return nil, fmt.Sprintf("IPPool %s has packets travel by VXLAN, for which Node %s or a block has to say that it has such pods", pool.Name, n.Name)
	case !tunnels(pool.IPIP, direct):
		return nil, ""
	case c.nodeAddrs.in(p, c.addrs).IsValid(): // packets between nodes would go where those to pods do
		return nil, fmt.Sprintf("it holds %s, which is the address of a node, and IPPool %s has packets travel by IPIP", c.nodeAddrs.in(p, c.addrs), pool.Name)
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

// never are the ranges that are of a single host or link.
var never = []guarded{
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"}, {netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"}, {netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"}, {netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// setGuarded takes over what is guarded.
func (c *Compiler) setGuarded() {
	c.guarded = nil
	for _, h := range c.underlay {
		if c.fabric.Tunnels[h.Device] == nil && !h.Prefix.Addr().IsLoopback() {
			c.guarded = append(c.guarded, guarded{h.Prefix.Masked(), "the subnet of this node on " + h.Device})
		}
	}
	if own := c.nodes[c.cfg.Node]; own != nil {
		for _, p := range own.cidrs {
			c.guarded = append(c.guarded, guarded{p, "pods of this node"})
		}
	}
	for _, a := range c.apiServers {
		c.guarded = append(c.guarded, guarded{netip.PrefixFrom(a, a.BitLen()), "the API server"})
	}
	c.guarded = append(c.guarded, never...)
}

// refusal says why no route to a prefix is taken from a peer; "": one is. By some routes a peer
// would cut the node off from its subnets, its own pods or its API.
func (c *Compiler) refusal(p netip.Prefix) string {
	i := slices.IndexFunc(c.guarded, func(g guarded) bool { return p.Overlaps(g.prefix) })
	if i < 0 {
		return ""
	}
	how, g := "lies in", c.guarded[i]
	if p.Bits() < g.prefix.Bits() {
		how = "holds"
	}
	return fmt.Sprintf("it %s %s, %s; have the peer not announce it, or reject it by a BGPFilter", how, g.prefix, g.what)
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
