package kubeobj

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

const (
	labelHeadless    = corev1.IsHeadlessService
	labelProxyName   = "service.kubernetes.io/service-proxy-name"
	rangesAnnotation = corev1.AnnotationLoadBalancerSourceRangesKey
	// schedulerAnnotation chooses the service's own scheduler of IPVS.
	schedulerAnnotation = "sluice.dev/ipvs-scheduler"

	maxAffinity = 86400 // seconds; the API's limit
)

// Service translates a v1 Service. If it is to be proxied, it needs a cluster IP and a port. A
// value that cannot be read takes away what it is about: a port, an address, source ranges the
// addresses that they protect. Fields that do not belong to its type (node ports of a ClusterIP
// service, source ranges and ingress addresses of anything but a LoadBalancer) are left out.
func Service(o *corev1.Service) (*model.Service, error) {
	var f fault.List
	s := &model.Service{
		Name:            NameOf(&o.ObjectMeta, &f),
		Created:         o.CreationTimestamp.UTC(),
		PublishNotReady: o.Spec.PublishNotReadyAddresses,
	}
	if len(o.Spec.Selector) > 0 {
		s.Selector = o.Spec.Selector
	}
	checkServiceType(o, &f)
	s.ClusterIPs = clusterIPs(o, &f)
	s.Unproxied = unproxied(o)
	s.Ports = servicePorts(o, &f)
	if s.Unproxied == "" {
		if len(s.ClusterIPs) == 0 && !f.Broken() {
			f.Reject("spec.clusterIP", `the service has no address; give it a free one of the service range, or "None" to make it headless`)
		}
		if len(s.Ports) == 0 && !f.Broken() {
			f.Reject("spec.ports", "a service needs a port")
		}
	}
	s.ExternalIPs = externalIPs(o, &f)
	s.LoadBalancerIPs = ingressIPs(o, &f)
	s.LoadBalancer = loadBalancer(o)
	if s.SourceRanges = sourceRanges(o, &f); s.SourceRanges != nil && len(s.SourceRanges) == 0 {
		s.SourceRanges, s.LoadBalancerIPs = nil, nil
	}
	s.Affinity = affinity(o, &f)
	s.IPVSScheduler = ipvsScheduler(o, &f)
	trafficPolicies(o, s, &f)
	return fault.Result(s, &f)
}

func checkServiceType(o *corev1.Service, f *fault.List) {
	switch o.Spec.Type {
	case "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName:
	default:
		f.Reject("spec.type", "%q is none of ClusterIP, NodePort, LoadBalancer and ExternalName", string(o.Spec.Type))
	}
}

// unproxied returns why nothing is programmed for a service; "" if something is.
func unproxied(o *corev1.Service) string {
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		return "ExternalName"
	}
	if o.Spec.ClusterIP == corev1.ClusterIPNone || len(o.Spec.ClusterIPs) > 0 && o.Spec.ClusterIPs[0] == corev1.ClusterIPNone {
		return model.Headless
	}
	for _, label := range [...]string{labelProxyName, labelHeadless} {
		if _, ok := o.Labels[label]; ok {
			return "label " + label
		}
	}
	return ""
}

// clusterIPs reads spec.clusterIPs, or spec.clusterIP if the list is missing, as in most manifests
// written by hand.
func clusterIPs(o *corev1.Service, f *fault.List) []netip.Addr {
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	list, field := o.Spec.ClusterIPs, "spec.clusterIPs[%d]"
	first := o.Spec.ClusterIP
	switch {
	case len(list) == 0 && first == "":
		return nil
	case len(list) == 0:
		list, field = []string{first}, "spec.clusterIP"
	case first != "" && first != list[0]:
		f.Reject("spec.clusterIP", "%q differs from the first of spec.clusterIPs, %q", first, list[0])
		return nil
	}
	if list[0] == corev1.ClusterIPNone {
		return nil
	}
	var ipv4, ipv6 bool // there is one
	return fault.ReadSome(f, field, list, func(text string) (netip.Addr, error) {
		a, err := parseAddr(text)
		if err == nil && (ipv4 && a.Is4() || ipv6 && a.Is6()) {
			err = fmt.Errorf("%s: a service has at most one cluster IP of each family", a)
		}
		ipv4, ipv6 = ipv4 || a.Is4(), ipv6 || a.Is6()
		return a, err
	})
}

func servicePorts(o *corev1.Service, f *fault.List) []model.ServicePort {
	hasNodePorts := o.Spec.Type == corev1.ServiceTypeNodePort || o.Spec.Type == corev1.ServiceTypeLoadBalancer
	ports := make([]model.ServicePort, 0, len(o.Spec.Ports))
	for i := range o.Spec.Ports {
		in := &o.Spec.Ports[i]
		var own fault.List
		out := servicePort(in, &own)
		if out.NodePort != 0 && !hasNodePorts {
			own.Leave("nodePort", "%d is left out: a service of type %s has no node ports", out.NodePort, cmp.Or(o.Spec.Type, corev1.ServiceTypeClusterIP))
			out.NodePort = 0
		}
		for j := range ports {
			if ports[j].Protocol == out.Protocol && ports[j].Port == out.Port {
				own.Reject("port", "%d/%s is there twice", out.Port, out.Protocol)
			}
			if ports[j].Name == out.Name {
				own.Reject("name", "%q: where there are several ports, each needs a name of its own", out.Name)
			}
		}
		own.Under(0, "spec.ports[%d]", i)
		if !f.Spare(&own, "this port") {
			ports = append(ports, out)
		}
	}
	return ports
}

