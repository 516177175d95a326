package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/lib/multimap"
	"sluice.dev/sluice/internal/model"
)

// sharing is what Services that share an address have in common. The zero value is that of those
// that share none.
type sharing struct {
	key      string
	backends string // with externalTrafficPolicy Local, the selector; otherwise ""
}

func sharingOf(s *model.Service) sharing {
	if s.LoadBalancer == nil || s.LoadBalancer.SharingKey == "" {
		return sharing{}
	}
	k := sharing{key: s.LoadBalancer.SharingKey}
	if s.ExternalLocal {
		for _, label := range slices.Sorted(maps.Keys(s.Selector)) {
			k.backends += label + "=" + s.Selector[label] + ","
		}
	}
	return k
}

// holders are the Services that have an address. Where there are several they share it.
type holders struct {
	services []*service
	ports    map[sharedPort]*service // of those that share
}

// sharedPort is one of an address.
type sharedPort struct {
	model.Protocol
	number uint16
}

// rival returns a Service that has an address and does not share it with s; nil: there is none.
func (c *Compiler) rival(s *service, a netip.Addr) *service {
	h := c.held[a]
	switch {
	case h == nil || len(h.services) == 1 && h.services[0] == s:
		return nil
	case s.key == (sharing{}) || s.key != h.services[0].key:
		return h.services[0]
	}
	for _, p := range s.Ports {
		if other := h.ports[sharedPort{p.Protocol, p.Port}]; other != nil && other != s {
			return other
		}
	}
	return nil
}

// hold has a Service hold addresses.
func (c *Compiler) hold(s *service, written bool, ips ...netip.Addr) {
	s.written = written || s.written && len(s.ips) > 0
	for _, a := range ips {
		s.ips = append(s.ips, a)
		h := c.held[a]
		if h == nil {
			h = &holders{}
			c.held[a] = h
			if p := c.poolOf(a); p != nil {
				p.used++
			}
		}
		h.services = append(h.services, s)
		if s.key == (sharing{}) {
			delete(c.freed, a)
			continue
		}
		if h.ports == nil {
			h.ports = map[sharedPort]*service{}
		}
		for _, p := range s.Ports {
			h.ports[sharedPort{p.Protocol, p.Port}] = s
		}
		multimap.Add(c.shared, s.key, a)
	}
	// The first is of the family of the first cluster IP.
	slices.SortStableFunc(s.ips, func(a, b netip.Addr) int {
		return slices.Index(families(s), a.Is4()) - slices.Index(families(s), b.Is4())
	})
}

// release takes back what a Service has.
func (c *Compiler) release(s *service, touched map[netip.Addr]bool) {
	for _, a := range s.ips {
		touched[a] = true
		h := c.held[a]
		h.services = slices.DeleteFunc(h.services, func(o *service) bool { return o == s })
		if len(h.services) > 0 {
			for _, p := range s.Ports {
				delete(h.ports, sharedPort{p.Protocol, p.Port})
			}
			c.freed[a] = true // for what may share it
			continue
		}
		delete(c.held, a)
		if p := c.poolOf(a); p != nil {
			p.used--
		}
		c.reopen(a)
		multimap.Remove(c.shared, s.key, a)
	}
	if len(s.ips) > 0 {
		s.before, s.ips = s.ips, nil
	}
}

// releaseAll takes back what all have; all pools follow.
func (c *Compiler) releaseAll(touched map[netip.Addr]bool) {
	for _, s := range c.services {
		if len(s.ips) > 0 {
			s.before, s.ips = s.ips, nil
		}
	}
	for a := range c.held {
		touched[a] = true
	}
	clear(c.held)
	clear(c.shared)
	clear(c.freed)
}

// families are those of the cluster IPs: whether each is IPv4.
func families(s *service) []bool {
	all := make([]bool, len(s.ClusterIPs))
	for i, a := range s.ClusterIPs {
		all[i] = a.Is4()
	}
	return all
}

