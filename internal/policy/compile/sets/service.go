package sets

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/lib/fair"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Endpoints and ports of a Service multiply, so that a small object could ask for all memory. An
// endpoint counts once for each of its ports.
const (
	maxEndpoints         = 1 << 16 // of a Service that rules name
	maxEndpointsTogether = 1 << 20 // of all Services that rules name which apply to anything here
)

// Services are the Services that rules name. A Service is known while a set of its endpoints is
// held: that of their addresses, for sources, or that of their addresses at its ports.
type Services struct {
	Each, Together int // the constants, but in tests

	view    *store.View // of the present update
	known   map[model.Name]*service
	addrs   shared[model.Name, serviceAddrs, *serviceAddrs]
	ports   *portNames
	changed bool // what all come to
	stale   bool // some are
}

// service is a Service that rules name.
type service struct {
	name      model.Name
	endpoints []state.NamedPort // sorted and unique; Port 0 is an endpoint without ports
	count     int               // of its endpoints, as its objects list them
	refused   bool              // it has too many, by itself or with others: its sets are empty
	stale     bool              // it was refused, or was not, when rules were written
}

// serviceAddrs holds the addresses of a Service's endpoints.
type serviceAddrs struct {
	dynamic[netip.Addr]
	of *service
}

func (a *serviceAddrs) name(name model.Name) {
	a.of, a.key = &service{name: name}, "endpoints of service "+name.String()
}

func (a *serviceAddrs) under() model.Name { return a.of.name }

// hold holds the addresses of a Service's endpoints. It returns the cost in elements, too.
func (ss *Services) hold(name model.Name) (a *serviceAddrs, cost int) {
	a, created := ss.addrs.hold(name)
	if created {
		a.of, cost = ss.know(name)
		a.of.fill(a, nil, true)
	}
	return a, cost
}

// holdPorts holds the addresses of a Service's endpoints at its ports. It returns the cost, too.
func (ss *Services) holdPorts(name model.Name) (n *namedPorts, cost int) {
	n, created := ss.ports.shared.hold(namedPort{service: name})
	if created {
		n.service, cost = ss.know(name)
		n.service.fill(nil, n, true)
	}
	return n, cost
}

// know returns a Service that is known from now on. Whether there is room for it in all is judged
// later.
func (ss *Services) know(name model.Name) (s *service, cost int) {
	s = ss.known[name]
	if s == nil {
		s = &service{name: name}
		ss.known[name] = s
		cost = ss.read(s)
	}
	return s, cost
}

// read reads the endpoints of a Service anew.
func (ss *Services) read(s *service) (cost int) {
	s.endpoints, s.count = endpointsOf(ss.view, s.name, ss.Each)
	s.refused = s.count > ss.Each
	ss.changed = true
	return len(s.endpoints)
}

// fill puts the endpoints into sets, of which either may be nil, or takes them out.
func (s *service) fill(addrs *serviceAddrs, ports *namedPorts, in bool) {
	if s.refused {
		return
	}
	for _, e := range s.endpoints {
		if addrs != nil {
			addrs.set(e.Addr, in)
		}
		if ports != nil && e.Port != 0 {
			ports.set(e, in)
		}
	}
}

// change changes a Service, and its sets with it.
func (ss *Services) change(s *service, by func()) {
	addrs, ports, was := ss.addrs.all[s.name], ss.ports.all[namedPort{service: s.name}], s.refused
	s.fill(addrs, ports, false)
	by()
	s.fill(addrs, ports, true)
	if addrs != nil {
		ss.addrs.touch(addrs)
	}
	if ports != nil {
		ss.ports.touch(ports)
	}
	if s.refused != was {
		s.stale, ss.stale = true, true
	}
}

// follow follows the Services of which some changed, or endpoints of theirs. It returns the cost in
// elements.
func (ss *Services) follow(dirty map[model.Name]struct{}) (cost int) {
	if len(ss.known) == 0 {
		return 0
	}
	for name := range dirty {
		if s := ss.known[name]; s != nil {
			ss.change(s, func() { cost += ss.read(s) })
		}
	}
	return cost
}

// judge says which Services are refused: those with too many endpoints and, where all have too many
// together, those whose turn comes last.
func (ss *Services) judge() {
	if !ss.changed {
		return
	}
	ss.changed = false
	total, some := 0, make([]*service, 0, len(ss.known))
	for _, s := range ss.known {
		if s.count <= ss.Each {
			some, total = append(some, s), total+s.count
		}
	}
	if total > ss.Together {
		some = fair.Turns(some,
			func(s *service) string { return s.name.Namespace },
			func(s *service) iter.Seq2[string, int] { return maps.All(map[string]int{s.name.Name: s.count}) },
			func(a, b *service) int { return a.name.Compare(b.name) })
	}
	total = 0
	for _, s := range some {
		refused := total+s.count > ss.Together
		if !refused {
			total += s.count
		}
		if refused != s.refused {
			ss.change(s, func() { s.refused = refused })
		}
	}
}

