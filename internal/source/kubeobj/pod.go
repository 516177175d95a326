package kubeobj

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// Pod translates a v1 Pod. Its ports are those of its containers and of the init containers that
// keep running beside them. A port or an address that can't be read makes the pod faulty as a
// whole, as rules may deny by it. A pod that names no service account gets "default", as from the
// API server.
func Pod(o *corev1.Pod) (*model.Pod, error) {
	var f fault.List
	p := &model.Pod{
		Name:        NameOf(&o.ObjectMeta, &f),
		Labels:      o.Labels,
		Node:        o.Spec.NodeName,
		HostNetwork: o.Spec.HostNetwork,
		Terminating: o.DeletionTimestamp != nil,
		Finished:    o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed,

		ServiceAccount: cmp.Or(o.Spec.ServiceAccountName, "default"),
	}
	for i := range o.Status.Conditions {
		if c := &o.Status.Conditions[i]; c.Type == corev1.PodReady {
			p.Ready = c.Status == corev1.ConditionTrue
		}
	}
	for _, name := range podAnnotationNames {
		if o.Annotations[name] != "" {
			f.Leave("metadata.annotations["+name+"]", "it is not carried out: %s", podAnnotations[name])
		}
	}
	p.IPs = podIPs(o, &f)
	for i := range o.Spec.Containers {
		mark := f.Mark()
		p.Ports = containerPorts(p.Ports, &o.Spec.Containers[i], &f)
		f.Under(mark, "spec.containers[%d]", i)
	}
	for i := range o.Spec.InitContainers {
		if c := &o.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			mark := f.Mark()
			p.Ports = containerPorts(p.Ports, c, &f)
			f.Under(mark, "spec.initContainers[%d]", i)
		}
	}
	return fault.Result(p, &f)
}

// podAnnotations are those of Pods that Calico's agent carries out and nothing here does, with what
// that means. Those that its CNI plugin carries out are none of them: it may be the one in use.
var podAnnotations = map[string]string{
	"cni.projectcalico.org/allowedSourcePrefixes": "what the pod sends from addresses other than its own is dropped",
	"cni.projectcalico.org/floatingIPs":           "these addresses do not lead to the pod; a Service with externalIPs does",

	"qos.projectcalico.org/dscp":                  "its packets are not marked",
	"qos.projectcalico.org/ingressBandwidth":      notLimited,
	"qos.projectcalico.org/egressBandwidth":       notLimited,
	"qos.projectcalico.org/ingressPacketRate":     notLimited,
	"qos.projectcalico.org/egressPacketRate":      notLimited,
	"qos.projectcalico.org/ingressMaxConnections": notLimited,
	"qos.projectcalico.org/egressMaxConnections":  notLimited,
}

// podAnnotationNames are theirs, sorted.
var podAnnotationNames = slices.Sorted(maps.Keys(podAnnotations))

const notLimited = "nothing limits the pod's traffic by it"

func podIPs(o *corev1.Pod, f *fault.List) []netip.Addr {
	if len(o.Status.PodIPs) == 0 && o.Status.PodIP != "" {
		return fault.ReadAll(f, "status.podIP", []string{o.Status.PodIP}, parseAddr)
	}
	texts := make([]string, len(o.Status.PodIPs))
	for i := range texts {
		texts[i] = o.Status.PodIPs[i].IP
	}
	return fault.ReadAll(f, "status.podIPs[%d].ip", texts, parseAddr)
}

func containerPorts(ports []model.ContainerPort, c *corev1.Container, f *fault.List) []model.ContainerPort {
	for i := range c.Ports {
		in := &c.Ports[i]
		mark := f.Mark()
		ports = append(ports, model.ContainerPort{
			Name:     in.Name,
			Protocol: protocol("protocol", in.Protocol, f),
			Port:     port("containerPort", in.ContainerPort, f),
		})
		f.Under(mark, "ports[%d]", i)
	}
	return ports
}

// ServiceAccount translates a v1 ServiceAccount.
func ServiceAccount(o *corev1.ServiceAccount) (*model.ServiceAccount, error) {
	var f fault.List
	a := &model.ServiceAccount{Name: NameOf(&o.ObjectMeta, &f), Labels: o.Labels}
	return fault.Result(a, &f)
}
