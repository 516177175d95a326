package compile

import (
	"fmt"
	"iter"

	"sluice.dev/sluice/internal/lib/fair"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// maxElements is what one Service may come to in the kernel. Its addresses, ports and endpoints
// multiply there, so that an object of a few kilobytes could ask for all memory. A port with 65,536
// endpoints at three addresses is well within.
const maxElements = 1 << 19

// maxTogether is what all Services may come to. 150,000 pods of two families in two services each,
// one of them at three addresses, are less than half of it, with 10,000 services.
var maxTogether = fair.Bound{Most: 1 << 22, Again: 7 << 19}

// rangeNetworks is how many networks a source range becomes at the most, with lengths that are
// multiples of four.
const rangeNetworks = 8

// frontendElements is about how many a port at an address has beside those of its endpoints, and
// frontendCost what it counts where all Services are added up. It counts more, as the kernel visits
// each one whenever something that leads to a chain is added: decision 22.
const (
	frontendElements = 4
	frontendCost     = 16
)

// elements is about what the service comes to, and never too low: for each port at each address
// four, and one for each endpoint (one more where local ones are chosen apart, and one more with
// session affinity), and eight for each source range, as it becomes so many networks at the most.
// To count costs the sum of what is multiplied. Cost is what they count where all Services are
// added up.
func (b *builder) elements() (n, cost int) {
	s, from := b.next, b.from
	var cluster, external, balancer, node [2]int
	for family, is4 := range [...]bool{true, false} {
		cluster[family] = len(inFamily(s.addrs[state.ClusterIP], is4))
		balancer[family] = len(inFamily(s.addrs[state.LoadBalancer], is4))
		external[family] = len(inFamily(s.addrs[state.ExternalIP], is4)) + balancer[family]
		node[family] = len(inFamily(b.node.nodePort, is4))
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
func (b *builder) tooLarge(n int) {
	s, from := b.next, b.from
	addrs := 0
	for _, list := range s.addrs {
		addrs += len(list)
	}
	b.service(fmt.Sprintf("%s, %s, %s and %s come to %d elements in the kernel; a Service may have %d, so nothing is programmed for it: part it into several",
		model.Count(addrs, "address"), model.Count(len(s.svc.Ports), "port"), model.Count(from.size(), "endpoint"), model.Count(len(s.svc.SourceRanges), "source range"), n, maxElements))
}

// limits bound what all services may come to.
type limits struct {
	together     fair.Bound          // the constant, but in tests
	asked, given int                 // elements that all services ask for, and that they have
	denied       map[model.Name]bool // those for which there is no room; true: in their turn, false: when they came
	reweigh      bool                // others may have room since the last update
}

// weigh decides which services may be programmed where all together ask for too much: see
// fair.Turns. It returns those whose answer has changed: one that may be programmed now comes once
// others have gone and there is room.
func (l *limits) weigh(services map[model.Name]*service) (changed []model.Name) {
	if !l.reweigh {
		return nil
	}
	l.reweigh = false
	if len(l.denied) == 0 && l.asked <= l.together.Most {
		return nil
	}
	asking := make([]*service, 0, len(services))
	for _, s := range services {
		if s.asked > 0 {
			asking = append(asking, s)
		}
	}
	total, given := 0, l.given
	for _, s := range fair.Turns(asking,
		func(s *service) string { return s.svc.Name.Namespace },
		func(s *service) iter.Seq2[string, int] {
			return func(yield func(string, int) bool) { yield(s.svc.Name.Name, s.asked) }
		},
		func(a, b *service) int { return a.svc.Name.Compare(b.svc.Name) }) {
		name := s.svc.Name
		weighed, was := l.denied[name]
		if total+s.asked > l.together.Limit(weighed) {
			if l.denied[name] = true; !was {
				changed = append(changed, name)
			}
			continue
		}
		total += s.asked
		switch {
		case !was:
		case given+s.asked > l.together.Most:
			l.reweigh = true
		default:
			given += s.asked
			delete(l.denied, name)
			changed = append(changed, name)
		}
	}
	return changed
}

// fits notes what a service asks for, and reports whether there is room for it. If there is not,
// others may have to go for it. One that is served and grows goes on until that is decided, unless
// all would be beyond the limit by more than what one may have.
func (l *limits) fits(next, old *service, cost int) bool {
	next.asked = cost
	_, denied := l.denied[next.svc.Name]
	if cost == 0 {
		return true
	}
	most := l.together.Most
	if old.given() > 0 {
		most += maxElements
	}
	if !denied && l.given-old.given()+cost > most {
		l.denied[next.svc.Name] = false
		denied = true
	}
	return !denied
}

// account counts what a service asks for and has in place of its old version.
func (l *limits) account(next, old *service) {
	l.asked += next.asked - old.asked
	l.given += next.given() - old.given()
	if next.asked != old.asked || next.asked != next.given() {
		l.reweigh = true
	}
	if next.asked == 0 {
		delete(l.denied, next.svc.Name)
	}
}

// given is what a service has of what it asked for: all or nothing.
func (s *service) given() int {
	if s.elements == 0 {
		return 0
	}
	return s.asked
}
