package compile

import (
	"fmt"
	"iter"

	"sluice.dev/sluice/internal/compile/fair"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// maxElements is what one Service may come to in the kernel. Its addresses, ports and endpoints multiply there, so that
// an object of a few kilobytes could ask for all memory. A port with 65,536 endpoints at three addresses is well within.
const maxElements = 1 << 19

// maxTogether is what all Services may come to. 150,000 pods of two families in two services each, one of them at three addresses, are less than half of it, with 10,000 services.
var maxTogether = fair.Bound{Most: 1 << 22, Again: 7 << 19}

// rangeNetworks is how many networks a source range becomes at the most, with lengths that are multiples of four.
const rangeNetworks = 8

// frontendElements is about how many a port at an address has beside those of its endpoints, and frontendCost what it counts where all
// Services are added up. It counts more, as the kernel visits each one whenever something that leads to a chain is added: decision 22.
const (
	frontendElements = 4
	frontendCost     = 16
)

// elements is about what a service with these endpoints comes to, and never too low: for each port at each address four,
// and one for each endpoint (one more where local ones are chosen apart, and one more with session affinity), and eight for
// each source range, as it becomes so many networks at the most. To count costs the sum of what is multiplied.
// cost is what they count where all Services are added up.
func (c *Compiler) elements(s *service, from *objects) (n, cost int) {
	var cluster, external, balancer, node [2]int
	for family, is4 := range [...]bool{true, false} {
		cluster[family] = len(inFamily(s.addrs[state.ClusterIP], is4))
		balancer[family] = len(inFamily(s.addrs[state.LoadBalancer], is4))
		external[family] = len(inFamily(s.addrs[state.ExternalIP], is4)) + balancer[family]
		node[family] = len(inFamily(c.node.nodePort, is4))
	}
	lists := 1 + one(s.svc.Affinity > 0)
	outer := lists + one(s.svc.ExternalLocal)
	for i := range s.svc.Ports {
		port := &s.svc.Ports[i]
		for family, endpoints := range from.count(i) {
			outside := external[family] + node[family]*one(port.NodePort != 0)
			backends := min(endpoints, maxBackends)
			elements := cluster[family]*(frontendElements+lists*backends) + outside*(frontendElements+outer*backends) + rangeNetworks*balancer[family]*len(s.svc.SourceRanges)
			n += max(elements, endpoints)
			cost += (cluster[family] + outside) * (frontendCost - frontendElements)
		}
	}
	return n, n + cost
}

// tooLarge says that nothing is programmed for the service.
func (r *report) tooLarge(s *service, from *objects, n int) {
	addrs := 0
	for _, list := range s.addrs {
		addrs += len(list)
	}
	r.service(fmt.Sprintf("%s, %s, %s and %s come to %d elements in the kernel; a Service may have %d, so nothing is programmed for it: part it into several",
		count(addrs, "address", "es"), count(len(s.svc.Ports), "port", "s"), count(from.size(), "endpoint", "s"), count(len(s.svc.SourceRanges), "source range", "s"), n, maxElements))
}

// tooMuch says the same where it is too much with others.
func (r *report) tooMuch(n, most int) {
	r.service(fmt.Sprintf("it counts for %d elements in the kernel; all Services may have %d, and those of its namespace are among those that ask for most, so nothing is programmed for it: ask for less", n, most))
}

// weigh decides which services may be programmed, where all come to too much: see fair.Turns. It returns those of which that has changed: who may
// be comes once there is room, when others have gone.
func (c *Compiler) weigh() (changed []model.Name) {
	if !c.reweigh {
		return nil
	}
	c.reweigh = false
	if len(c.denied) == 0 && c.asked <= c.maxTogether.Most {
		return nil
	}
	asking := make([]*service, 0, len(c.services))
	for _, s := range c.services {
		if s.asked > 0 {
			asking = append(asking, s)
		}
	}
	total, given := 0, c.given
	for _, s := range fair.Turns(asking,
		func(s *service) string { return s.svc.Name.Namespace },
		func(s *service) iter.Seq2[string, int] {
			return func(yield func(string, int) bool) { yield(s.svc.Name.Name, s.asked) }
		},
		func(a, b *service) int { return a.svc.Name.Compare(b.svc.Name) }) {
		name := s.svc.Name
		weighed, was := c.denied[name]
		if total+s.asked > c.maxTogether.Limit(weighed) {
			if c.denied[name] = true; !was {
				changed = append(changed, name)
			}
			continue
		}
		total += s.asked
		switch {
		case !was:
		case given+s.asked > c.maxTogether.Most:
			c.reweigh = true
		default:
			given += s.asked
			delete(c.denied, name)
			changed = append(changed, name)
		}
	}
	return changed
}

// fits notes what a service asks for, and reports whether there is room for it. If there is not, others may have to go for it. One that is served
// and grows goes on until that is decided, unless all would be beyond the limit by more than what one may have.
func (c *Compiler) fits(next, old *service, cost int) bool {
	next.asked = cost
	_, denied := c.denied[next.svc.Name]
	if cost == 0 {
		return true
	}
	most := c.maxTogether.Most
	if old.given() > 0 {
		most += maxElements
	}
	if !denied && c.given-old.given()+cost > most {
		c.denied[next.svc.Name] = false
		denied = true
	}
	return !denied
}

// account counts what a service asks for and has in place of its old version.
func (c *Compiler) account(next, old *service) {
	was := 0
	if old != nil {
		was = old.asked
	}
	c.asked += next.asked - was
	c.given += next.given() - old.given()
	if next.asked != was || next.asked != next.given() {
		c.reweigh = true
	}
	if next.asked == 0 {
		delete(c.denied, next.svc.Name)
	}
}

// given is what a service has of what it asked for: all or nothing.
func (s *service) given() int {
	if s == nil || s.elements == 0 {
		return 0
	}
	return s.asked
}

// count is a number of things, whose plural has the ending.
func count(n int, what, ending string) string {
	if n == 1 {
		ending = ""
	}
	return fmt.Sprint(n, " ", what, ending)
}

// objects are those that say what a service's endpoints are.
type objects struct {
	slices []*model.EndpointSlice // sorted by name
	pods   []*model.Pod           // sorted by name: those that the service selects
	ports  []portSource           // by the index of the service's port
	bare   [2]int                 // addresses of the pods, of IPv4 and IPv6, which serve all ports where there is no slice
}

// portKey is what a port of a service has in common with those of its slices.
type portKey struct {
	name     string
	protocol model.Protocol
}

// portSource is where the endpoints of a service's port come from.
type portSource struct {
	slices    []slicePort
	endpoints [2]int // in the slices, of IPv4 and IPv6, before what is double or at fault is left out
}

type slicePort struct {
	slice  *model.EndpointSlice
	number uint16
}

// fewPorts is how many ports of a service are told apart faster by looking at each.
const fewPorts = 4

// newObjects sorts the ports of slices by those of the service: to search all of them for each would cost their product.
func newObjects(svc *model.Service, list []*model.EndpointSlice, pods []*model.Pod) *objects {
	o := &objects{slices: list, pods: pods, ports: make([]portSource, len(svc.Ports))}
	for _, pod := range pods {
		for _, a := range pod.IPs {
			o.bare[one(!a.Unmap().Is4())]++
		}
	}
	add := func(port int, slice *model.EndpointSlice, number uint16) {
		from := &o.ports[port]
		from.slices = append(from.slices, slicePort{slice, number})
		from.endpoints[one(!isIPv4(slice))] += len(slice.Endpoints)
	}
	if len(svc.Ports) <= fewPorts {
		for _, slice := range list {
			for _, p := range slice.Ports {
				for i := range svc.Ports {
					if svc.Ports[i].Name == p.Name && svc.Ports[i].Protocol == p.Protocol {
						add(i, slice, p.Port)
					}
				}
			}
		}
		return o
	}
	first := make(map[portKey]int, len(svc.Ports))
	same := make([]int, len(svc.Ports)) // the first port of the same key
	for i := range svc.Ports {
		key := portKey{svc.Ports[i].Name, svc.Ports[i].Protocol}
		if _, known := first[key]; !known {
			first[key] = i
		}
		same[i] = first[key]
	}
	for _, slice := range list {
		for _, p := range slice.Ports {
			if i, known := first[portKey{p.Name, p.Protocol}]; known {
				add(i, slice, p.Port)
			}
		}
	}
	for i, as := range same {
		o.ports[i] = o.ports[as]
	}
	return o
}

// size is about how many endpoints they give each service port.
func (o *objects) size() int {
	n := len(o.pods)
	for _, slice := range o.slices {
		n += len(slice.Endpoints)
	}
	return n
}

// count is about how many endpoints of each family the service's port of that index has. It is never too low.
func (o *objects) count(port int) [2]int {
	if len(o.slices) > 0 {
		return o.ports[port].endpoints
	}
	return o.bare
}
