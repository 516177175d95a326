package compile

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
)

// links finds the way to addresses.
type links struct {
	model.Links
	known   bool
	byIndex map[int]*model.Link
	routes  *bart.Table[int] // the links that they lead to

	attached map[netip.Addr]*model.Attachment // by addresses
}

func newLinks(l model.Links) *links {
	x := &links{Links: l, byIndex: map[int]*model.Link{}, routes: new(bart.Table[int])}
	for i := range l.Links {
		x.byIndex[l.Links[i].Index] = &l.Links[i]
	}
	for _, r := range slices.Backward(l.Routes) { // so that the first of several to one prefix counts
		x.routes.Insert(r.Prefix, r.Link)
	}
	return x
}

// to returns the interface that leads to an address, 0 if none does; bridged: others are behind it
// too.
func (x *links) to(a netip.Addr) (device int, bridged bool) {
	if at := x.attached[a]; at != nil {
		return at.Index, false
	}
	to, device, ok := x.routes.LookupPrefixLPM(netip.PrefixFrom(a, a.BitLen()))
	l := x.byIndex[device]
	return device, ok && (!to.IsSingleIP() || l != nil && l.Bridge)
}

// SetLinks says what the node's kernel has; the next Update follows.
func (c *Compiler) SetLinks(l model.Links) {
	attached := c.links.attached
	*c.links = *newLinks(l)
	c.links.known, c.links.attached = true, attached
	c.endpoints.hosts.stale = true
	for a := range c.endpoints.claims {
		c.endpoints.readdressed[a] = struct{}{}
	}
}

// attach follows the attachments of this node's pods. Of two with one address, the newer has it.
func (es *endpoints) attach(list []*model.Attachment) {
	before := es.links.attached
	es.links.attached = map[netip.Addr]*model.Attachment{}
	for _, at := range list { // the highest index comes last
		for _, a := range at.Addrs {
			es.links.attached[a] = at
		}
	}
	for _, some := range []map[netip.Addr]*model.Attachment{before, es.links.attached} {
		for a := range some {
			if before[a] != es.links.attached[a] {
				es.readdressed[a] = struct{}{}
			}
		}
	}
}

// SetOpen says whether what no known pod sends or gets passes, rather than being dropped until it
// is known whose it is; the next Update follows. The policies of known pods hold all the same.
func (c *Compiler) SetOpen(open bool) { c.open = open }

// follow makes the set hold the indexes of the links that are in, and returns what changed.
func (x *links) follow(set map[int]struct{}, in func(*model.Link) bool) map[int]bool {
	touched := map[int]bool{} // whether they were in it
	for index := range x.byIndex {
		touched[index] = false
	}
	for index := range set {
		touched[index] = true
	}
	clear(set)
	for index, l := range x.byIndex {
		if in(l) {
			set[index] = struct{}{}
		}
	}
	diff.Settle(touched, set)
	return touched
}
