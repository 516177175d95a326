package manifest

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (d *decoder) pod(o *corev1.Pod) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "metadata":
			return d.meta(&o.ObjectMeta)
		case "spec":
			return d.podSpec(&o.Spec)
		case "status":
			return d.podStatus(&o.Status)
		}
		return d.skip()
	})
}

func (d *decoder) podSpec(s *corev1.PodSpec) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "nodeName":
			return d.name(&s.NodeName)
		case "hostNetwork":
			return d.boolean(&s.HostNetwork)
		case "serviceAccountName":
			return d.name(&s.ServiceAccountName)
		case "containers":
			s.Containers = nil
			return d.list(func(int) error { return d.container(grow(&s.Containers)) })
		case "initContainers":
			s.InitContainers = nil
			return d.list(func(int) error { return d.container(grow(&s.InitContainers)) })
		}
		return d.skip()
	})
}

func (d *decoder) container(c *corev1.Container) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "ports":
			c.Ports = nil
			return d.list(func(int) error { return d.containerPort(grow(&c.Ports)) })
		case "restartPolicy":
			return enumPointer(d, &c.RestartPolicy)
		}
		return d.skip()
	})
}

func (d *decoder) containerPort(p *corev1.ContainerPort) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "name":
			return d.name(&p.Name)
		case "containerPort":
			return d.int32(&p.ContainerPort)
		case "protocol":
			return d.name((*string)(&p.Protocol))
		}
		return d.skip()
	})
}

func (d *decoder) podStatus(s *corev1.PodStatus) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "phase":
			return d.name((*string)(&s.Phase))
		case "podIP":
			return d.str(&s.PodIP)
		case "podIPs":
			s.PodIPs = nil
			return d.list(func(int) error { return d.podIP(grow(&s.PodIPs)) })
		case "conditions":
			s.Conditions = nil
			return d.list(func(int) error {
				c := grow(&s.Conditions)
				return d.condition((*string)(&c.Type), (*string)(&c.Status))
			})
		}
		return d.skip()
	})
}

func (d *decoder) podIP(p *corev1.PodIP) error {
	return d.object(func(key []byte) error {
		if string(key) == "ip" {
			return d.str(&p.IP)
		}
		return d.skip()
	})
}

// condition reads a condition of any kind's status.
func (d *decoder) condition(kind, status *string) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "type":
			return d.name(kind)
		case "status":
			return d.name(status)
		}
		return d.skip()
	})
}

func (d *decoder) node(o *corev1.Node) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "metadata":
			return d.meta(&o.ObjectMeta)
		case "spec":
			return d.nodeSpec(&o.Spec)
		case "status":
			return d.nodeStatus(&o.Status)
		}
		return d.skip()
	})
}

func (d *decoder) nodeSpec(s *corev1.NodeSpec) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "podCIDR":
			return d.str(&s.PodCIDR)
		case "podCIDRs":
			return d.strings(&s.PodCIDRs)
		case "taints":
			s.Taints = nil
			return d.list(func(int) error { return d.taint(grow(&s.Taints)) })
		}
		return d.skip()
	})
}

func (d *decoder) taint(t *corev1.Taint) error {
	return d.object(func(key []byte) error {
		if string(key) == "key" {
			return d.name(&t.Key)
		}
		return d.skip()
	})
}

func (d *decoder) nodeStatus(s *corev1.NodeStatus) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "addresses":
			s.Addresses = nil
			return d.list(func(int) error { return d.nodeAddress(grow(&s.Addresses)) })
		case "conditions":
			s.Conditions = nil
			return d.list(func(int) error {
				c := grow(&s.Conditions)
				return d.condition((*string)(&c.Type), (*string)(&c.Status))
			})
		}
		return d.skip()
	})
}

func (d *decoder) nodeAddress(a *corev1.NodeAddress) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "type":
			return d.name((*string)(&a.Type))
		case "address":
			return d.str(&a.Address)
		}
		return d.skip()
	})
}

func (d *decoder) metadataOnly(m *metav1.ObjectMeta) error {
	return d.object(func(key []byte) error {
		if string(key) == "metadata" {
			return d.meta(m)
		}
		return d.skip()
	})
}
