package kubetest

// typeCases are about services that change their type.
func typeCases() []*Case {
	return []*Case{
		{
			Name:  "external-name-to-cluster-ip",
			Shows: "an ExternalName that becomes a ClusterIP gets an address that works",
			Tests: []string{
				"Services / should be able to change the type from ExternalName to ClusterIP",
			},
			Steps: []Step{
				create(service("web", externalNameType), pod("a", 1), pod("b", 2)),
				update("web", "becomes a ClusterIP", clusterIPType, ports(port(tcp, 80)), to("web")),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
			},
		},
		{
			Name:  "external-name-to-node-port",
			Shows: "an ExternalName that becomes a NodePort gets an address and a port that work",
			Tests: []string{
				"Services / should be able to change the type from ExternalName to NodePort",
			},
			Steps: []Step{
				create(service("web", externalNameType), pod("a", 1), pod("b", 2)),
				update("web", "becomes a NodePort", nodePortType, ports(port(tcp, 80)), to("web")),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask("client1", tcp, nodePort("web", 80, "node1"), answeredBy("a", "b")),
				ask(outside, tcp, nodePort("web", 80, "node3"), answeredBy("a", "b")),
			},
		},
		{
			Name:  "cluster-ip-to-external-name",
			Shows: "the address of a ClusterIP that becomes an ExternalName leads nowhere",
			Tests: []string{
				"Services / should be able to change the type from ClusterIP to ExternalName",
			},
			Steps: []Step{
				create(service("web"), pod("a", 1)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				update("web", "becomes an ExternalName", externalNameType),
				ask("client1", tcp, clusterIP("web", 80).before(), unanswered()),
				ask("node3", tcp, clusterIP("web", 80).before(), unanswered()),
			},
		},
		{
			Name:  "node-port-to-external-name",
			Shows: "the address and port of a NodePort that becomes an ExternalName lead nowhere",
			Tests: []string{
				"Services / should be able to change the type from NodePort to ExternalName",
			},
			Steps: []Step{
				create(service("web", nodePortType), pod("a", 1)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a")),
				update("web", "becomes an ExternalName", externalNameType),
				ask("client1", tcp, clusterIP("web", 80).before(), unanswered()),
				ask(outside, tcp, nodePort("web", 80, "node1").before(), refused()),
			},
		},
		{
			Name:  "cluster-ip-to-balancer-and-back",
			Shows: "node ports and the load balancer's addresses appear and vanish with a service's type; the cluster address stays",
			Tests: []string{
				"LoadBalancers / should be able to change the type and ports of a TCP service",
				"LoadBalancers / should be able to change the type and ports of a UDP service",
			},
			Steps: []Step{
				create(service("web", ports(port(tcp, 80), port(udp, 80))), pod("a", 1), pod("b", 2)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				update("web", "becomes a NodePort", nodePortType),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a", "b")),
				ask(outside, udp, nodePort("web", 80, "node2"), answeredBy("a", "b")),
				update("web", "becomes a LoadBalancer", loadBalancerType),
				announce("web", "node1"),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a", "b")),
				ask(outside, tcp, balanced("web", 80), answeredBy("a", "b")),
				ask(outside, udp, balanced("web", 80), answeredBy("a", "b")),
				update("web", "moves its ports", ports(portTo(tcp, 81, number(80)), portTo(udp, 81, number(80)))),
				ask(outside, tcp, balanced("web", 81), answeredBy("a", "b")),
				ask(outside, udp, balanced("web", 81), answeredBy("a", "b")),
				ask("client1", tcp, clusterIP("web", 81), answeredBy("a", "b")),
				update("web", "becomes a ClusterIP", clusterIPType),
				ask("client1", tcp, clusterIP("web", 81), answeredBy("a", "b")),
				ask(outside, tcp, balanced("web", 81).before(), unanswered()),
				ask(outside, udp, balanced("web", 81).before(), unanswered()),
				ask(outside, tcp, nodePort("web", 80, "node1").before(), refused()),
				ask(outside, udp, nodePort("web", 80, "node2").before(), refused()),
			},
		},
		{
			Name:  "balancer-without-node-ports",
			Shows: "a load balancer needs no node ports, and gets them when it asks for them",
			Tests: []string{
				"LoadBalancers / should be able to create LoadBalancer Service without NodePort and change it",
			},
			Steps: []Step{
				create(service("web", loadBalancerType, nodePorts(false)), pod("a", 1), pod("b", 2)),
				announce("web", "node2"),
				ask(outside, tcp, balanced("web", 80), answeredBy("a", "b")),
				update("web", "gets node ports", nodePorts(true)),
				ask(outside, tcp, balanced("web", 80), answeredBy("a", "b")),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a", "b")),
			},
		},
	}
}
