package compile

import (
	"maps"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// association is a BGPPeer of Calico's that is about this node.
type association struct {
	*model.BGPPeer
	from bool // see from, of this node
	// The nodes that it selects as this node's peers; and those beside them that have this node as
	// a peer by it.
	peers, ends model.Places
}

// place gives the nodes places, where there are others than before or with other labels, and
// reports whether it did.
func (c *Compiler) place(anew bool) bool {
	if !anew && !c.unplaced {
		return false
	}
	c.placed, c.unplaced = slices.Collect(maps.Values(c.nodes)), false
	labels := make([]model.LabelMap, len(c.placed))
	for i, n := range c.placed {
		n.at, labels[i] = i, n.Labels
	}
	c.population = model.NewPopulation(labels)
	return true
}

// associate follows the BGPPeers and BGPFilters that changed, or all. It returns the BGPPeers whose
// peers may be others for that, and the nodes that are asked again, unless all are.
func (c *Compiler) associate(v *store.View, d store.Dirty, basis, placed bool) (stale map[string]bool, concerned model.Places) {
	concerned = c.population.None()
	for name := range d.Objects[model.NodeKind] {
		if n := c.nodes[name.Name]; n != nil {
			concerned.Add(n.at)
		}
	}
	if basis {
		c.associations, c.rules = nil, map[*model.BGPPeer]map[session]rules{}
	} else if placed {
		for _, a := range c.associations {
			c.find(a)
		}
	}
	if !basis && !changed(d, model.BGPPeerKind, model.BGPFilterKind) {
		return nil, concerned
	}
	for name := range d.Objects[model.BGPFilterKind] {
		if c.filters[name.Name] = v.BGPFilter(name.Name); c.filters[name.Name] == nil {
			delete(c.filters, name.Name)
		}
	}
	stale = map[string]bool{}
	concern := func(a *association) {
		stale[a.Name] = true
		delete(c.rules, a.BGPPeer)
		switch {
		case placed: // all nodes are asked
		case len(stale) > many:
			concerned.Join(a.peers)
			concerned.Join(a.ends)
		default:
			c.concern(a, concerned)
		}
	}
	c.associations = slices.DeleteFunc(c.associations, func(a *association) bool {
		_, changed := d.Objects[model.BGPPeerKind][model.Name{Name: a.Name}]
		if changed || slices.ContainsFunc(a.Filters, func(f string) bool { _, is := d.Objects[model.BGPFilterKind][model.Name{Name: f}]; return is }) {
			concern(a)
		}
		return changed
	})
	for _, a := range c.associationsOf(v, d, basis) {
		c.associations = append(c.associations, a)
		concern(a)
	}
	slices.SortFunc(c.associations, model.ByBirth)
	return stale, concerned
}

// many BGPPeers change at once: to ask all nodes that these select costs less than to find those to
// which it matters.
const many = 100

// concern adds the nodes to which it matters that there is an association, or is not.
func (c *Compiler) concern(a *association, to model.Places) {
	for _, places := range []model.Places{a.peers, a.ends} {
		for i := range places.Each() {
			if !to.Has(i) && c.placed[i].awaits(a) {
				to.Add(i)
			}
		}
	}
}

// associationsOf makes associations of the BGPPeers that changed, or of all.
func (c *Compiler) associationsOf(v *store.View, d store.Dirty, all bool) (list []*association) {
	own, peers := c.self(), []*model.BGPPeer(nil)
	if own == nil {
		return nil
	}
	if all {
		peers = v.BGPPeers()
	}
	for name := range d.Objects[model.BGPPeerKind] {
		if p := v.BGPPeer(name.Name); p != nil && !all {
			peers = append(peers, p)
		}
	}
	for _, p := range peers {
		if a := (&association{BGPPeer: p, from: from(p, own)}); a.from || to(p, own) {
			c.find(a)
			list = append(list, a)
		}
	}
	return list
}

// find looks for the nodes that an association is about.
func (c *Compiler) find(a *association) {
	a.peers, a.ends = nil, nil
	if a.from {
		a.peers = c.population.Selected(a.Peers)
	}
	if !to(a.BGPPeer, c.self()) {
		return
	}
	switch {
	case a.Node != "":
		if n := c.nodes[a.Node]; n != nil {
			a.ends = c.population.None()
			a.ends.Add(n.at)
		}
	case a.Nodes.IsZero():
		a.ends = c.population.All()
	default:
		a.ends = c.population.Selected(a.Nodes)
	}
	a.ends = a.ends.Without(a.peers)
}
