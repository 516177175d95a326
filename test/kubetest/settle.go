package kubetest

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// fencePort is the first port of the fence's pod.
const fencePort = 1001

// settled waits until all changes so far are in force everywhere: the controllers have written them
// into slices, and each node shows the effect of a later change to a slice and to a service.
func settled() Step {
	return action{"all is in force", func(ctx context.Context, e *Env) error {
		if err := e.controllersDone(ctx); err != nil {
			return err
		}
		e.fence++
		service, target := int32(1000+e.fence), int32(fencePort+e.fence%2)
		p := corev1.ServicePort{Name: "fence", Protocol: tcp, Port: service, TargetPort: intstr.FromInt32(target)}
		if err := lead("fence", "fence", p, nil, endpoint{pod: "client1"}).run(ctx, e); err != nil {
			return err
		}
		if e.fence == 1 {
			if err := create(serviceOf("fence", p)).run(ctx, e); err != nil {
				return err
			}
		} else if err := update("fence", "moves", func(s *corev1.Service) { s.Spec.Ports = []corev1.ServicePort{p} }).run(ctx, e); err != nil {
			return err
		}
		for _, n := range nodes {
			if err := ask(n, tcp, clusterIP("fence", service), answeredBy("client1").on(uint16(target))).run(ctx, e); err != nil {
				return fmt.Errorf("%s: %w", n, err)
			}
		}
		return nil
	}}
}

func serviceOf(name string, p corev1.ServicePort) *corev1.Service {
	return service(name, to(""), ports(p))
}

// controllersDone waits until the slices of services with selectors agree with the pods.
func (e *Env) controllersDone(ctx context.Context) error {
	return until(ctx, func() error {
		var services corev1.ServiceList
		var pods corev1.PodList
		var slices discoveryv1.EndpointSliceList
		err := errors.Join(
			e.cluster.list(ctx, e.in(&corev1.Service{}), "", &services),
			e.cluster.list(ctx, e.in(&corev1.Pod{}), "", &pods),
			e.cluster.list(ctx, e.in(&discoveryv1.EndpointSlice{}), "", &slices))
		if err != nil {
			return final{err}
		}
		for _, s := range services.Items {
			if s.Spec.Selector != nil && s.Spec.Type != corev1.ServiceTypeExternalName {
				if err := agree(&s, pods.Items, slices.Items); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// in puts an object into the case's namespace.
func (e *Env) in(o object) object {
	o.SetNamespace(e.namespace)
	return o
}

// condition is the state of an address in a slice.
type condition struct {
	address                     string
	ready, serving, terminating bool
}

// agree compares the slices of a service with its pods.
func agree(s *corev1.Service, pods []corev1.Pod, slices []discoveryv1.EndpointSlice) error {
	want, got := map[condition]bool{}, map[condition]bool{}
	for _, p := range pods {
		if p.Labels["app"] != s.Spec.Selector["app"] || p.Status.Phase != corev1.PodRunning {
			continue
		}
		ending := p.DeletionTimestamp != nil
		for _, ip := range p.Status.PodIPs {
			want[condition{ip.IP, s.Spec.PublishNotReadyAddresses || isReady(&p) && !ending, isReady(&p), ending}] = true
		}
	}
	for _, slice := range slices {
		if slice.Labels[discoveryv1.LabelServiceName] != s.Name {
			continue
		}
		for _, ep := range slice.Endpoints {
			c := ep.Conditions
			got[condition{ep.Addresses[0], *c.Ready, *c.Serving, *c.Terminating}] = true
		}
	}
	for c := range want {
		if !got[c] {
			return fmt.Errorf("service %s: its slices do not have %+v, but %v", s.Name, c, got)
		}
	}
	if len(got) > len(want) {
		return fmt.Errorf("service %s: its slices have %v, its pods are %v", s.Name, got, want)
	}
	return nil
}