// give gives addresses to Services that have none. First, Services keep the addresses in their
// status if they may; then Services get those that they ask for; then come all others. Older
// Services come first.
func (c *Compiler) give(list []*service, touched map[netip.Addr]bool) {
	slices.SortFunc(list, older)
	evicted := map[*service]bool{}
	for _, keep := range []func(*service) []netip.Addr{
		func(s *service) []netip.Addr { return s.LoadBalancer.Ingress },
		func(s *service) []netip.Addr { return s.before },
	} {
		for _, s := range list {
			if ips := c.candidates(s, keep); len(ips) > 0 {
				c.keep(s, ips, touched, evicted)
			}
		}
	}
	for s := range evicted {
		if len(s.ips) == 0 && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, older)
	for _, certain := range []bool{true, false} {
		for _, s := range list {
			if c.ours(s) && len(s.ips) == 0 && (len(s.LoadBalancer.IPs) > 0) == certain {
				c.assign(s)
			}
		}
	}
	for _, s := range list {
		c.complete(s)
	}
	for s := range evicted {
		c.settle(s)
	}
	for _, s := range list {
		s.before = nil
		for _, a := range s.ips {
			touched[a] = true
		}
	}
	c.retry(touched)
}

// candidates are the addresses of a Service without any that it may keep.
func (c *Compiler) candidates(s *service, of func(*service) []netip.Addr) []netip.Addr {
	if !c.ours(s) || len(s.ips) > 0 {
		return nil
	}
	return of(s)
}

// retry gives freed addresses to the Services that wait, the oldest first.
func (c *Compiler) retry(touched map[netip.Addr]bool) {
	if len(c.freed) == 0 {
		return
	}
	clear(c.freed)
	for _, s := range slices.SortedFunc(maps.Values(c.waiting), older) {
		if len(s.ips) == 0 {
			c.assign(s)
		}
		c.complete(s)
		for _, a := range s.ips {
			touched[a] = true
		}
		c.settle(s)
	}
}

// keep has a Service keep addresses, if it may have them. If another Service has one of them and
// does not share it, the one whose status has it wins, and of two such the older.
func (c *Compiler) keep(s *service, ips []netip.Addr, touched map[netip.Addr]bool, evicted map[*service]bool) {
	written := slices.Equal(ips, s.LoadBalancer.Ingress)
	known := slices.ContainsFunc(ips, func(a netip.Addr) bool { return c.poolOf(a) != nil })
	frozen := written && !known && (c.lacking || len(c.pools) == 0)
	if !frozen && c.check(s, ips) != "" {
		return
	}
	for _, a := range ips {
		for rival := c.rival(s, a); rival != nil; rival = c.rival(s, a) {
			if rival.written && (!written || older(rival, s) < 0) {
				return
			}
			if !rival.written && !written && older(rival, s) < 0 {
				return
			}
			c.release(rival, touched)
			evicted[rival] = true
		}
	}
	s.fault = ""
	c.hold(s, written, ips...)
}

// lacksFamily reports whether a Service that has an address should get one of the other family once
// its pool has one.
func (c *Compiler) lacksFamily(s *service) bool {
	return len(s.ips) == 1 && len(s.ClusterIPs) == 2 && len(s.LoadBalancer.IPs) == 0 && c.poolOf(s.ips[0]) != nil
}

// complete gives a Service the address of the family that it lacks, if there is one.
func (c *Compiler) complete(s *service) {
	if !c.lacksFamily(s) {
		return
	}
	if more := c.pick(s, c.poolOf(s.ips[0]), !s.ips[0].Is4()); more.IsValid() {
		c.hold(s, false, more)
	}
}

// check says why a Service may not have addresses, whoever has them; "": it may.
func (c *Compiler) check(s *service, ips []netip.Addr) string {
	lb := s.LoadBalancer
	if lb.Fault != "" {
		return lb.Fault
	}
	if len(lb.IPs) > 0 && !sameSet(ips, lb.IPs) {
		return "it asks for others"
	}
	for _, a := range ips {
		p := c.poolOf(a)
		switch {
		case p == nil:
			return fmt.Sprintf("%s is in no IPAddressPool", a)
		case c.nodeOf(a, s) != "":
			return fmt.Sprintf("%s is an address of Node %s", a, c.nodeOf(a, s))
		case lb.Pool != "" && p.Name.Name != lb.Pool:
			return fmt.Sprintf("%s is in IPAddressPool %s, and it asks for one of %s", a, p.Name, lb.Pool)
		case !p.permits(s):
			return fmt.Sprintf("%s is in IPAddressPool %s, whose serviceAllocation does not select it", a, p.Name)
		case p.avoids(a):
			return fmt.Sprintf("IPAddressPool %s avoids %s (avoidBuggyIPs)", p.Name, a)
		}
	}
	return fits(s, ips)
}

