package kubetest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// These are the protocols of requests.
const (
	tcp = corev1.ProtocolTCP
	udp = corev1.ProtocolUDP
)

// gate is the condition that gated pods wait for. The table sets it.
const gate = "sluice.dev/ready"

// balancerClass keeps the cluster's own load balancers away: the table assigns addresses itself.
const balancerClass = "sluice.dev/kubetest"

// linger is how many seconds a lingering pod serves after its deletion: longer than any case takes.
const linger = 300

type (
	podOption     func(*corev1.Pod)
	serviceOption func(*corev1.Service)
)

// pod is a pod on the node with that number. It answers on port 80 of TCP and UDP and has the label
// app=web.
func pod(name string, node int, options ...podOption) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: fmt.Sprintf("node%d", node)},
			AutomountServiceAccountToken:  new(false),
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{Name: "server", Image: "echo", Ports: []corev1.ContainerPort{
				{Name: "tcp", ContainerPort: 80, Protocol: tcp}, {Name: "udp", ContainerPort: 80, Protocol: udp},
			}}},
		},
	}
	for _, o := range options {
		o(p)
	}
	return p
}

// labelled gives a pod another value of the label app.
func labelled(app string) podOption { return func(p *corev1.Pod) { p.Labels["app"] = app } }

// serving makes a pod answer on other ports, named port- and their number.
func serving(protocol corev1.Protocol, ports ...int32) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = nil
		for _, n := range ports {
			p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports,
				corev1.ContainerPort{Name: fmt.Sprintf("port-%d", n), ContainerPort: n, Protocol: protocol})
		}
	}
}

// naming makes a pod answer only on a TCP port of that name.
func naming(port string, n int32) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: port, ContainerPort: n, Protocol: tcp}}
	}
}

// onHost puts a pod on its node's network.
func onHost(p *corev1.Pod) { p.Spec.HostNetwork = true }

// gated keeps a pod unready until the step ready.
func gated(p *corev1.Pod) { p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}} }

// lingering makes a pod serve, and stay ready, after its deletion.
func lingering(p *corev1.Pod) {
	p.Spec.TerminationGracePeriodSeconds = new(int64(linger))
	p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
		PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: linger}},
	}
}

// sidecar moves a pod's ports to an init container that keeps running.
func sidecar(p *corev1.Pod) {
	p.Spec.InitContainers = []corev1.Container{{
		Name: "sidecar", Image: "echo", RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Ports: p.Spec.Containers[0].Ports,
	}}
	p.Spec.Containers[0].Ports = nil
}

// service is a ClusterIP service of both families for the pods with app=web, on port 80 of TCP.
func service(name string, options ...serviceOption) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			Selector:       map[string]string{"app": "web"},
		},
	}
	for _, o := range options {
		o(s)
	}
	if len(s.Spec.Ports) == 0 && s.Spec.Type != corev1.ServiceTypeExternalName {
		ports(port(tcp, 80))(s)
	}
	return s
}

// port is a port of a service that leads to the same port of its pods.
func port(protocol corev1.Protocol, n int32) corev1.ServicePort {
	return portTo(protocol, n, intstr.FromInt32(n))
}

// portTo is a port of a service that leads to another port of its pods.
func portTo(protocol corev1.Protocol, n int32, target intstr.IntOrString) corev1.ServicePort {
	return corev1.ServicePort{Name: fmt.Sprintf("%s-%d", strings.ToLower(string(protocol)), n), Protocol: protocol, Port: n, TargetPort: target}
}

// ports sets all ports of a service.
func ports(list ...corev1.ServicePort) serviceOption {
	return func(s *corev1.Service) {
		for i, p := range list { // a node port stays with its port
			if j := slices.IndexFunc(s.Spec.Ports, func(q corev1.ServicePort) bool { return q.Name == p.Name }); j >= 0 && p.NodePort == 0 {
				list[i].NodePort = s.Spec.Ports[j].NodePort
			}
		}
		s.Spec.Ports = list
	}
}

// to makes a service select pods by another value of app; "" removes the selector.
func to(app string) serviceOption {
	return func(s *corev1.Service) {
		s.Spec.Selector = map[string]string{"app": app}
		if app == "" {
			s.Spec.Selector = nil
		}
	}
}

func clusterIPType(s *corev1.Service) {
	s.Spec.Type, s.Spec.ExternalName, s.Spec.LoadBalancerClass, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeClusterIP, "", nil, ""
	s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 0
	}
}

func nodePortType(s *corev1.Service) {
	s.Spec.Type, s.Spec.ExternalName, s.Spec.LoadBalancerClass = corev1.ServiceTypeNodePort, "", nil
	s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
}

func loadBalancerType(s *corev1.Service) {
	s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, new(balancerClass)
}

func externalNameType(s *corev1.Service) {
	s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org", Ports: s.Spec.Ports}
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 0
	}
}

// at sets a service's cluster addresses.
func at(addrs ...string) serviceOption {
	return func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = addrs[0], addrs }
}

// nodePorts sets whether a load balancer has node ports, too.
func nodePorts(wanted bool) serviceOption {
	return func(s *corev1.Service) { s.Spec.AllocateLoadBalancerNodePorts = &wanted }
}

// localExternally sets externalTrafficPolicy Local.
func localExternally(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func clusterExternally(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 0
}

// localInternally sets internalTrafficPolicy Local.
func localInternally(s *corev1.Service) {
	s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
}

func clusterInternally(s *corev1.Service) {
	s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
}

// remembering makes a client stay with its pod for that many seconds.
func remembering(seconds int32) serviceOption {
	return func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

func forgetting(s *corev1.Service) {
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
}

func publishingNotReady(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }

// externally sets a service's external addresses.
func externally(addrs ...string) serviceOption {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = addrs }
}

// fromRanges sets the source ranges of a service's load balancer.
func fromRanges(ranges ...string) serviceOption {
	return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = ranges }
}

// distributed sets which endpoints a service prefers.
func distributed(preference string) serviceOption {
	return func(s *corev1.Service) { s.Spec.TrafficDistribution = &preference }
}

// marked gives a service a label.
func marked(key, value string) serviceOption {
	return func(s *corev1.Service) { s.Labels = map[string]string{key: value} }
}

// endpoint is a pod in a slice written by hand.
type endpoint struct {
	pod   string
	tweak func(*discoveryv1.Endpoint)
}

// slice is an EndpointSlice of one family, written by hand, that leads a service's port to a port
// of pods.
func (e *Env) slice(ctx context.Context, name, service, family string, p corev1.ServicePort, endpoints []endpoint, labels map[string]string) (*discoveryv1.EndpointSlice, error) {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + map[string]string{"IPv4": "-4", "IPv6": "-6"}[family], Namespace: e.namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "kubetest"},
		},
		AddressType: discoveryv1.AddressType(family),
		Ports:       []discoveryv1.EndpointPort{{Name: &p.Name, Protocol: &p.Protocol, Port: new(p.TargetPort.IntVal)}},
	}
	for k, v := range labels {
		s.Labels[k] = v
	}
	for _, ep := range endpoints {
		running, err := e.pod(ctx, ep.pod)
		if err != nil {
			return nil, err
		}
		for _, ip := range running.Status.PodIPs {
			if is4(ip.IP) != (family == "IPv4") {
				continue
			}
			d := discoveryv1.Endpoint{
				Addresses: []string{ip.IP}, NodeName: &running.Spec.NodeName,
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			}
			if ep.tweak != nil {
				ep.tweak(&d)
			}
			s.Endpoints = append(s.Endpoints, d)
		}
	}
	return s, nil
}
