package store

import (
	"maps"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// Equality of objects: whether one tells anything that the other doesn't. Nil
// and empty lists are the same.

func equalServices(a, b *model.Service) bool {
	return a.Name == b.Name &&
		a.Created.Equal(b.Created) &&
		a.Unproxied == b.Unproxied &&
		a.Affinity == b.Affinity &&
		a.InternalLocal == b.InternalLocal &&
		a.ExternalLocal == b.ExternalLocal &&
		a.HealthCheckNodePort == b.HealthCheckNodePort &&
		a.PublishNotReady == b.PublishNotReady &&
		slices.Equal(a.ClusterIPs, b.ClusterIPs) &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) &&
		slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		slices.Equal(a.Ports, b.Ports) &&
		slices.Equal(a.SourceRanges, b.SourceRanges) &&
		maps.Equal(a.Selector, b.Selector)
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

func equalNodes(a, b *model.Node) bool {
	return a.Name == b.Name && a.Leaving == b.Leaving && maps.Equal(a.Labels, b.Labels) &&
		slices.Equal(a.IPs, b.IPs) && slices.Equal(a.PodCIDRs, b.PodCIDRs)
}

func equalNamespaces(a, b *model.Namespace) bool {
	return a.Name == b.Name && maps.Equal(a.Labels, b.Labels)
}
