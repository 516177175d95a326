package manifest

import (
	corev1 "k8s.io/api/core/v1"
)

func (d *decoder) service(o *corev1.Service) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "metadata":
			return d.meta(&o.ObjectMeta)
		case "spec":
			return d.serviceSpec(&o.Spec)
		case "status":
			return d.serviceStatus(&o.Status)
		}
		return d.skip()
	})
}

func (d *decoder) serviceSpec(s *corev1.ServiceSpec) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "clusterIP":
			return d.str(&s.ClusterIP)
		case "clusterIPs":
			return d.strings(&s.ClusterIPs)
		case "externalIPs":
			return d.strings(&s.ExternalIPs)
		case "externalTrafficPolicy":
			return d.name((*string)(&s.ExternalTrafficPolicy))
		case "healthCheckNodePort":
			return d.int32(&s.HealthCheckNodePort)
		case "internalTrafficPolicy":
			return enumPointer(d, &s.InternalTrafficPolicy)
		case "ipFamilyPolicy":
			return enumPointer(d, &s.IPFamilyPolicy)
		case "loadBalancerClass":
			return d.namePointer(&s.LoadBalancerClass)
		case "loadBalancerIP":
			return d.str(&s.LoadBalancerIP)
		case "loadBalancerSourceRanges":
			return d.strings(&s.LoadBalancerSourceRanges)
		case "ports":
			s.Ports = nil
			return d.list(func(int) error { return d.servicePort(grow(&s.Ports)) })
		case "publishNotReadyAddresses":
			return d.boolean(&s.PublishNotReadyAddresses)
		case "selector":
			return d.stringMap(&s.Selector)
		case "sessionAffinity":
			return d.name((*string)(&s.SessionAffinity))
		case "sessionAffinityConfig":
			return d.affinityConfig(s)
		case "trafficDistribution":
			return d.namePointer(&s.TrafficDistribution)
		case "type":
			return d.name((*string)(&s.Type))
		}
		return d.skip()
	})
}

func (d *decoder) servicePort(p *corev1.ServicePort) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "name":
			return d.name(&p.Name)
		case "protocol":
			return d.name((*string)(&p.Protocol))
		case "port":
			return d.int32(&p.Port)
		case "targetPort":
			return d.intOrString(&p.TargetPort)
		case "nodePort":
			return d.int32(&p.NodePort)
		}
		return d.skip()
	})
}

func (d *decoder) affinityConfig(s *corev1.ServiceSpec) error {
	return d.object(func(key []byte) error {
		if string(key) != "clientIP" {
			return d.skip()
		}
		c := &corev1.ClientIPConfig{}
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: c}
		return d.object(func(key []byte) error {
			if string(key) == "timeoutSeconds" {
				return d.int32Pointer(&c.TimeoutSeconds)
			}
			return d.skip()
		})
	})
}

func (d *decoder) serviceStatus(s *corev1.ServiceStatus) error {
	return d.object(func(key []byte) error {
		if string(key) != "loadBalancer" {
			return d.skip()
		}
		return d.object(func(key []byte) error {
			if string(key) != "ingress" {
				return d.skip()
			}
			s.LoadBalancer.Ingress = nil
			return d.list(func(int) error { return d.ingress(grow(&s.LoadBalancer.Ingress)) })
		})
	})
}

func (d *decoder) ingress(in *corev1.LoadBalancerIngress) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "ip":
			return d.str(&in.IP)
		case "ipMode":
			return enumPointer(d, &in.IPMode)
		}
		return d.skip()
	})
}
