package compile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	speaker "sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// excluded reports whether this node announces no services.
func (c *Compiler) excluded() bool {
	own := c.self()
	if own == nil {
		return true
	}
	_, excluded := own.Labels[excludeLabel]
	return excluded
}

// ranges are those of services' addresses that BGPConfigurations have announced.
func (c *Compiler) ranges() []netip.Prefix {
	return slices.Concat(c.config.ClusterIPs, c.config.ExternalIPs, c.config.LoadBalancerIPs)
}

// Served returns the ranges of services' addresses that nodes may announce, sorted, as each node
// serves them by itself; and whether they may be others than at the last call.
func (c *Compiler) Served() (ranges []netip.Prefix, changed bool) {
	changed, c.servedMoved = c.servedMoved, false
	return c.served, changed
}

// setServed says what Served returns.
func (c *Compiler) setServed() {
	c.served = slices.Concat(c.ranges(), slices.Collect(maps.Keys(c.pooled)))
	slices.SortFunc(c.served, netip.Prefix.Compare)
	c.served, c.servedMoved = slices.Compact(c.served), true
}

// rangeRoutes are those to the ranges of services' addresses. Those to single addresses are
// announced while a Service has them.
func (c *Compiler) rangeRoutes() map[prefixReason]speaker.Announcement {
	if c.excluded() {
		return nil
	}
	whole := slices.Concat(c.config.ClusterIPs, c.config.ExternalIPs)
	if !c.config.EachLoadBalancerIP {
		whole = append(whole, c.config.LoadBalancerIPs...)
	}
	list := map[prefixReason]speaker.Announcement{}
	for _, p := range whole {
		if !p.IsSingleIP() {
			list[prefixReason{p, reason{fromRanges, c.config.Ref()}}] = speaker.Announcement{Communities: c.communities(p)}
		}
	}
	return list
}

// serviceRoutes are those to addresses of a Service, nil if it is gone, that are not announced with
// their range alone: with policy Local, only nodes with a ready endpoint are to get its packets.
func (c *Compiler) serviceRoutes(v *store.View, s *model.Service) map[prefixReason]speaker.Announcement {
	if s == nil || s.Unproxied != "" || c.excluded() {
		return nil
	}
	var list map[prefixReason]speaker.Announcement
	add := func(addrs []netip.Addr, ranges *bart.Lite, each bool) {
		for _, a := range addrs {
			p := netip.PrefixFrom(a, a.BitLen())
			in, found := ranges.LookupPrefixLPM(p)
			if !found || !s.ExternalLocal && !each && !in.IsSingleIP() || s.ExternalLocal && !c.ready(v, s, a.Is4()) {
				continue
			}
			if list == nil {
				list = map[prefixReason]speaker.Announcement{}
			}
			list[prefixReason{p, reason{source{of: s.Ref()}, s.Ref()}}] = speaker.Announcement{Communities: c.communities(p)}
		}
	}
	add(s.ClusterIPs, c.clusterIPs, false)
	add(s.ExternalIPs, c.externalIPs, false)
	add(s.LoadBalancerIPs, c.loadBalancerIPs, c.config.EachLoadBalancerIP)
	return list
}

// ready reports whether a Service has a ready endpoint of a family on this node.
func (c *Compiler) ready(v *store.View, s *model.Service, is4 bool) bool {
	for _, slice := range v.Slices(s.Name) {
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; e.Ready && e.Node == c.cfg.Node && e.Addr.Is4() == is4 {
				return true
			}
		}
	}
	return false
}
