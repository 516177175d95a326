package probe

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/lab/plan"
)

// proxyName is the label that leaves a Service to another proxy.
const proxyName = "service.kubernetes.io/service-proxy-name"

// Tries lists every frontend of every service from every source that can reach it, and the services
// without frontends.
func Tries(c *plan.Cluster, sources []Source) ([]Try, []Silent) {
	var tries []Try
	var silent []Silent
	pods, rules := podsByAddr(c), newPolicies(c)
	for _, svc := range c.Services {
		name := svc.Namespace + "/" + svc.Name
		if why := unproxied(c, svc); why != "" {
			silent = append(silent, Silent{name, why})
			continue
		}
		tries = append(tries, healthChecks(c, svc, sources)...)
		for _, sp := range svc.Spec.Ports {
			if sp.Protocol == corev1.ProtocolSCTP {
				silent = append(silent, Silent{fmt.Sprintf("%s %d/SCTP", name, sp.Port), "SCTP is not served by the lab"})
				continue
			}
			for _, f := range frontends(c, svc, sp) {
				r := frontendRules{c, rules, svc, f, endpoints(c, svc, sp, f.To.Addr().Is4(), pods)}
				for _, src := range sources {
					if src.Kind == FromOutside && (f.Kind == ClusterIP || f.Node == "") {
						continue // not routed outside the cluster
					}
					tries = append(tries, Try{src, f, r.expect(src)})
				}
			}
		}
	}
	return tries, silent
}

// healthChecks asks every node from outside, as a load balancer does, whether it has endpoints of a
// Service.
func healthChecks(c *plan.Cluster, svc *corev1.Service, sources []Source) []Try {
	if svc.Spec.HealthCheckNodePort == 0 {
		return nil
	}
	local := map[string]bool{}
	for _, s := range c.SlicesOf(svc) {
		for _, e := range s.Endpoints {
			if e.NodeName != nil && orTrue(e.Conditions.Ready) {
				local[*e.NodeName] = true
			}
		}
	}
	var tries []Try
	for _, n := range c.Nodes {
		e := Expect{Fate: Unhealthy, Why: "503 from nodes without endpoints"}
		if local[n.Name] {
			e = Expect{Fate: Healthy, Why: "200 from nodes with endpoints"}
		}
		for _, a := range n.IPs {
			f := Frontend{
				svc.Namespace + "/" + svc.Name, HealthCheck, string(corev1.ProtocolTCP),
				netip.AddrPortFrom(a, uint16(svc.Spec.HealthCheckNodePort)), n.Name,
			}
			for _, src := range sources {
				if src.Kind == FromOutside && hasFamily(svc, a) {
					tries = append(tries, Try{src, f, e})
				}
			}
		}
	}
	return tries
}

// unproxied returns why a service proxy does not serve a Service; "" if it does.
func unproxied(c *plan.Cluster, svc *corev1.Service) string {
	_, headless := svc.Labels[corev1.IsHeadlessService]
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return "ExternalName: DNS answers with " + svc.Spec.ExternalName
	case plan.Headless(svc):
		n := 0
		for _, s := range c.SlicesOf(svc) {
			n += len(s.Endpoints)
		}
		return "headless: its name resolves to " + model.Count(n, "pod address")
	case svc.Labels[proxyName] != "":
		return "left to the proxy " + svc.Labels[proxyName]
	case headless:
		return "labelled headless: no proxy programs it"
	}
	return ""
}

// frontends lists the addresses of one port of a Service.
func frontends(c *plan.Cluster, svc *corev1.Service, sp corev1.ServicePort) []Frontend {
	var fs []Frontend
	add := func(k Kind, a netip.Addr, port int32, node string) {
		fs = append(fs, Frontend{svc.Namespace + "/" + svc.Name, k, string(sp.Protocol), netip.AddrPortFrom(a, uint16(port)), node})
	}
	for _, a := range plan.ClusterIPs(svc) {
		add(ClusterIP, a, sp.Port, "")
	}
	for _, n := range c.Nodes {
		for _, a := range n.IPs {
			if sp.NodePort != 0 && hasFamily(svc, a) {
				add(NodePort, a, sp.NodePort, n.Name)
			}
		}
	}
	for _, a := range plan.IngressIPs(svc) {
		add(LoadBalancer, a, sp.Port, entryNode(c, a))
	}
	for _, a := range plan.ExternalIPs(svc) {
		if hasFamily(svc, a) {
			add(ExternalIP, a, sp.Port, entryNode(c, a))
		}
	}
	return fs
}

