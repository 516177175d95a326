package compile

import "sluice.dev/sluice/internal/model"

// objects are those that say what a service's endpoints are.
type objects struct {
	slices []*model.EndpointSlice // sorted by name
	pods   []*model.Pod           // sorted by name: those that the service selects
	ports  []portSource           // by the index of the service's port
	sliced [2]bool                // whether there are slices, of IPv4 and IPv6
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

// newObjects sorts the ports of slices by those of the service: to search all of them for each
// would cost their product.
func newObjects(svc *model.Service, list []*model.EndpointSlice, pods []*model.Pod) *objects {
	o := &objects{slices: list, pods: pods, ports: make([]portSource, len(svc.Ports))}
	for _, pod := range pods {
		for _, a := range pod.IPs {
			o.bare[one(!a.Unmap().Is4())]++
		}
	}
	for _, slice := range list {
		of4, of6 := decidesOn(slice)
		o.sliced[0], o.sliced[1] = o.sliced[0] || of4, o.sliced[1] || of6
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

// count is about how many endpoints of each family the service's port of that index has. It is
// never too low.
func (o *objects) count(port int) [2]int {
	count := o.ports[port].endpoints
	for family, sliced := range o.sliced {
		if !sliced {
			count[family] = o.bare[family]
		}
	}
	return count
}

// decidesOn returns the families that a slice decides on: that of its endpoints, or both where it
// has none, as nothing says which it is for.
func decidesOn(slice *model.EndpointSlice) (of4, of6 bool) {
	for i := range slice.Endpoints {
		if a := slice.Endpoints[i].Addr.Unmap(); model.Unusable(a) == "" {
			return a.Is4(), !a.Is4()
		}
	}
	return true, true
}