// fits says why addresses are not of the families that a Service needs; "": they are.
func fits(s *service, ips []netip.Addr) string {
	need := families(s)
	for i, a := range ips {
		if !slices.Contains(need, a.Is4()) || i > 0 && ips[0].Is4() == a.Is4() {
			return fmt.Sprintf("%s is not of the family of its cluster IPs, %s", a, model.Join(s.ClusterIPs, ", "))
		}
	}
	if len(ips) < len(need) && (!s.LoadBalancer.PreferDualStack || len(s.LoadBalancer.IPs) > 0) {
		return "it needs an address of each family"
	}
	return ""
}

func sameSet(a, b []netip.Addr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x netip.Addr) bool { return !slices.Contains(b, x) })
}

// pick returns an address of a family that a Service gets from a pool: one that it shares if there
// is one, otherwise the lowest that is free. The zero Addr: there is none.
func (c *Compiler) pick(s *service, p *pool, is4 bool) (best netip.Addr) {
	for a := range c.shared[s.key] {
		if a.Is4() == is4 && c.poolOf(a) == p && !p.avoids(a) && (!best.IsValid() || a.Less(best)) && c.rival(s, a) == nil {
			best = a
		}
	}
	if best.IsValid() {
		return best
	}
	return c.free(p, is4)
}

// assign gives a Service addresses that are free, or says why it gets none.
func (c *Compiler) assign(s *service) {
	s.fault = ""
	lb := s.LoadBalancer
	switch {
	case lb.Fault != "":
		s.fault = lb.Fault
	case len(s.ClusterIPs) == 0:
		s.fault = "it gets no address, as it has no cluster IP"
	case len(c.pools) == 0:
		s.fault = "it gets no address: there is no IPAddressPool"
	case len(lb.IPs) > 0:
		c.assignAsked(s)
	default:
		c.assignAny(s)
	}
}

// assignAsked gives a Service the addresses that it asks for.
func (c *Compiler) assignAsked(s *service) {
	ips := s.LoadBalancer.IPs
	if why := c.check(s, ips); why != "" {
		s.fault = "it gets no address: " + why
		return
	}
	for _, a := range ips {
		if r := c.innerOf(a); r != nil {
			s.fault = fmt.Sprintf("it asks for %s, which is in %s (%s); ask for another", a, r.AddressRange, r.what)
			return
		}
		if rival := c.rival(s, a); rival != nil {
			s.fault = fmt.Sprintf("it asks for %s, which Service %s has; Services share an address if both have the same annotation metallb.io/allow-shared-ip, other ports, and externalTrafficPolicy Cluster or the same selector", a, rival.Name)
			return
		}
	}
	c.hold(s, false, ips...)
}

// assignAny gives a Service addresses of the first pool that has one of each family. Where one
// family will do, the first cluster IP's comes first.
func (c *Compiler) assignAny(s *service) {
	need := families(s)
	var some []netip.Addr
	var tried []*pool
	for _, p := range c.pools {
		if s.LoadBalancer.Pool != "" && p.Name.Name != s.LoadBalancer.Pool || s.LoadBalancer.Pool == "" && p.ManualOnly || !p.permits(s) {
			continue
		}
		tried = append(tried, p)
		var ips []netip.Addr
		for _, is4 := range need {
			if a := c.pick(s, p, is4); a.IsValid() {
				ips = append(ips, a)
			}
		}
		if len(ips) == len(need) {
			c.hold(s, false, ips...)
			return
		}
		if len(ips) == 1 && (some == nil || ips[0].Is4() == need[0] && some[0].Is4() != need[0]) {
			some = ips
		}
	}
	if some != nil && s.LoadBalancer.PreferDualStack {
		c.hold(s, false, some...)
		return
	}
	s.fault = c.noneFree(s, tried)
}

// maxNamed bounds how many pools are named.
const maxNamed = 3

// noneFree says why no pool has an address for a Service.
func (c *Compiler) noneFree(s *service, tried []*pool) string {
	want := map[bool]string{true: "IPv4", false: "IPv6"}
	var names []string
	for _, is4 := range families(s) {
		names = append(names, want[is4])
	}
	what := strings.Join(names, " and ") + " address"
	if len(tried) == 0 {
		if s.LoadBalancer.Pool != "" {
			return fmt.Sprintf("it gets no address: there is no IPAddressPool %s, or its serviceAllocation does not select it", s.LoadBalancer.Pool)
		}
		return "it gets no address: no IPAddressPool with autoAssign selects it"
	}
	var list []string
	for _, p := range tried[:min(len(tried), maxNamed)] {
		list = append(list, fmt.Sprintf("%s (%d given out)", p.Name, p.used))
	}
	if more := len(tried) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("it gets no address: none of %s has a free %s; add addresses to one", strings.Join(list, ", "), what)
}
