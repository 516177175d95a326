package kubetest

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func number(n int32) intstr.IntOrString { return intstr.FromInt32(n) }
func named(s string) intstr.IntOrString { return intstr.FromString(s) }

// servingBoth makes a pod answer on a port, for both TCP and UDP.
func servingBoth(n int32) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{
			{Name: "tcp", ContainerPort: n, Protocol: tcp}, {Name: "udp", ContainerPort: n, Protocol: udp},
		}
	}
}

// families gives a service those address families.
func families(list ...corev1.IPFamily) serviceOption {
	return func(s *corev1.Service) {
		s.Spec.IPFamilies = list
		if len(list) == 1 {
			s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
		}
	}
}

func dualStack(s *corev1.Service) {
	s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
}

func singleStack(s *corev1.Service) {
	s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	s.Spec.IPFamilies, s.Spec.ClusterIPs = s.Spec.IPFamilies[:1], s.Spec.ClusterIPs[:1]
}

// otherPort says why a port that a service lacks is not refused.
const otherPort = "kube-proxy's iptables mode knows only the ports that services have: a packet to another port of a cluster address goes " +
	"where the node's routes lead. Its nftables mode and Sluice reject it"

// portCases are about the ports of services and where they lead.
func portCases() []*Case {
	return []*Case{
		{
			Name:  "several-ports",
			Shows: "each port of a service leads to the pods that have a port of that name",
			Tests: []string{
				"Services / should serve multiport endpoints from pods",
			},
			Steps: []Step{
				create(service("web", ports(portTo(tcp, 80, named("one")), portTo(tcp, 81, named("two"))))),
				ask("client1", tcp, clusterIP("web", 80), refused()),
				create(pod("a", 1, naming("one", 100))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a").on(100)),
				ask("client1", tcp, clusterIP("web", 81), refused()),
				create(pod("b", 2, naming("two", 101))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a").on(100)),
				ask("client1", tcp, clusterIP("web", 81), answeredBy("b").on(101)),
				removePods("a"),
				ask("client1", tcp, clusterIP("web", 80), refused()),
				ask("client1", tcp, clusterIP("web", 81), answeredBy("b").on(101)),
				removePods("b"),
				ask("client1", tcp, clusterIP("web", 81), refused()),
			},
		},
		{
			Name:  "ports-come-and-go",
			Shows: "ports are added to a service and taken away while it is in use",
			Tests: []string{
				"Services / should be updated after adding or deleting ports",
			},
			Steps: []Step{
				create(service("web", ports(portTo(tcp, 80, named("one")))), pod("a", 1, naming("one", 100))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a").on(100)),
				ask("client1", tcp, clusterIP("web", 81), refused()).unless(silent(), otherPort, IPTables),
				ask("node1", tcp, clusterIP("web", 81), refused()).unless(silent(), otherPort, IPTables),
				update("web", "gets a port", ports(portTo(tcp, 80, named("one")), portTo(tcp, 81, named("two")))),
				create(pod("b", 2, naming("two", 101))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a").on(100)),
				ask("client1", tcp, clusterIP("web", 81), answeredBy("b").on(101)),
				update("web", "loses a port", ports(portTo(tcp, 80, named("one")))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a").on(100)),
				ask("client1", tcp, clusterIP("web", 81), refused()).unless(silent(), otherPort, IPTables),
			},
		},
		{
			Name:  "target-port-changes",
			Shows: "a service's port can move to another port of the same pods",
			Tests: []string{
				"Services / should support named targetPorts that resolve to different ports on different endpoints",
			},
			Steps: []Step{
				create(service("web", nodePortType, ports(portTo(tcp, 80, named("web")))), pod("a", 1, naming("web", 8080)), pod("b", 2, naming("web", 8080))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b").on(8080)),
				removePods("a"),
				create(pod("c", 3, naming("web", 8000))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("b", "c")),
				ask(outside, tcp, nodePort("web", 80, "node2"), answeredBy("b", "c")),
				removePods("b"),
				create(pod("d", 1, naming("web", 8000))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("c", "d").on(8000)),
				create(pod("e", 2, labelled("other"), serving(tcp, 7000, 7001))),
				create(service("moved", to("other"), ports(portTo(tcp, 80, number(7000))))),
				ask("client1", tcp, clusterIP("moved", 80), answeredBy("e").on(7000)),
				update("moved", "leads to another port", ports(portTo(tcp, 80, number(7001)))),
				ask("client1", tcp, clusterIP("moved", 80), answeredBy("e").on(7001)),
			},
		},
		{
			Name:  "sidecar-ports",
			Shows: "ports of init containers that keep running are ports of the pod, by number and by name",
			Tests: []string{
				"Services / should connect to the ports exposed by restartable init containers",
				"Services / should connect to the named ports exposed by restartable init containers",
			},
			Steps: []Step{
				create(service("number", ports(portTo(tcp, 80, number(8080)))), service("name", ports(portTo(tcp, 80, named("http")))),
					pod("a", 1, naming("http", 8080), sidecar)),
				ask("client1", tcp, clusterIP("number", 80), answeredBy("a").on(8080)),
				ask("client1", tcp, clusterIP("name", 80), answeredBy("a").on(8080)),
			},
		},
		{
			Name:  "two-protocols-one-port",
			Shows: "TCP and UDP share a port's number; each comes and goes on its own",
			Tests: []string{
				"Services / should be able to update service type to NodePort listening on same port number but different protocols",
				"Services / should serve endpoints on same port and different protocol for internal traffic on Type LoadBalancer",
			},
			Steps: []Step{
				create(service("web"), pod("a", 1), pod("b", 2)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				update("web", "becomes a NodePort", nodePortType),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask(outside, tcp, nodePort("web", 80, "node3"), answeredBy("a", "b")),
				update("web", "gets UDP", ports(port(tcp, 80), port(udp, 80))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask("client1", udp, clusterIP("web", 80), answeredBy("a", "b")),
				ask(outside, tcp, nodePort("web", 80, "node3"), answeredBy("a", "b")),
				ask(outside, udp, nodePort("web", 80, "node3"), answeredBy("a", "b")),
				update("web", "becomes a LoadBalancer", loadBalancerType),
				announce("web", "node3"),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask("client1", udp, clusterIP("web", 80), answeredBy("a", "b")),
				ask("client1", tcp, balanced("web", 80), answeredBy("a", "b")),
				ask("client1", udp, balanced("web", 80), answeredBy("a", "b")),
				ask(outside, udp, balanced("web", 80), answeredBy("a", "b")),
				update("web", "loses UDP", ports(port(tcp, 80))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask("client1", udp, clusterIP("web", 80), refused()).unless(silent(), otherPort, IPTables),
				ask(outside, udp, nodePort("web", 80, "node3").before(), refused()),
			},
		},
		{
			Name:  "node-ports-come-and-go",
			Shows: "a node port is released with its port, and answers for the next service that gets it",
			Tests: []string{
				"Services / should release NodePorts on delete",
				"Networking / should update nodePort: http",
				"Networking / should update nodePort: udp",
			},
			Steps: []Step{
				create(service("web", nodePortType, ports(port(tcp, 80), port(udp, 80))), pod("a", 1), pod("b", 2, labelled("other"))),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a")),
				ask(outside, udp, nodePort("web", 80, "node2"), answeredBy("a")),
				removeService("web"),
				ask(outside, tcp, nodePort("web", 80, "node1").before(), refused()),
				ask(outside, udp, nodePort("web", 80, "node2").before(), refused()),
				ask("client1", tcp, nodePort("web", 80, "node1").before(), refused()),
				inherit(nodePort("web", 80, "node1"), service("heir", nodePortType, to("other"))),
				ask(outside, tcp, nodePort("heir", 80, "node1"), answeredBy("b")),
				ask(outside, tcp, nodePort("web", 80, "node1").before(), answeredBy("b")),
			},
		},
		{
			Name:  "node-port-addresses",
			Shows: "node ports answer on the node's own address, not on its loopback",
			Tests: []string{
				"LocalhostNodePorts / should proxy localhost NodePort traffic to backends across nodes",
			},
			Steps: []Step{
				create(service("web", nodePortType), pod("a", 1), pod("b", 2)),
				ask("node1", tcp, nodePort("web", 80, "node1"), answeredBy("a", "b")),
				ask("node1", tcp, localhost("web", 80), refused()).unless(answeredBy("a", "b"),
					"kube-proxy's iptables mode serves node ports on all addresses of the node by default, 127.0.0.1 too; its nftables "+
						"mode and Sluice use the primary one of each family (decision 3)", IPTables),
			},
		},
	}
}
