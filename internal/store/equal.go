package store

import (
	"maps"
	"reflect"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// Equality of objects: whether one tells anything that the other doesn't. Those that there are many
// large ones of are compared without reflection, and nil and empty lists of theirs are the same.

// equal compares two objects of one kind, other than EndpointSlices and Pods.
func equal(a, b any) bool {
	if a, is := a.(*model.NetworkSet); is { // the nets last, of which there may be millions
		b := b.(*model.NetworkSet)
		return a.Key == b.Key && a.Refused == b.Refused && len(a.Nets) == len(b.Nets) && maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Nets, b.Nets)
	}
	return reflect.DeepEqual(a, b)
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
