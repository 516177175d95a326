package plan

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sliceSize is how many endpoints a slice holds at most, as in a cluster.
const sliceSize = 100

// slices makes a Service's EndpointSlices from the pods that it selects, separated by family and by
// the numbers of the pods' named target ports.
func (c *Cluster) slices(svc *corev1.Service) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, f := range svc.Spec.IPFamilies {
		open := map[string]*discoveryv1.EndpointSlice{} // by ports: the slice with room
		n := 0
		for _, p := range c.Pods {
			i := slices.IndexFunc(Addrs(p), func(a netip.Addr) bool { return familyOf(a) == f })
			if i < 0 || !Selects(svc, p) {
				continue
			}
			ports := endpointPorts(svc, p)
			k := fmt.Sprint(portKeys(ports))
			if s := open[k]; s == nil || len(s.Endpoints) == sliceSize {
				n++
				open[k] = c.newSlice(svc, f, n, ports)
				out = append(out, open[k])
			}
			open[k].Endpoints = append(open[k].Endpoints, c.endpoint(svc, p, Addrs(p)[i]))
		}
	}
	return out
}

func (c *Cluster) newSlice(svc *corev1.Service, f corev1.IPFamily, n int, ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	labels := map[string]string{
		discoveryv1.LabelServiceName: svc.Name,
		discoveryv1.LabelManagedBy:   "sluice-lab",
	}
	if Headless(svc) {
		labels[corev1.IsHeadlessService] = ""
	}
	return &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         svc.Namespace,
			Name:              fmt.Sprintf("%s-%s-%d", svc.Name, map[corev1.IPFamily]string{corev1.IPv4Protocol: "ipv4", corev1.IPv6Protocol: "ipv6"}[f], n),
			CreationTimestamp: metav1.Time{Time: c.Created},
			Labels:            labels,
		},
		AddressType: discoveryv1.AddressType(f),
		Ports:       ports,
	}
}

// endpointPorts lists the Service's ports that a pod has, with their numbers there.
func endpointPorts(svc *corev1.Service, p *corev1.Pod) []discoveryv1.EndpointPort {
	var ports []discoveryv1.EndpointPort
	for _, sp := range svc.Spec.Ports {
		n := targetPort(sp, p)
		if n == 0 {
			continue
		}
		ports = append(ports, discoveryv1.EndpointPort{
			Name: &sp.Name, Protocol: &sp.Protocol, Port: &n, AppProtocol: sp.AppProtocol,
		})
	}
	return ports
}

func portKeys(ports []discoveryv1.EndpointPort) []string {
	var ks []string
	for _, p := range ports {
		ks = append(ks, fmt.Sprintf("%s=%d/%s", *p.Name, *p.Port, *p.Protocol))
	}
	return ks
}

// endpoint describes a pod as the EndpointSlice controller does, with hints for the Service's
// traffic distribution.
func (c *Cluster) endpoint(svc *corev1.Service, p *corev1.Pod, a netip.Addr) discoveryv1.Endpoint {
	serving, terminating := Ready(p), p.DeletionTimestamp != nil
	ready := svc.Spec.PublishNotReadyAddresses || serving && !terminating
	node := c.Node(p.Spec.NodeName)
	e := discoveryv1.Endpoint{
		Addresses:  []string{a.String()},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		NodeName:   &node.Name,
		Zone:       &node.Zone,
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name},
	}
	if p.Spec.Hostname != "" && p.Spec.Subdomain == svc.Name {
		e.Hostname = &p.Spec.Hostname
	}
	if d := svc.Spec.TrafficDistribution; d != nil && ready {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: node.Zone}}}
		if *d == corev1.ServiceTrafficDistributionPreferSameNode {
			e.Hints.ForNodes = []discoveryv1.ForNode{{Name: node.Name}}
		}
	}
	return e
}

// SlicesOf lists a Service's EndpointSlices, made and given.
func (c *Cluster) SlicesOf(svc *corev1.Service) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, s := range slices.Concat(c.Slices, c.Given) {
		if s.Namespace == svc.Namespace && s.Labels[discoveryv1.LabelServiceName] == svc.Name {
			out = append(out, s)
		}
	}
	return out
}

// route decides which node gets the outside's traffic for each service address that is neither a
// ClusterIP nor a node's own. With externalTrafficPolicy Local, it is a node with an endpoint, as a
// load balancer with a health check would choose; otherwise the next in turn.
func (c *Cluster) route() {
	c.Routes = nil
	for _, svc := range c.Services {
		var local []string
		if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			for _, s := range c.SlicesOf(svc) {
				for _, e := range s.Endpoints {
					if e.NodeName != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
						local = append(local, *e.NodeName)
					}
				}
			}
		}
		for _, a := range slices.Concat(IngressIPs(svc), ExternalIPs(svc)) {
			if c.isNode(a) || slices.ContainsFunc(c.Routes, func(r Route) bool { return r.Addr == a }) {
				continue
			}
			node := c.Nodes[len(c.Routes)%len(c.Nodes)].Name
			if len(local) > 0 {
				node = local[0]
			}
			c.Routes = append(c.Routes, Route{a, node})
		}
	}
}

func (c *Cluster) isNode(a netip.Addr) bool {
	return slices.ContainsFunc(c.Nodes, func(n Node) bool { return slices.Contains(n.IPs, a) })
}
