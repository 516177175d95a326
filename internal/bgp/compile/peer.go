package compile

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	speaker "sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/lib/multimap"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// candidate is a peer that an object, or the mesh, asks for. Of several with one address that of
// the oldest object counts, and of the nodes with it the oldest.
type candidate struct {
	name    string
	of      model.Ref // zero: the mesh
	created time.Time // of
	node    string    // which it is; "": none
	speaker.Peer
}

// secret is what a Secret was found to hold.
type secret struct {
	text string
	ok   bool // it is there
}

// followPeers follows the peers: those that changed nodes are, and those by objects that
// changed, or all. Moved are the addresses that nodes had or have that changed.
func (c *Compiler) followPeers(v *store.View, d store.Dirty, moved map[netip.Addr]bool, basis bool) {
	asked, rest := changed(d, model.NodeKind, model.BGPPeerKind, model.BGPFilterKind), changed(d, model.MetalLBPeerKind, model.IPAddressPoolKind, model.BGPAdvertisementKind, model.CommunityKind)
	if !basis && !c.renewed && !asked && !rest {
		return
	}
	placed := c.place(basis)
	stale, concerned := c.associate(v, d, basis, placed)
	repooled := c.followMetalLB(v, d, basis)
	if basis || c.renewed || changed(d, model.BGPPeerKind, model.MetalLBPeerKind) {
		c.lookUp(basis || c.renewed)
	}
	// Who keeps a password that is not there any more depends on who is chosen.
	associated := changed(d, model.BGPPeerKind, model.BGPFilterKind)
	all := basis || c.renewed || placed && associated || c.lacking && (associated || rest)
	touched := map[netip.Addr]bool{}
	if all {
		for who := range c.asked {
			c.ask(who, nil, touched)
		}
		concerned = c.population.All()
	} else {
		for _, kind := range []model.Kind{model.NodeKind, model.BGPPeerKind, model.MetalLBPeerKind} {
			for name := range d.Objects[kind] {
				c.ask(model.Ref{Kind: kind, Name: name}, nil, touched)
			}
		}
	}
	c.askNodes(concerned, touched)
	for _, a := range c.associations {
		if a.from && a.Address.IsValid() && (all || stale[a.Name] || moved[a.Address]) {
			c.ask(a.Ref(), c.otherPeer(a.BGPPeer), touched)
		}
	}
	for _, p := range c.metalLB {
		if _, dirty := d.Objects[model.MetalLBPeerKind][p.Name]; all || dirty || repooled {
			c.ask(p.Ref(), c.metalLBPeer(p), touched)
		}
	}
	c.choose(touched)
}

// lookUp looks up the passwords that peers may have, whether or not there are such peers now; again
// those that are known, or not.
func (c *Compiler) lookUp(again bool) {
	known := c.secrets
	if again {
		known = nil
	}
	c.secrets, c.lacking = map[model.SecretRef]secret{}, false
	look := func(ref model.SecretRef) {
		if _, done := c.secrets[ref]; done || ref == (model.SecretRef{}) {
			return
		}
		found, asked := known[ref]
		if !asked {
			found = c.secret(ref)
		}
		c.secrets[ref], c.lacking = found, c.lacking || !found.ok
	}
	look(c.config.MeshPassword)
	for _, a := range c.associations {
		look(a.Password)
	}
	for _, p := range c.metalLB {
		look(p.PasswordSecret)
	}
}

// secret looks a password up.
func (c *Compiler) secret(ref model.SecretRef) (found secret) {
	if c.cfg.Secret != nil {
		found.text, found.ok = c.cfg.Secret(ref)
	}
	return found
}

// found is the password that a reference was found to lead to; that of no Secret is "".
func (c *Compiler) found(ref model.SecretRef) secret {
	if ref == (model.SecretRef{}) {
		return secret{ok: true}
	}
	return c.secrets[ref]
}

// secure gives a candidate the password that its object names. While that is not there, a session
// by the same object with the same address and AS keeps what it has, and nobody else gets one:
// false.
func (c *Compiler) secure(peer *candidate, ref model.SecretRef) bool {
	found, now := c.found(ref), c.chosen[peer.Address]
	switch {
	case found.ok:
		peer.Password = cmp.Or(found.text, peer.Password)
	case now != nil && now.of == peer.of && now.AS == peer.AS:
		peer.Password = now.Password
	default:
		return false
	}
	return true
}

// from reports whether a BGPPeer says what peers a node has.
func from(p *model.BGPPeer, n *node) bool {
	if p.Node != "" {
		return p.Node == n.Name
	}
	return p.Nodes.IsZero() || p.Nodes.Matches(model.LabelMap(n.Labels))
}