func servicePort(in *corev1.ServicePort, f *fault.List) model.ServicePort {
	out := model.ServicePort{
		Name:     in.Name,
		Protocol: protocol("protocol", in.Protocol, f),
		Port:     port("port", in.Port, f),
		NodePort: sparePort("nodePort", in.NodePort, f),
	}
	if in.TargetPort.StrVal != "" {
		out.TargetName = in.TargetPort.StrVal
		return out
	}
	out.TargetPort = cmp.Or(optionalPort("targetPort", in.TargetPort.IntVal, f), out.Port)
	return out
}

// externalIPs leaves out addresses that cannot be external: the API accepts more than these.
func externalIPs(o *corev1.Service, f *fault.List) []netip.Addr {
	if len(o.Spec.ExternalIPs) == 0 || o.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	return fault.ReadSome(f, "spec.externalIPs[%d]", o.Spec.ExternalIPs, func(text string) (netip.Addr, error) {
		a, err := parseAddr(text)
		if why := model.Unusable(a); err == nil && why != "" {
			err = fmt.Errorf("%s is %s", a, why)
		}
		return a, err
	})
}

// ingressIPs leaves out ingress points whose traffic the load balancer delivers to the nodes itself
// (ipMode Proxy), and those with a host name only.
func ingressIPs(o *corev1.Service, f *fault.List) []netip.Addr {
	if o.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	var ips []netip.Addr
	for i := range o.Status.LoadBalancer.Ingress {
		in := &o.Status.LoadBalancer.Ingress[i]
		switch mode := ptr.Deref(in.IPMode, corev1.LoadBalancerIPModeVIP); mode {
		case corev1.LoadBalancerIPModeVIP:
		case corev1.LoadBalancerIPModeProxy:
			continue
		default:
			f.Leave(fmt.Sprintf("status.loadBalancer.ingress[%d].ipMode", i), "%q is neither VIP nor Proxy; the address is left out", string(mode))
			continue
		}
		if in.IP == "" {
			continue
		}
		a, err := parseAddr(in.IP)
		if err != nil {
			f.Leave(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), "%v; it is left out", err)
			continue
		}
		ips = append(ips, a)
	}
	return ips
}

// sourceRanges reads the field or, if it is empty, the annotation that came before it. An empty
// list that is not nil means that there are some and none can be read: nobody may connect to the
// addresses that they protect.
func sourceRanges(o *corev1.Service, f *fault.List) []netip.Prefix {
	if o.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	list, field := o.Spec.LoadBalancerSourceRanges, "spec.loadBalancerSourceRanges"
	if old := strings.TrimSpace(o.Annotations[rangesAnnotation]); len(list) == 0 && old != "" {
		list, field = strings.Split(old, ","), "metadata.annotations["+rangesAnnotation+"]"
	}
	if len(list) == 0 {
		return nil
	}
	ranges := fault.ReadSome(f, field, list, parsePrefix)
	if len(ranges) == 0 {
		f.Leave(field, "none can be read, so the addresses of the load balancer are not served")
		return []netip.Prefix{}
	}
	return ranges
}

func affinity(o *corev1.Service, f *fault.List) time.Duration {
	switch o.Spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		return 0
	case corev1.ServiceAffinityClientIP:
	default:
		f.Leave("spec.sessionAffinity", "%q is neither None nor ClientIP; it counts as None", string(o.Spec.SessionAffinity))
		return 0
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := o.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	if seconds < 1 || seconds > maxAffinity {
		f.Leave("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not in 1-%d; it counts as %d", seconds, maxAffinity, corev1.DefaultClientIPServiceAffinitySeconds)
		seconds = corev1.DefaultClientIPServiceAffinitySeconds
	}
	return time.Duration(seconds) * time.Second
}

func ipvsScheduler(o *corev1.Service, f *fault.List) string {
	name := o.Annotations[schedulerAnnotation]
	if name != "" && !slices.Contains(model.IPVSSchedulers, name) {
		f.Leave("metadata.annotations["+schedulerAnnotation+"]", "%q is none of %s; it is left out", name, strings.Join(model.IPVSSchedulers, ", "))
		return ""
	}
	return name
}

// trafficPolicies sets the fields that decide which endpoints are used for which clients. The
// external policy counts only for services that can be reached from outside, the health check port
// only for load balancers with policy Local.
func trafficPolicies(o *corev1.Service, s *model.Service, f *fault.List) {
	lb := o.Spec.Type == corev1.ServiceTypeLoadBalancer
	outside := lb || o.Spec.Type == corev1.ServiceTypeNodePort || len(s.ExternalIPs) > 0
	s.InternalLocal = isLocal("spec.internalTrafficPolicy", string(ptr.Deref(o.Spec.InternalTrafficPolicy, "")), f)
	s.ExternalLocal = isLocal("spec.externalTrafficPolicy", string(o.Spec.ExternalTrafficPolicy), f) && outside
	check := sparePort("spec.healthCheckNodePort", o.Spec.HealthCheckNodePort, f)
	if lb && s.ExternalLocal {
		s.HealthCheckNodePort = check
	}
	// The hints in the slices carry out trafficDistribution; here only an unknown value is
	// reported.
	switch d := ptr.Deref(o.Spec.TrafficDistribution, ""); d {
	case "", corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode:
	default:
		f.Leave("spec.trafficDistribution", "%q is not known and has no effect; known are PreferClose, PreferSameZone and PreferSameNode", d)
	}
}

func isLocal(field, policy string, f *fault.List) bool {
	switch policy {
	case "", "Cluster":
		return false
	case "Local":
		return true
	}
	f.Leave(field, "%q is neither Cluster nor Local; it counts as Local, which is less", policy)
	return true
}
