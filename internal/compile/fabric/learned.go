package fabric

import (
	"net/netip"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/state"
)

// SetLearned says what has changed in the routes that this node's BGP speaker has learned, nil: no
// longer; the next Update follows.
func (c *Compiler) SetLearned(routes map[netip.Prefix]*bgp.Learned) {
	for p, l := range routes {
		if l == nil {
			delete(c.learned, p)
		} else {
			c.learned[p] = l
		}
		c.relearned[p] = true
	}
}

// follow brings the learned routes in step that have changed since the last Update.
func (c *Compiler) follow() {
	for p := range c.relearned {
		if now := c.fabric.Routes[p]; now != nil && !c.foreign[p] {
			continue // the fabric has its own
		}
		l := c.learned[p]
		if l == nil {
			c.routes.Set(p, nil)
			delete(c.foreign, p)
			continue
		}
		if local := c.local(l.NextHop.Is4()); local != nil {
			if direct := c.direct(l.NextHop, local); direct != nil {
				c.routes.Set(p, &state.Route{Node: l.Peer, Device: direct.Device, Via: l.NextHop})
				c.foreign[p] = true
			}
		}
	}
	clear(c.relearned)
}