func hasFamily(svc *corev1.Service, a netip.Addr) bool {
	f := corev1.IPv6Protocol
	if a.Is4() {
		f = corev1.IPv4Protocol
	}
	return slices.Contains(svc.Spec.IPFamilies, f)
}

// entryNode returns the node at which the outside's traffic for a service address arrives.
func entryNode(c *plan.Cluster, a netip.Addr) string {
	for _, r := range c.Routes {
		if r.Addr == a {
			return r.Node
		}
	}
	for _, n := range c.Nodes {
		if slices.Contains(n.IPs, a) {
			return n.Name
		}
	}
	return ""
}

// endpoint is a backend of one service port, with everything that fates depend on.
type endpoint struct {
	node                        string
	hints                       discoveryv1.EndpointHints
	addr                        netip.AddrPort
	pod                         string // "namespace/name"; empty if it is not a pod of the lab
	ready, serving, terminating bool
}

// endpoints lists the backends of a service port in one family.
func endpoints(c *plan.Cluster, svc *corev1.Service, sp corev1.ServicePort, v4 bool, pods map[netip.Addr]string) []endpoint {
	var eps []endpoint
	for _, s := range c.SlicesOf(svc) {
		var port int32 // none
		for _, p := range s.Ports {
			named := p.Name == nil && sp.Name == "" || p.Name != nil && *p.Name == sp.Name
			if named && p.Port != nil && (p.Protocol == nil && sp.Protocol == corev1.ProtocolTCP || p.Protocol != nil && *p.Protocol == sp.Protocol) {
				port = *p.Port
			}
		}
		for _, e := range s.Endpoints {
			for _, text := range e.Addresses {
				a, err := netip.ParseAddr(text)
				if port == 0 || err != nil || a.Is4() != v4 {
					continue
				}
				ep := endpoint{addr: netip.AddrPortFrom(a, uint16(port)), pod: pods[a], ready: orTrue(e.Conditions.Ready)}
				if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
					ep.pod = e.TargetRef.Namespace + "/" + e.TargetRef.Name
				}
				ep.serving = ep.ready
				if e.Conditions.Serving != nil {
					ep.serving = *e.Conditions.Serving
				}
				ep.terminating = e.Conditions.Terminating != nil && *e.Conditions.Terminating
				if e.NodeName != nil {
					ep.node = *e.NodeName
				}
				if e.Hints != nil {
					ep.hints = *e.Hints
				}
				eps = append(eps, ep)
			}
		}
	}
	return eps
}

func orTrue(b *bool) bool { return b == nil || *b }

// podsByAddr finds pods by address, those with an address of their own.
func podsByAddr(c *plan.Cluster) map[netip.Addr]string {
	pods := map[netip.Addr]string{}
	for _, p := range c.Pods {
		for _, a := range plan.Addrs(p) {
			if !p.Spec.HostNetwork {
				pods[a] = p.Namespace + "/" + p.Name
			}
		}
	}
	return pods
}

