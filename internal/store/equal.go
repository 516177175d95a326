package store

import (
	"maps"
	"reflect"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// Equality of objects: whether one tells anything that the other doesn't. Nil
// and empty lists are the same.

// equal compares two objects of one kind that has no index of its own.
func equal(a, b any) bool {
	switch a := a.(type) {
	case *model.Node:
		b := b.(*model.Node)
		return a.Name == b.Name && a.Leaving == b.Leaving && a.NotReady == b.NotReady && a.Networked == b.Networked && a.Created.Equal(b.Created) && maps.Equal(a.Labels, b.Labels) &&
			slices.Equal(a.IPs, b.IPs) && a.External == b.External && slices.Equal(a.OtherIPs, b.OtherIPs) && slices.Equal(a.PodCIDRs, b.PodCIDRs) && slices.Equal(a.Taints, b.Taints) &&
			(a.Fabric == b.Fabric || a.Fabric != nil && b.Fabric != nil && *a.Fabric == *b.Fabric)
	case *model.Namespace:
		b := b.(*model.Namespace)
		return a.Name == b.Name && maps.Equal(a.Labels, b.Labels)
	case *model.ServiceAccount:
		b := b.(*model.ServiceAccount)
		return a.Name == b.Name && maps.Equal(a.Labels, b.Labels)
	case *model.Policy:
		return equalPolicies(a, b.(*model.Policy))
	case *model.NetworkSet: // the nets last, of which there may be millions
		b := b.(*model.NetworkSet)
		return a.Key == b.Key && a.Refused == b.Refused && len(a.Nets) == len(b.Nets) && maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Nets, b.Nets)
	case *model.IPPool:
		b, equal := *b.(*model.IPPool), equalSelectors(a.Nodes, b.(*model.IPPool).Nodes)
		b.Nodes = a.Nodes
		return equal && reflect.DeepEqual(*a, b)
	case *model.Attachment:
		return reflect.DeepEqual(a, b)
	case *model.HostEndpoint:
		b := b.(*model.HostEndpoint)
		return a.Name == b.Name && a.Created.Equal(b.Created) && a.Node == b.Node && a.Interface == b.Interface && a.DefaultAllow == b.DefaultAllow &&
			slices.Equal(a.Addresses, b.Addresses) && maps.Equal(a.Labels, b.Labels)
	}
	return reflect.DeepEqual(a, b)
}

func equalServices(a, b *model.Service) bool {
	return a.Name == b.Name &&
		a.Created.Equal(b.Created) &&
		a.Unproxied == b.Unproxied &&
		a.Affinity == b.Affinity &&
		a.InternalLocal == b.InternalLocal &&
		a.ExternalLocal == b.ExternalLocal &&
		a.HealthCheckNodePort == b.HealthCheckNodePort &&
		a.PublishNotReady == b.PublishNotReady &&
		a.IPVSScheduler == b.IPVSScheduler &&
		slices.Equal(a.ClusterIPs, b.ClusterIPs) &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) &&
		slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		equalLoadBalancers(a.LoadBalancer, b.LoadBalancer) &&
		slices.Equal(a.Ports, b.Ports) &&
		slices.Equal(a.SourceRanges, b.SourceRanges) &&
		maps.Equal(a.Selector, b.Selector)
}

func equalLoadBalancers(a, b *model.LoadBalancer) bool {
	return a == b || a != nil && b != nil &&
		a.Wanted == b.Wanted && a.Class == b.Class && slices.Equal(a.Ingress, b.Ingress) && slices.Equal(a.IPs, b.IPs) && a.Pool == b.Pool &&
		a.SharingKey == b.SharingKey && a.PreferDualStack == b.PreferDualStack && a.Fault == b.Fault && maps.Equal(a.Labels, b.Labels)
}

func equalSlices(a, b *model.EndpointSlice) bool {
	return a.Name == b.Name && a.Service == b.Service &&
		slices.Equal(a.Ports, b.Ports) &&
		slices.EqualFunc(a.Endpoints, b.Endpoints, equalEndpoints)
}

func equalEndpoints(a, b model.Endpoint) bool {
	return a.Addr == b.Addr && a.Ready == b.Ready && a.Serving == b.Serving && a.Terminating == b.Terminating &&
		a.Node == b.Node && a.Zone == b.Zone &&
		slices.Equal(a.ZoneHints, b.ZoneHints) && slices.Equal(a.NodeHints, b.NodeHints)
}

func equalPods(a, b *model.Pod) bool {
	return a.Name == b.Name && a.Node == b.Node && a.HostNetwork == b.HostNetwork &&
		a.Ready == b.Ready && a.Terminating == b.Terminating && a.Finished == b.Finished && a.ServiceAccount == b.ServiceAccount &&
		slices.Equal(a.IPs, b.IPs) && slices.Equal(a.Ports, b.Ports) && maps.Equal(a.Labels, b.Labels)
}

func equalPolicies(a, b *model.Policy) bool {
	return a.Key == b.Key && a.Tier == b.Tier && a.Order == b.Order && a.Refused == b.Refused && a.Ignored == b.Ignored &&
		a.Ingress == b.Ingress && a.Egress == b.Egress && a.IgnoresIngress == b.IgnoresIngress && a.IgnoresEgress == b.IgnoresEgress &&
		a.ApplyOnForward == b.ApplyOnForward && a.DoNotTrack == b.DoNotTrack && a.PreDNAT == b.PreDNAT &&
		equalSelectors(a.Subject, b.Subject) &&
		slices.EqualFunc(a.IngressRules, b.IngressRules, equalRules) &&
		slices.EqualFunc(a.EgressRules, b.EgressRules, equalRules)
}

func equalRules(a, b model.PolicyRule) bool {
	return a.Name == b.Name && a.Action == b.Action && a.Family == b.Family &&
		a.Protocol == b.Protocol && a.NotProtocol == b.NotProtocol &&
		equalICMP(a.ICMP, b.ICMP) && equalICMP(a.NotICMP, b.NotICMP) &&
		equalEnds(a.Source, b.Source) && equalEnds(a.Destination, b.Destination)
}

func equalICMP(a, b *model.ICMP) bool { return a == b || a != nil && b != nil && *a == *b }

func equalEnds(a, b model.RuleEnd) bool {
	return slices.Equal(a.Ports, b.Ports) && slices.Equal(a.NotPorts, b.NotPorts) &&
		slices.EqualFunc(a.NotPeers, b.NotPeers, equalPeers) &&
		slices.EqualFunc(a.Peers, b.Peers, func(a, b []model.Peer) bool { return slices.EqualFunc(a, b, equalPeers) })
}

func equalPeers(a, b model.Peer) bool {
	return a.Service == b.Service && slices.Equal(a.Nets, b.Nets) && slices.Equal(a.Except, b.Except) && equalSelectors(a.Selector, b.Selector)
}

func equalSelectors(a, b model.Selector) bool { return a.String() == b.String() }
