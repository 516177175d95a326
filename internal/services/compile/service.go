package compile

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// affected returns the services to compile anew: those that are dirty, and those to which a change
// of the environment matters.
func (c *Compiler) affected(v *store.View, dirty map[model.Name]struct{}, everything bool, addrs map[netip.Addr]bool) map[model.Name]struct{} {
	switch {
	case everything:
		dirty = v.Services()
	case len(addrs) > 0:
		dirty = maps.Clone(dirty)
	default:
		return dirty
	}
	for name, s := range c.all {
		if everything || c.env.wants(s.svc, addrs) {
			dirty[name] = struct{}{}
		}
	}
	return dirty
}

// flush returns what differs from the last flush.
func (c *Compiler) flush() state.ServicesDelta {
	c.builder = builder{} // it holds on to objects, and its scratch may be large
	return state.ServicesDelta{
		Frontends: c.frontends.changes.Flush(), ClusterIPs: c.clusterIPs.Flush(), OtherIPs: c.otherIPs.Flush(), Hairpins: c.hairpins.Flush(), Peers: c.env.peers.Flush(),
	}
}

// set compiles one service anew and puts the result in place of the old, as far as there is room
// for: see proceed.
func (c *Compiler) set(v *store.View, name model.Name, room int) (spent, left int) {
	old, next := cmp.Or(c.all[name], none), (*service)(nil)
	if svc := v.Service(name); svc != nil {
		next = c.compile(v, svc, old)
	} else if delete(c.faults, name); old == none {
		return 0, 0
	} else {
		next = &service{svc: &model.Service{Name: name}, gone: true}
	}
	c.limits.account(next, old)
	next.standing = old.stands()
	c.all[name] = next
	next.former = old
	c.count(next, 1)
	c.settleHealth(name, old.health, lesser(old.health, next.health))
	compiled := 1 + next.elements/compilingCost
	spent, left = c.proceed(name, max(room-compiled, 1))
	return spent + compiled, left
}

// count counts what a service has of addresses and kinds of frontends, once up and once down: all
// of a state's frontends are of services that are counted.
func (c *Compiler) count(s *service, by int) {
	change := (*diff.Set[netip.Addr]).Add
	if by < 0 {
		change = (*diff.Set[netip.Addr]).Remove
	}
	for _, a := range s.addresses() {
		change(&c.clusterIPs, a)
	}
	for _, a := range s.others() {
		change(&c.otherIPs, a)
	}
	for _, a := range s.hairpins {
		change(&c.hairpins, a)
	}
	for family, is4 := range [...]bool{true, false} {
		c.nodePorts[family] += by * one(s.hasNodePort(is4))
	}
}

// service is what was compiled from one service.
type service struct {
	svc      *model.Service
	why      string                       // why nothing is programmed; empty where something is
	addrs    [state.NodePort][]netip.Addr // those it may have, by kind; none where nothing is programmed
	claims   []frontendClaim              // sorted by key, unique
	hairpins []netip.Addr                 // of the backends on this node, sorted, unique
	health   *HealthCheck
	counts   Counts
	asked    int // elements that it would come to in the kernel, about; 0 if it is refused by itself
	elements int // that it comes to

	gone    bool // there is no such service any more
	settled bool // the state has the claims
	// Until then: those that it has, and the version before, of which they may be.
	standing []frontendClaim
	former   *service
}

// none is before a service comes: it wants nothing.
var none = &service{svc: &model.Service{}, settled: true}

// frontendClaim is what a service wants at one frontend key.
type frontendClaim struct {
	key      state.FrontendKey
	port     int32 // index of the service port
	frontend *state.Frontend
}

// stands returns the claims that the state has.
func (s *service) stands() []frontendClaim {
	if s.settled {
		return s.claims
	}
	return s.standing
}

// claim returns what the service wants at key, nil for nothing.
func (s *service) claim(key state.FrontendKey) *state.Frontend {
	i, found := slices.BinarySearchFunc(s.claims, key, func(cl frontendClaim, k state.FrontendKey) int {
		return cl.key.Compare(k)
	})
	if !found {
		return nil
	}
	return s.claims[i].frontend
}

// addresses are the cluster IPs, where undefined ports are to be rejected.
func (s *service) addresses() []netip.Addr {
	if s.why != "" {
		return nil
	}
	return s.addrs[state.ClusterIP]
}

// others are the addresses of a service that another program serves.
func (s *service) others() []netip.Addr {
	if s.svc.Unproxied == "" {
		return nil
	}
	var list []netip.Addr
	for _, a := range s.svc.ClusterIPs {
		if a = a.Unmap(); model.Unusable(a) == "" {
			list = append(list, a)
		}
	}
	return list
}

// hasNodePort reports whether the service has node ports of a family.
func (s *service) hasNodePort(is4 bool) bool {
	return s.why == "" && familiesOf(s.svc).serves(is4) &&
		slices.ContainsFunc(s.svc.Ports, func(p model.ServicePort) bool { return p.NodePort != 0 })
}

// keep reuses the frontends of old that are as wanted now.
func (s *service) keep(old *service) {
	for i, cl := range s.claims {
		if f := old.claim(cl.key); f != nil && f.Equal(cl.frontend) {
			s.claims[i].frontend = f
		}
	}
}

// lists are those of a frontend.
type lists [4][]netip.AddrPort

// byPort returns the lists that the frontends of each service port have.
func (s *service) byPort() map[int32][]lists {
	all := map[int32][]lists{}
	for _, cl := range s.claims {
		has, next := all[cl.port], lists{cl.frontend.Backends, cl.frontend.Local, cl.frontend.Alive, cl.frontend.Serving}
		if len(has) == 0 || !slices.EqualFunc(has[len(has)-1][:], next[:], identical) {
			all[cl.port] = append(has, next)
		}
	}
	return all
}

// share replaces lists by equal ones of those that there are, so that each is held once.
func (ch *choice) share(have []lists) {
	for _, one := range have {
		for _, old := range one {
			for _, list := range [...]*[]netip.AddrPort{&ch.cluster, &ch.local, &ch.alive, &ch.serving} {
				if !identical(*list, old) && slices.Equal(*list, old) {
					*list = old
				}
			}
		}
	}
}

// identical reports whether two lists are one.
func identical(a, b []netip.AddrPort) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
