package kubeobj

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// ErrHostNames is the fault of a slice with addressType FQDN.
var ErrHostNames = errors.New("addressType: FQDN: host names can't be balanced; list IPv4 or IPv6 addresses")

// EndpointSlice translates a discovery.k8s.io/v1 EndpointSlice.
//
// A slice of addressType FQDN is faulty as a whole. Left out are addresses that are malformed, of
// the other family, or cannot be reached from other machines, and ports of numbers that are out of
// range, which the API accepts, or of no known protocol; the rest stays. As in kube-proxy, a port
// entry without a number (the API's "all ports") is skipped, a slice without ports has no endpoint
// for any service port, and a slice without the service-name label belongs to no service.
func EndpointSlice(o *discoveryv1.EndpointSlice) (*model.EndpointSlice, error) {
	var f fault.List
	s := &model.EndpointSlice{
		Name:    NameOf(&o.ObjectMeta, &f),
		Service: o.Labels[discoveryv1.LabelServiceName],
	}
	if _, headless := o.Labels[labelHeadless]; headless {
		s.Service = ""
	}
	if at, err := time.Parse(time.RFC3339Nano, o.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil {
		s.Triggered = at // an unreadable time counts as none
	}
	var ipv6 bool
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4:
	case discoveryv1.AddressTypeIPv6:
		ipv6 = true
	case discoveryv1.AddressTypeFQDN:
		return nil, ErrHostNames
	default:
		f.Reject("addressType", "%q is neither IPv4 nor IPv6", string(o.AddressType))
	}
	s.Ports = endpointPorts(o.Ports, &f)
	if !f.Broken() {
		s.Endpoints = endpoints(o.Endpoints, ipv6, &f)
	}
	return fault.Result(s, &f)
}

func endpointPorts(in []discoveryv1.EndpointPort, f *fault.List) []model.EndpointPort {
	if len(in) == 0 {
		return nil
	}
	ports := make([]model.EndpointPort, 0, len(in))
	for i := range in {
		if in[i].Port == nil {
			continue
		}
		var own fault.List
		out := model.EndpointPort{
			Name: ptr.Deref(in[i].Name, ""), Protocol: protocol("protocol", ptr.Deref(in[i].Protocol, ""), &own), Port: port("port", *in[i].Port, &own),
		}
		own.Under(0, "ports[%d]", i)
		if !f.Spare(&own, "this port") {
			ports = append(ports, out)
		}
	}
	return ports
}

func endpoints(in []discoveryv1.Endpoint, ipv6 bool, f *fault.List) []model.Endpoint {
	total := 0
	for i := range in {
		total += len(in[i].Addresses)
	}
	if total == 0 {
		return nil
	}
	out := make([]model.Endpoint, 0, total)
	var zones, nodes []string // of the previous endpoint: mostly the same, so that all share one copy
	for i := range in {
		e := endpoint(&in[i])
		if h := in[i].Hints; h != nil {
			zones = hints(zones, h.ForZones, func(z *discoveryv1.ForZone) string { return z.Name })
			nodes = hints(nodes, h.ForNodes, func(n *discoveryv1.ForNode) string { return n.Name })
			e.ZoneHints, e.NodeHints = zones, nodes
		}
		for j, text := range in[i].Addresses {
			a, err := parseAddr(text)
			switch {
			case err != nil:
				f.Leave(addressField(i, j), "%v; this endpoint is left out", err)
			case a.Is6() != ipv6:
				f.Leave(addressField(i, j), "%s is not of the slice's family; this endpoint is left out", a)
			case model.Unusable(a) != "":
				f.Leave(addressField(i, j), "%s is %s; this endpoint is left out", a, model.Unusable(a))
			default:
				e.Addr = a
				out = append(out, e)
			}
		}
	}
	return out
}

func addressField(i, j int) string { return fmt.Sprintf("endpoints[%d].addresses[%d]", i, j) }

// endpoint resolves the conditions as the API defines them.
func endpoint(in *discoveryv1.Endpoint) model.Endpoint {
	c := &in.Conditions
	ready := ptr.Deref(c.Ready, true)
	return model.Endpoint{
		Ready: ready, Serving: ptr.Deref(c.Serving, ready), Terminating: ptr.Deref(c.Terminating, false),
		Node: ptr.Deref(in.NodeName, ""), Zone: ptr.Deref(in.Zone, ""),
	}
}

// hints returns the names in list: last itself if it has the same names, otherwise a new slice.
func hints[T any](last []string, list []T, name func(*T) string) []string {
	if len(list) == 0 {
		return nil
	}
	same := len(last) == len(list)
	for i := 0; same && i < len(list); i++ {
		same = last[i] == name(&list[i])
	}
	if same {
		return last
	}
	out := make([]string, 0, len(list))
	for i := range list {
		out = append(out, name(&list[i]))
	}
	return slices.Clip(out)
}
