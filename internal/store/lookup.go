package store

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// ServicesAt returns the services that have an address, and those that have a node port. It looks
// through all.
func (v *View) ServicesAt(addr netip.Addr, nodePort uint16) (found []*model.Service) {
	for _, svc := range v.services {
		has := slices.ContainsFunc(svc.Ports, func(p model.ServicePort) bool { return p.NodePort != 0 && p.NodePort == nodePort })
		for _, addrs := range [][]netip.Addr{svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs} {
			has = has || slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Unmap() == addr })
		}
		if has {
			found = append(found, svc)
		}
	}
	return found
}

// NodeNames returns the names of all nodes, sorted.
func (v *View) NodeNames() []string {
	names := make([]string, 0, len(v.objects[model.NodeKind]))
	for name := range v.objects[model.NodeKind] {
		names = append(names, name.Name)
	}
	slices.Sort(names)
	return names
}

// AddressLists returns the number of entries of each address list, by its name.
func (v *View) AddressLists() map[string]int {
	n := map[string]int{}
	for name, set := range v.objects[model.AddressList] {
		n[name.Name] = len(set.(*model.NetworkSet).Nets)
	}
	return n
}

// Policies returns the policies of all kinds, in no order.
func (v *View) Policies() []*model.Policy { return all[model.Policy](v, model.PolicyKinds...) }

// NetworkSets returns the network sets of all kinds, in no order.
func (v *View) NetworkSets() []*model.NetworkSet {
	return all[model.NetworkSet](v, model.NetworkSetKinds...)
}

// HostEndpoints returns all host endpoints, sorted by name.
func (v *View) HostEndpoints() []*model.HostEndpoint {
	list := all[model.HostEndpoint](v, model.HostEndpointKind)
	slices.SortFunc(list, func(a, b *model.HostEndpoint) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// IPPools returns all pools of pods' addresses, in no order.
func (v *View) IPPools() []*model.IPPool {
	return slices.DeleteFunc(all[model.IPPool](v, model.IPPoolKind), func(p *model.IPPool) bool { return p.OfServices })
}

// BlockAffinity returns one, nil if there is none of the name.
func (v *View) BlockAffinity(name string) *model.BlockAffinity {
	b, _ := v.objects[model.BlockAffinityKind][model.Name{Name: name}].(*model.BlockAffinity)
	return b
}

// Attachments returns the attachments of this node's pods, the newest interface last.
func (v *View) Attachments() []*model.Attachment {
	list := all[model.Attachment](v, model.AttachmentKind)
	slices.SortFunc(list, func(a, b *model.Attachment) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Device, b.Device))
	})
	return list
}

// IPAddressPools returns all pools of service addresses, in no order.
func (v *View) IPAddressPools() []*model.IPAddressPool {
	return all[model.IPAddressPool](v, model.IPAddressPoolKind)
}

// L2Advertisements returns all of them, in no order.
func (v *View) L2Advertisements() []*model.L2Advertisement {
	return all[model.L2Advertisement](v, model.L2AdvertisementKind)
}

// BGPAdvertisements returns all of them, in no order.
func (v *View) BGPAdvertisements() []*model.BGPAdvertisement {
	return all[model.BGPAdvertisement](v, model.BGPAdvertisementKind)
}

// MetalLBPeers returns MetalLB's BGPPeers, in no order.
func (v *View) MetalLBPeers() []*model.MetalLBPeer {
	return all[model.MetalLBPeer](v, model.MetalLBPeerKind)
}

// BGPConfiguration returns one, nil if there is none of the name.
func (v *View) BGPConfiguration(name string) *model.BGPConfiguration {
	return get[model.BGPConfiguration](v, model.Ref{Kind: model.BGPConfigurationKind, Name: model.Name{Name: name}})
}

// BGPPeers returns Calico's BGPPeers, in no order.
func (v *View) BGPPeers() []*model.BGPPeer { return all[model.BGPPeer](v, model.BGPPeerKind) }

// BGPPeer returns one, nil if there is none of the name.
func (v *View) BGPPeer(name string) *model.BGPPeer {
	return get[model.BGPPeer](v, model.Ref{Kind: model.BGPPeerKind, Name: model.Name{Name: name}})
}

// BGPFilter returns one, nil if there is none of the name.
func (v *View) BGPFilter(name string) *model.BGPFilter {
	return get[model.BGPFilter](v, model.Ref{Kind: model.BGPFilterKind, Name: model.Name{Name: name}})
}

// Communities returns all of them, in no order.
func (v *View) Communities() []*model.Community { return all[model.Community](v, model.CommunityKind) }

// Nodes returns all nodes, in no order.
func (v *View) Nodes() []*model.Node { return all[model.Node](v, model.NodeKind) }

// Namespaces returns all namespaces, in no order.
func (v *View) Namespaces() []*model.Namespace { return all[model.Namespace](v, model.NamespaceKind) }

// Follow brings a sorted list of what was made of all objects of a kind in step with those that are
// dirty. To sort it again costs little where these are few.
func Follow[O any, T interface{ Ref() model.Ref }](v *View, d Dirty, kind model.Kind, list []T, of func(*O) T, compare func(a, b T) int) []T {
	dirty := d.Objects[kind]
	if len(dirty) == 0 {
		return list
	}
	list = slices.DeleteFunc(list, func(t T) bool { _, is := dirty[t.Ref().Name]; return is })
	for name := range dirty {
		if o := get[O](v, model.Ref{Kind: kind, Name: name}); o != nil {
			list = append(list, of(o))
		}
	}
	slices.SortFunc(list, compare)
	return list
}

func all[T any](v *View, kinds ...model.Kind) (list []*T) {
	for _, kind := range kinds {
		for _, o := range v.objects[kind] {
			list = append(list, o.(*T))
		}
	}
	return list
}
