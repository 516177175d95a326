package objects

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Item is one version of something that selectors select: a pod with addresses of its own, a
// network set or a host endpoint.
type Item struct {
	Pod  *model.Pod
	Set  *model.NetworkSet // also of a host endpoint, if it has many addresses
	Host *model.HostEndpoint

	ports  []model.ContainerPort // of the pod, sorted by name
	Labels *Labels               // those of its class, once it has one
	Class  *Class
	Addrs  []netip.Addr // what it adds to the groups that select it
	Local  bool         // a pod or host endpoint of this node
}

// newPod returns nil for a pod that has no address of its own: it is on its host's network, has
// finished or has no address yet.
func (o *Objects) newPod(pod *model.Pod) *Item {
	if pod == nil || pod.HostNetwork || pod.Finished {
		return nil
	}
	addrs := usable(pod.IPs)
	if len(addrs) == 0 {
		return nil
	}
	return &Item{
		Pod: pod, ports: byName(pod.Ports), Addrs: addrs, Local: pod.Node == o.node,
		Labels: podLabels(pod, o.namespaces[pod.Name.Namespace], o.accounts[accountOf(pod)]),
	}
}

func newSet(set *model.NetworkSet, around map[string]string) *Item {
	if set == nil {
		return nil
	}
	return &Item{Set: set, Labels: setLabels(set, around)}
}

// newHost gives a host endpoint with many addresses one list of them, rather than a copy to each
// group that selects it.
func (o *Objects) newHost(host *model.HostEndpoint) *Item {
	if host == nil {
		return nil
	}
	it := &Item{Host: host, Addrs: usable(host.Addresses), Local: host.Node == o.node, Labels: &Labels{own: host.Labels}}
	if len(it.Addrs) > o.many {
		it.Set = &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.HostEndpointKind, Name: model.Name{Name: host.Name}}}
		for _, a := range it.Addrs {
			it.Set.Nets = append(it.Set.Nets, netip.PrefixFrom(a, a.BitLen()))
		}
		it.Addrs = nil
	}
	return it
}

// selectedLike reports whether selectors and sets can't tell a pod from an older version of it.
func (it *Item) selectedLike(old *Item) bool {
	return it != nil && old != nil && it.Local == old.Local && it.Labels.account == old.Labels.account &&
		slices.Equal(it.Addrs, old.Addrs) && slices.Equal(it.Pod.Ports, old.Pod.Ports) &&
		maps.Equal(it.Labels.own, old.Labels.own) && maps.Equal(it.Labels.around, old.Labels.around) &&
		maps.Equal(it.Labels.identity, old.Labels.identity)
}

// Size is how many addresses it counts for where a selector selects it. What adds a list rather
// than addresses counts for one.
func (it *Item) Size() int { return max(1, len(it.Addrs)) }

// PortNames yields the names that it gives to ports, with what they stand for.
func (it *Item) PortNames(yield func(name string, at state.NamedPort) bool) {
	for _, p := range it.ports {
		for _, a := range it.Addrs {
			if p.Name != "" && p.Port != 0 && !yield(p.Name, state.NamedPort{Addr: a, Protocol: p.Protocol, Port: p.Port}) {
				return
			}
		}
	}
}

// PortsNamed are those of its ports that it gives a name.
func (it *Item) PortsNamed(name string) []model.ContainerPort {
	compare := func(p model.ContainerPort, name string) int { return strings.Compare(p.Name, name) }
	first, _ := slices.BinarySearchFunc(it.ports, name, compare)
	after, _ := slices.BinarySearchFunc(it.ports[first:], name+"\x00", compare)
	return it.ports[first : first+after]
}

// byName sorts ports by their names.
func byName(ports []model.ContainerPort) []model.ContainerPort {
	compare := func(a, b model.ContainerPort) int { return strings.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(ports, compare) {
		ports = slices.Clone(ports)
		slices.SortStableFunc(ports, compare)
	}
	return ports
}

// usable returns the valid ones of the addresses, sorted and without repetition.
func usable(addrs []netip.Addr) []netip.Addr {
	list := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		if a.IsValid() {
			list = append(list, Plain(a))
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// Plain returns the address as packets have it.
func Plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
