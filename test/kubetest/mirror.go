package kubetest

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

//lint:file-ignore SA1019 Endpoints are deprecated, and still mirrored into slices

// mirror writes Endpoints for a service, from which the cluster makes slices. Without pods it
// deletes them.
func mirror(service string, port int32, pods ...string) Step {
	return action{fmt.Sprintf("endpoints of service %s: %v on %d", service, pods, port), func(ctx context.Context, e *Env) error {
		ep := &corev1.Endpoints{}
		ep.Name, ep.Namespace = service, e.namespace
		if len(pods) == 0 {
			return e.cluster.remove(ctx, ep, -1)
		}
		subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: "tcp-80", Port: port, Protocol: tcp}}}
		for _, n := range pods {
			p, err := e.pod(ctx, n)
			if err != nil {
				return err
			}
			for _, ip := range p.Status.PodIPs {
				subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: ip.IP})
			}
		}
		if e.cluster.get(ctx, ep) != nil {
			ep.Subsets = []corev1.EndpointSubset{subset}
			return e.cluster.create(ctx, ep)
		}
		return change(ctx, e.cluster.api, ep, "", func(ep *corev1.Endpoints) {
			ep.Subsets = []corev1.EndpointSubset{subset}
		})
	}}
}
