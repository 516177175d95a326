package compile

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// manyAddresses are so many that a list of them, which costs each rule that selects it a look-up,
// costs less than a copy for each group.
const manyAddresses = lookupSize

// item is one version of something that selectors select: a pod with addresses of its own, a
// network set or a host endpoint.
type item struct {
	pod  *model.Pod
	set  *model.NetworkSet // also of a host endpoint, if it has many addresses
	host *model.HostEndpoint

	ports  []model.ContainerPort // of the pod, sorted by name
	labels *labels               // those of its class, once it has one
	class  *class
	addrs  []netip.Addr // what it adds to the groups that select it
	local  bool         // a pod of this node
}

// newPod returns nil for a pod that has no address of its own: it is on its host's network, has
// finished or has no address yet.
func (o *objects) newPod(pod *model.Pod) *item {
	if pod == nil || pod.HostNetwork || pod.Finished {
		return nil
	}
	addrs := usable(pod.IPs)
	if len(addrs) == 0 {
		return nil
	}
	return &item{
		pod: pod, ports: byName(pod.Ports), addrs: addrs, local: pod.Node == o.node,
		labels: &labels{
			own: pod.Labels, pod: true,
			namespace: pod.Name.Namespace, around: o.namespaces[pod.Name.Namespace],
			account:  pod.ServiceAccount,
			identity: o.accounts[model.Name{Namespace: pod.Name.Namespace, Name: pod.ServiceAccount}],
		},
	}
}

func newSet(set *model.NetworkSet, around map[string]string) *item {
	if set == nil {
		return nil
	}
	return &item{set: set, labels: &labels{own: set.Labels, namespace: set.Key.Name.Namespace, around: around}}
}

// newHost gives a host endpoint with many addresses one list of them, rather than a copy to each
// group that selects it.
func newHost(host *model.HostEndpoint) *item {
	if host == nil {
		return nil
	}
	it := &item{host: host, addrs: usable(host.Addresses), labels: &labels{own: host.Labels}}
	if len(it.addrs) > manyAddresses {
		it.set = &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.HostEndpointKind, Name: model.Name{Name: host.Name}}}
		for _, a := range it.addrs {
			it.set.Nets = append(it.set.Nets, netip.PrefixFrom(a, a.BitLen()))
		}
		it.addrs = nil
	}
	return it
}

// selectedLike reports whether selectors and sets can't tell a pod from an older version of it.
func (it *item) selectedLike(old *item) bool {
	return it != nil && old != nil && it.local == old.local && it.labels.account == old.labels.account &&
		slices.Equal(it.addrs, old.addrs) && slices.Equal(it.pod.Ports, old.pod.Ports) &&
		maps.Equal(it.labels.own, old.labels.own) && maps.Equal(it.labels.around, old.labels.around) &&
		maps.Equal(it.labels.identity, old.labels.identity)
}

// size is how many addresses it counts for where a selector selects it. What adds a list rather
// than addresses counts for one.
func (it *item) size() int { return max(1, len(it.addrs)) }

// portNames yields the names that it gives to ports, with what they stand for.
func (it *item) portNames(yield func(name string, at state.NamedPort) bool) {
	for _, p := range it.ports {
		for _, a := range it.addrs {
			if p.Name != "" && p.Port != 0 && !yield(p.Name, state.NamedPort{Addr: a, Protocol: p.Protocol, Port: p.Port}) {
				return
			}
		}
	}
}

// portsNamed are those of its ports that it gives a name.
func (it *item) portsNamed(name string) []model.ContainerPort {
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
			list = append(list, plain(a))
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// plain returns the address as packets have it.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