// to reports whether a BGPPeer says that a node is the peer of others, which are its peers then.
func to(p *model.BGPPeer, n *node) bool {
	if !p.Peers.IsZero() {
		return p.Peers.Matches(model.LabelMap(n.Labels))
	}
	return !p.OneWay && p.AS == n.as && (p.Port == 0 || p.Port == n.port) && slices.Contains(n.addresses, p.Address)
}

// askNodes replaces what some nodes ask for as peers.
func (c *Compiler) askNodes(some model.Places, touched map[netip.Addr]bool) {
	own, lists := c.self(), make([][]*candidate, len(c.placed))
	for _, is4 := range []bool{true, false} {
		if own == nil || !own.address(is4).IsValid() {
			continue
		}
		asks := c.population.None()
		for i := range some.Each() {
			n := c.placed[i]
			if a := n.address(is4); n == own || !a.IsValid() || a == own.address(is4) {
				continue
			}
			asks.Add(i)
			if p := c.meshPeer(own, n, is4); p != nil {
				lists[i] = append(lists[i], p)
			}
		}
		c.firstPeers(lists, asks, turn{is4, true})
		c.firstPeers(lists, asks, turn{is4, false})
	}
	for i := range some.Each() {
		c.ask(c.placed[i].Ref(), lists[i], touched)
	}
}

// maxRivals is how many BGPPeers are looked at that have the same node as a peer, the oldest: one
// of them counts, and the others are told so.
const maxRivals = 16

// turn is one of those in which a node looks for BGPPeers: for a family, and for those by which it
// is a peer of this node, or those by which this one is its peer.
type turn struct{ is4, forward bool }

// of are the nodes that an association has in a turn.
func (t turn) of(a *association) model.Places {
	switch {
	case t.forward:
		return a.peers
	case a.Peers.IsZero() && a.Address.Is4() != t.is4:
		return nil
	}
	return a.ends
}

// firstPeers adds to the lists of some nodes what they are by the BGPPeers that have them, the
// oldest first.
func (c *Compiler) firstPeers(lists [][]*candidate, some model.Places, in turn) {
	left := c.population.None()
	for i := range some.Each() {
		left.Add(i)
		if c.placed[i].last == nil {
			c.placed[i].last = map[turn]*association{}
		}
		c.placed[i].last[in] = nil
	}
	speak := map[model.Ref]bool{} // by which there is a peer
	if c.lacking {
		for _, p := range c.chosen {
			speak[p.of] = true
		}
	}
	own, counts := c.self(), make([]int, len(lists))
	for _, a := range c.associations {
		if left.Empty() {
			return
		}
		if c.lacking && !c.found(a.Password).ok && !speak[a.Ref()] {
			continue // as secure says of each node
		}
		for i := range left.Common(in.of(a)) {
			if peer := c.peer(a.BGPPeer, own, c.placed[i], in.is4); peer != nil {
				lists[i] = append(lists[i], peer)
				if counts[i]++; counts[i] == maxRivals {
					c.placed[i].last[in] = a
					left.Remove(i)
				}
			}
		}
	}
}

// meshPeer is what another node is as all nodes are each other's peers; nil: it is none. Reflectors
// are not part of the mesh, as with Calico.
func (c *Compiler) meshPeer(own, n *node, is4 bool) *candidate {
	if c.config.NoMesh || own.cluster.IsValid() || n.cluster.IsValid() {
		return nil
	}
	a, local := n.address(is4), own.address(is4)
	peer := &candidate{name: named("mesh "+n.Name, is4), node: n.Name, Peer: speaker.Peer{
		Address: a, Port: n.port, AS: n.as, Source: local, Hops: maxHops, IPv4: is4, IPv6: !is4, Restart: true,
		Passive: a.String() > local.String(), // one end opens the session: the same that Calico has do it
	}}
	if !c.secure(peer, c.config.MeshPassword) {
		return nil
	}
	return peer
}

// defaultHold is the speaker's own hold time.
const defaultHold = 90 * time.Second

// maxHops is how far away a peer may be of which nothing says how far it is.
const maxHops = 255

// named is the name of a session: a node can have two, which differ in the family.
func named(name string, is4 bool) string {
	if is4 {
		return name
	}
	return name + " IPv6"
}

// peer is what another node is by a BGPPeer; nil: it is none, for want of a password. An end has
// the BGPPeer's own AS number if it is one of those that have the other as a peer.
func (c *Compiler) peer(p *model.BGPPeer, own, n *node, is4 bool) *candidate {
	peer := &candidate{name: named("BGPPeer "+p.Name+" "+n.Name, is4), node: n.Name, Peer: speaker.Peer{Address: n.address(is4), Port: n.port, AS: n.as}}
	if p.LocalAS != 0 && from(p, n) && to(p, own) {
		peer.AS = p.LocalAS
	}
	if p.LocalAS != 0 && from(p, own) && to(p, n) {
		peer.LocalAS = p.LocalAS
	}
	return c.complete(peer, p, own, n)
}

