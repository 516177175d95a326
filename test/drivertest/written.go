package drivertest

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// written is the service as a user writes it for Kubernetes, with the row's additions, read as
// sources read it.
func written(s *model.Service, add func(*corev1.Service)) *model.Service {
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Name.Namespace, Name: s.Name.Name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
	}
	for _, a := range s.ClusterIPs {
		o.Spec.ClusterIPs = append(o.Spec.ClusterIPs, a.String())
	}
	for _, a := range s.LoadBalancerIPs {
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
	}
	for _, p := range s.Ports {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{
			Name: p.Name, Protocol: corev1.Protocol(p.Protocol.String()), Port: int32(p.Port), NodePort: int32(p.NodePort),
			TargetPort: intstr.FromInt32(int32(p.TargetPort)),
		})
	}
	add(o)
	out, err := kubeobj.Service(o)
	if err != nil {
		panic("drivertest: a service that no API server takes: " + err.Error())
	}
	return out
}

// proxyMode marks the load balancer's address as one that nodes must not translate.
func proxyMode(o *corev1.Service) {
	mode := corev1.LoadBalancerIPModeProxy
	for i := range o.Status.LoadBalancer.Ingress {
		o.Status.LoadBalancer.Ingress[i].IPMode = &mode
	}
}

// forAnother names another program as the one that serves the service.
func forAnother(o *corev1.Service) {
	o.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "another"}
}

func headless(o *corev1.Service) { o.Spec.ClusterIPs = []string{corev1.ClusterIPNone} }

func externalName(o *corev1.Service) {
	o.Spec.Type, o.Spec.ClusterIPs, o.Spec.ExternalName = corev1.ServiceTypeExternalName, nil, "example.org"
}