// sweep forgets the Services of which nobody holds a set any more, and ends these sets.
func (ss *Services) sweep() {
	ended := map[model.Name]struct{}{}
	for a := range ss.addrs.touched {
		ended[a.of.name] = struct{}{}
	}
	for n := range ss.ports.touched {
		if n.service != nil {
			ended[n.service.name] = struct{}{}
		}
	}
	ss.addrs.sweep()
	ss.ports.sweep()
	for name := range ended {
		if ss.addrs.all[name] == nil && ss.ports.all[namedPort{service: name}] == nil {
			delete(ss.known, name)
			ss.changed = true
		}
	}
}

// publish writes addresses to the table of groups, among which they are.
func (ss *Services) publish(table *memberTable[netip.Addr]) {
	ss.addrs.publish(func(a *serviceAddrs) { table.publish(&a.dynamic) })
	if ss.stale {
		for _, s := range ss.known {
			s.stale = false
		}
		ss.stale = false
	}
}

// services yields the Services that the rules name, some perhaps twice.
func (rs *Rules) services(yield func(*service) bool) {
	for _, a := range rs.addrs {
		if !yield(a.of) {
			return
		}
	}
	for _, n := range rs.named {
		if n.service != nil && !yield(n.service) {
			return
		}
	}
}

// Refused says why rules allow nothing that name a Service with too many endpoints; "": they name
// none.
func (s *Sets) Refused(rs *Rules) string {
	for svc := range rs.services {
		if svc.refused {
			return s.Services.tooManyEndpoints(svc)
		}
	}
	return ""
}

// tooManyEndpoints says why a policy that was read is not applied.
func (ss *Services) tooManyEndpoints(s *service) string {
	if s.count > ss.Each {
		return fmt.Sprintf("its rules name Service %s, which has %d endpoints, one for each port counted, and may have %d; it allows nothing until then: select its pods by their labels", s.name, s.count, ss.Each)
	}
	return fmt.Sprintf("the Services that the rules of all policies name which apply here have more than %d endpoints, one for each port counted, and those of Service %s are among the most of them; it allows nothing until then: select its pods by their labels", ss.Together, s.name)
}

// Endpoints returns the endpoints of a Service as rules that name it have them, sorted and unique:
// each address at each port of its own, and once with port 0.
func Endpoints(v *store.View, service model.Name) []state.NamedPort {
	list, _ := endpointsOf(v, service, math.MaxInt)
	return list
}

// endpointsOf returns the endpoints of a Service in any condition, and how many its objects list;
// none where these are more than the limit. They are those of its slices, and of its pods for a
// family that has no slice yet.
func endpointsOf(v *store.View, name model.Name, limit int) (list []state.NamedPort, count int) {
	svc := v.NamedService(name)
	if svc == nil {
		return nil, 0
	}
	own, pods := v.Slices(name), v.Selected(svc)
	for _, slice := range own {
		count += len(slice.Endpoints) * max(1, len(slice.Ports))
	}
	sliced := map[bool]bool{} // families, by whether it is IPv4
	for _, slice := range own {
		if len(slice.Endpoints) == 0 { // nothing says of which family it is
			sliced[true], sliced[false] = true, true
		} else {
			sliced[slice.Endpoints[0].Addr.Unmap().Is4()] = true
		}
	}
	if len(sliced) == 2 {
		pods = nil
	}
	for _, pod := range pods {
		count += len(pod.IPs) * max(1, len(svc.Ports))
	}
	if count > limit {
		return nil, count
	}
	add := func(a netip.Addr, protocol model.Protocol, port uint16) {
		if a.IsValid() {
			list = append(list, state.NamedPort{Addr: objects.Plain(a), Protocol: protocol, Port: port})
		}
	}
	for _, slice := range own {
		for i := range slice.Endpoints {
			add(slice.Endpoints[i].Addr, 0, 0)
			for _, p := range slice.Ports {
				add(slice.Endpoints[i].Addr, p.Protocol, p.Port)
			}
		}
	}
	for _, pod := range pods {
		for _, a := range pod.IPs {
			if pod.Finished || sliced[a.Unmap().Is4()] {
				continue
			}
			add(a, 0, 0)
			for i := range svc.Ports {
				add(a, svc.Ports[i].Protocol, svc.Ports[i].On(pod))
			}
		}
	}
	slices.SortFunc(list, func(a, b state.NamedPort) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(list), count
}