// otherPeer is the peer that a BGPPeer names by its address; none: it can't be one.
func (c *Compiler) otherPeer(p *model.BGPPeer) []*candidate {
	own := c.self()
	if slices.Contains(own.addresses, p.Address) {
		return nil
	}
	peer := &candidate{name: "BGPPeer " + p.Name, Peer: speaker.Peer{Address: p.Address, Port: p.Port, AS: p.AS, LocalAS: p.LocalAS}}
	n := c.nodeAt(p)
	if !own.address(p.Address.Is4()).IsValid() && (n != nil || !p.AnySource) {
		return nil // as Calico speaks BGP in the families that a node has addresses of
	}
	if n != nil {
		peer.node, peer.Port = n.Name, cmp.Or(p.Port, n.port)
	}
	peer.Port = cmp.Or(peer.Port, defaultPort)
	return []*candidate{c.complete(peer, p, own, n)}
}

// nodeAt returns the node that a BGPPeer names by its address; nil: it names something else.
func (c *Compiler) nodeAt(p *model.BGPPeer) *node {
	for _, n := range c.addresses[p.Address] {
		if n.as == p.AS && (p.Port == 0 || p.Port == n.port) {
			return n
		}
	}
	return nil
}

// complete adds to a candidate what a BGPPeer says of the session. Other is the node that the peer
// is; nil: it is none.
func (c *Compiler) complete(peer *candidate, p *model.BGPPeer, own, other *node) *candidate {
	if peer.of, peer.created = p.Ref(), p.Created; !c.secure(peer, p.Password) {
		return nil
	}
	is4 := peer.Address.Is4()
	peer.IPv4, peer.IPv6, peer.Restart = is4, !is4, true
	if !p.AnySource {
		peer.Source = own.address(is4)
	}
	if peer.LocalAS == own.as {
		peer.LocalAS = 0
	}
	internal := peer.AS == cmp.Or(peer.LocalAS, own.as)
	peer.KeepNextHop, peer.AllowOwnAS = p.KeepNextHop && !internal, p.AllowOwnAS
	if peer.Keepalive = p.Keepalive; 3*p.Keepalive > defaultHold {
		peer.Hold = 3 * p.Keepalive
	}
	if peer.Security = p.Security; peer.Security == 0 {
		peer.Hops = maxHops
	}
	if internal && own.cluster.IsValid() && (other == nil || other.cluster != own.cluster) {
		peer.Cluster = own.cluster
	}
	r := c.rulesOf(p, session{internal, is4})
	peer.Import, peer.Export = r.imports, r.exports
	return peer
}

// ask replaces what somebody asks for, and adds the addresses to touched.
func (c *Compiler) ask(who model.Ref, list []*candidate, touched map[netip.Addr]bool) {
	for _, old := range c.asked[who] {
		touched[old.Address] = true
		multimap.Remove(c.rivals, old.Address, old)
	}
	delete(c.asked, who)
	for _, p := range list {
		if p == nil {
			continue
		}
		touched[p.Address], p.MaxRoutes = true, c.cfg.MaxRoutes
		c.asked[who] = append(c.asked[who], p)
		multimap.Add(c.rivals, p.Address, p)
	}
}

// choose has the first of those with one address count.
func (c *Compiler) choose(touched map[netip.Addr]bool) {
	for a := range touched { // before one gets a name that another had
		if old := c.chosen[a]; old != nil {
			c.peers.Set(old.name, nil)
			delete(c.chosen, a)
		}
	}
	for a := range touched {
		var first *candidate
		for p := range c.rivals[a] {
			if first == nil || c.before(p, first) {
				first = p
			}
		}
		if first != nil {
			c.chosen[a] = first
			c.peers.Set(first.name, &first.Peer)
		}
	}
}

// before reports whether one candidate counts rather than another of its address. The mesh comes
// last: it has no time, and a name after those of BGPPeers.
func (c *Compiler) before(x, y *candidate) bool {
	if x.of == y.of && x.node != "" && y.node != "" && x.node != y.node {
		return model.ByBirth(c.nodes[x.node], c.nodes[y.node]) < 0
	}
	birth := func(p *candidate) model.Birth { return model.Birth{Created: p.created, Name: model.Name{Name: p.name}} }
	return birth(x).Compare(birth(y)) < 0
}