// usable returns the endpoints that get traffic: the ready ones or, if there are none, those that
// still serve while they terminate.
func usable(eps []endpoint) []endpoint {
	for _, good := range []func(endpoint) bool{
		func(e endpoint) bool { return e.ready },
		func(e endpoint) bool { return e.serving && e.terminating },
	} {
		var out []endpoint
		for _, e := range eps {
			if good(e) {
				out = append(out, e)
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// frontendRules determine the expected outcome of requests to one frontend.
type frontendRules struct {
	c        *plan.Cluster
	policies *policies
	svc      *corev1.Service
	Frontend
	eps []endpoint
}

func (r frontendRules) expect(src Source) Expect {
	if e, own := r.atNodeAddress(); own {
		return e
	}
	if len(usable(r.eps)) == 0 {
		return Expect{Fate: Refused, Why: "no endpoints"}
	}
	if r.Kind == LoadBalancer && !r.inSourceRanges(src) {
		return Expect{Fate: Dropped, Why: "source not in loadBalancerSourceRanges"}
	}
	node, local := r.localNode(src)
	eps := r.eps
	if local {
		eps = slices.DeleteFunc(slices.Clone(eps), func(e endpoint) bool { return e.node != node })
	}
	if eps = usable(eps); !local {
		eps = r.applyHints(eps, r.translatingNode(src))
	}
	if len(eps) == 0 {
		return Expect{Fate: Dropped, Why: "no endpoint on the node, policy Local"}
	}
	e := Expect{
		Fate: Answered, By: map[string]bool{},
		Keep:   local || r.Kind == ClusterIP && src.Kind == FromPod,
		Sticky: r.svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP,
	}
	for _, ep := range eps {
		if ep.pod == "" {
			return Expect{Fate: Unknown, Why: "endpoints that are no pods of the lab"}
		}
		if r.allowedByPolicies(src, ep) {
			e.By[ep.pod] = true
		}
	}
	e.Own = r.ownService(src, eps)
	return r.applyPolicies(e, eps)
}

// whyOfNode explains the outcome at a node's address.
const whyOfNode = "a node's address, which no service may have"

// atNodeAddress returns the outcome of requests to a node's address that a service asks for: the
// node keeps it, and nothing listens there. If something may listen, or if policies apply, the
// outcome is unknown.
func (r frontendRules) atNodeAddress() (e Expect, own bool) {
	i := slices.IndexFunc(r.c.Nodes, func(n plan.Node) bool { return slices.Contains(n.IPs, r.To.Addr()) })
	if i < 0 || r.Kind != ExternalIP && r.Kind != LoadBalancer {
		return Expect{}, false
	}
	listens := func(p *corev1.Pod) bool { return p.Spec.HostNetwork && p.Spec.NodeName == r.c.Nodes[i].Name }
	if len(r.c.Policies) > 0 || slices.ContainsFunc(r.c.Pods, listens) {
		return Expect{Fate: Unknown, Why: whyOfNode}, true
	}
	return Expect{Fate: Refused, Why: whyOfNode}, true
}

// localNode reports whether only one node's endpoints count for a source, and which node's.
func (r frontendRules) localNode(src Source) (node string, local bool) {
	if r.Kind == ClusterIP {
		p := r.svc.Spec.InternalTrafficPolicy
		return src.Node, p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal
	}
	if r.svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return "", false
	}
	switch {
	case src.Kind == FromPod:
		return "", false // pods count as inside wherever their packets are translated
	case src.Kind == FromNode && r.Kind != NodePort:
		return "", false // translated before the packet leaves the node
	case src.Kind == FromNode && src.Node == r.Node:
		return "", false
	}
	return r.Node, true
}

// translatingNode returns the node whose proxy translates a source's requests.
func (r frontendRules) translatingNode(src Source) string {
	if r.Kind == NodePort || src.Node == "" {
		return r.Node
	}
	return src.Node
}

// applyHints chooses endpoints by hints as a node's proxy does: by hints for nodes, otherwise for
// zones, each only if every ready endpoint has one and at least one of them is for this node.
func (r frontendRules) applyHints(eps []endpoint, node string) []endpoint {
	forNode := func(e endpoint) (has, match bool) {
		return len(e.hints.ForNodes) > 0, slices.Contains(e.hints.ForNodes, discoveryv1.ForNode{Name: node})
	}
	forZone := func(e endpoint) (has, match bool) {
		return len(e.hints.ForZones) > 0, slices.Contains(e.hints.ForZones, discoveryv1.ForZone{Name: r.c.Node(node).Zone})
	}
	for _, hint := range []func(endpoint) (has, match bool){forNode, forZone} {
		var out []endpoint
		all := true
		for _, e := range eps {
			has, match := hint(e)
			all = all && has
			if match {
				out = append(out, e)
			}
		}
		if all && len(out) > 0 {
			return out
		}
	}
	return eps
}

// inSourceRanges reports whether loadBalancerSourceRanges admit a source; ranges of the other
// family do not count.
func (r frontendRules) inSourceRanges(src Source) bool {
	any := true
	for _, text := range r.svc.Spec.LoadBalancerSourceRanges {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4() != r.To.Addr().Is4() {
			continue
		}
		any = false
		if slices.ContainsFunc(src.Addrs, p.Contains) {
			return true
		}
	}
	return any
}
