package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Addrs returns a pod's addresses, IPv4 first.
func Addrs(p *corev1.Pod) []netip.Addr {
	var as []netip.Addr
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			as = append(as, a)
		}
	}
	return as
}

// WorkloadOf returns a pod's workload, as "namespace/name"; a bare pod is its own. In a cluster, a
// Deployment's pod belongs to one of its ReplicaSets; here it belongs to the Deployment.
func WorkloadOf(p *corev1.Pod) string {
	if len(p.OwnerReferences) == 0 {
		return key(p.Namespace, p.Name)
	}
	name := p.OwnerReferences[0].Name
	if hash := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; hash != "" {
		name = strings.TrimSuffix(name, "-"+hash)
	}
	return key(p.Namespace, name)
}

// Ready reports whether a pod has the condition Ready.
func Ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Port is a port that a pod's server listens on.
type Port struct {
	Protocol corev1.Protocol
	Port     int32
}

// Ports lists the ports on which a pod's server listens, sorted: the ports that its containers
// declare and those that Services send to by number, since a container need not declare its ports.
func (c *Cluster) Ports(p *corev1.Pod) []Port {
	var ports []Port
	for _, ctr := range containers(p) {
		for _, port := range ctr.Ports {
			ports = append(ports, Port{protocol(port.Protocol), port.ContainerPort})
		}
	}
	for _, svc := range c.Services {
		if !Selects(svc, p) {
			continue
		}
		for _, sp := range svc.Spec.Ports {
			if n := targetPort(sp, p); n > 0 {
				ports = append(ports, Port{sp.Protocol, n})
			}
		}
	}
	slices.SortFunc(ports, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	return slices.Compact(ports)
}

// containers lists a running pod's containers: sidecars are init containers that are always
// restarted.
func containers(p *corev1.Pod) []corev1.Container {
	cs := slices.Clone(p.Spec.Containers)
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			cs = append(cs, c)
		}
	}
	return cs
}

// targetPort resolves a Service's target port on a pod; 0 if the pod has no port of that name.
func targetPort(sp corev1.ServicePort, p *corev1.Pod) int32 {
	if name := sp.TargetPort.StrVal; name != "" {
		for _, c := range containers(p) {
			for _, port := range c.Ports {
				if port.Name == name && protocol(port.Protocol) == sp.Protocol {
					return port.ContainerPort
				}
			}
		}
		return 0
	}
	return sp.TargetPort.IntVal
}

// Selects reports whether a Service has this pod as an endpoint.
func Selects(svc *corev1.Service, p *corev1.Pod) bool {
	return len(svc.Spec.Selector) > 0 && svc.Spec.Type != corev1.ServiceTypeExternalName &&
		svc.Namespace == p.Namespace && labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(p.Labels))
}

func protocol(p corev1.Protocol) corev1.Protocol {
	return cmp.Or(p, corev1.ProtocolTCP)
}
