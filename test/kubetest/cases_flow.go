package kubetest

// These say why a connection does not survive a segment outside its window.
const (
	strayForwarded = "kube-proxy's iptables mode and Sluice drop such segments where they are forwarded; kube-proxy's nftables mode does not"
	strayReset     = "kube-proxy does not drop such segments if they arrive at the node itself: they reset its connections. Sluice does (decision 7)"
)

// flowCases are about flows that outlive their pod, and flows that must not.
func flowCases() []*Case {
	udpPort := ports(port(udp, 80))
	return []*Case{
		{
			Name:  "udp-node-port-server-cycles",
			Shows: "a UDP flow through a node port follows when its pod is replaced, even if it began before there were pods",
			Tests: []string{
				"Conntrack / should be able to preserve UDP traffic when server pod cycles for a NodePort service",
			},
			Steps: []Step{
				create(service("web", nodePortType, udpPort)),
				ask("client1", udp, nodePort("web", 80, "node2"), refused()).flow("one"),
				ask(outside, udp, nodePort("web", 80, "node2"), refused()).flow("two"),
				create(pod("a", 2)),
				ask("client1", udp, nodePort("web", 80, "node2"), answeredBy("a")).flow("one"),
				ask(outside, udp, nodePort("web", 80, "node2"), answeredBy("a")).flow("two"),
				create(pod("b", 2)),
				removePods("a"),
				ask("client1", udp, nodePort("web", 80, "node2"), answeredBy("b")).flow("one"),
				ask(outside, udp, nodePort("web", 80, "node2"), answeredBy("b")).flow("two"),
			},
		},
		{
			Name:  "udp-cluster-ip-server-cycles",
			Shows: "the same through a cluster address",
			Tests: []string{
				"Conntrack / should be able to preserve UDP traffic when server pod cycles for a ClusterIP service",
			},
			Steps: []Step{
				create(service("web", udpPort)),
				ask("client1", udp, clusterIP("web", 80), refused()).flow("one"),
				create(pod("a", 2)),
				ask("client1", udp, clusterIP("web", 80), answeredBy("a")).flow("one"),
				create(pod("b", 2)),
				removePods("a"),
				ask("client1", udp, clusterIP("web", 80), answeredBy("b")).flow("one"),
			},
		},
		{
			Name:  "udp-local-server-cycles",
			Shows: "the same with internalTrafficPolicy Local, where the pod is on the client's node",
			Tests: []string{
				"Conntrack / should be able to preserve UDP traffic when server pod cycles for a ClusterIP service with InternalTrafficPolicy set to Local",
			},
			Steps: []Step{
				create(service("web", localInternally, udpPort), pod("a", 1), pod("other", 2)),
				ask("client1", udp, clusterIP("web", 80), answeredBy("a")).flow("one"),
				ask("client3", udp, clusterIP("web", 80), silent()).flow("two"),
				removePods("a"),
				ask("client1", udp, clusterIP("web", 80), silent()).flow("one"),
				create(pod("b", 1), pod("c", 3)),
				ask("client1", udp, clusterIP("web", 80), answeredBy("b")).flow("one"),
				ask("client3", udp, clusterIP("web", 80), answeredBy("c")).flow("two"),
			},
		},
		{
			Name:  "udp-host-client-server-cycles",
			Shows: "the same for a client that is a node",
			Tests: []string{
				"Conntrack / should be able to preserve UDP traffic when server pod cycles for a ClusterIP service and client is hostNetwork",
			},
			Steps: []Step{
				create(service("web", udpPort)),
				ask("node1", udp, clusterIP("web", 80), refused()).flow("one"),
				create(pod("a", 2)),
				ask("node1", udp, clusterIP("web", 80), answeredBy("a")).flow("one"),
				create(pod("b", 2)),
				removePods("a"),
				ask("node1", udp, clusterIP("web", 80), answeredBy("b")).flow("one"),
			},
		},
		{
			Name:  "udp-unready-to-ready",
			Shows: "a UDP flow that began before there were ready pods follows when one becomes ready",
			Tests: []string{
				"Conntrack / should be able to preserve UDP traffic when initial unready endpoints get ready",
			},
			Steps: []Step{
				create(service("web", udpPort)),
				ask("client1", udp, clusterIP("web", 80), refused()).flow("one"),
				create(pod("a", 2, gated)),
				settled(),
				ask("client1", udp, clusterIP("web", 80), refused()).flow("one"),
				ready("a", true),
				ask("client1", udp, clusterIP("web", 80), answeredBy("a")).flow("one"),
			},
		},
		{
			Name:  "udp-target-port-changes",
			Shows: "a UDP flow follows when its service leads to another port of the same pod",
			Tests: []string{
				"Conntrack / should be able to cleanup conntrack entries when UDP service target port changes for a NodePort service",
			},
			Steps: []Step{
				create(service("web", nodePortType, ports(portTo(udp, 80, number(8080)))), pod("a", 2, serving(udp, 8080, 9090))),
				ask("client1", udp, nodePort("web", 80, "node2"), answeredBy("a").on(8080)).flow("one"),
				ask("client1", udp, clusterIP("web", 80), answeredBy("a").on(8080)).flow("two"),
				update("web", "leads to another port", ports(portTo(udp, 80, number(9090)))),
				ask("client1", udp, nodePort("web", 80, "node2"), answeredBy("a").on(9090)).flow("one"),
				ask("client1", udp, clusterIP("web", 80), answeredBy("a").on(9090)).flow("two"),
			},
		},
		{
			Name:  "udp-balancer-server-cycles",
			Shows: "a UDP flow through a load balancer follows when its pod is replaced, on the same node and on another",
			Tests: []string{
				"LoadBalancers / should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on different nodes",
				"LoadBalancers / should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on the same nodes",
			},
			Steps: []Step{
				create(service("web", loadBalancerType, udpPort), pod("a", 1)),
				announce("web", "node3"),
				ask(outside, udp, balanced("web", 80), answeredBy("a")).flow("one"),
				create(pod("b", 1)),
				removePods("a"),
				ask(outside, udp, balanced("web", 80), answeredBy("b")).flow("one"),
				create(pod("c", 2)),
				removePods("b"),
				ask(outside, udp, balanced("web", 80), answeredBy("c")).flow("one"),
			},
		},
		{
			Name:  "stray-segments",
			Shows: "a segment outside a connection's window does not reach the client untranslated, and ends no connection",
			Tests: []string{
				"Conntrack / proxy implementation should not be vulnerable to the invalid conntrack state bug [Privileged]",
			},
			Steps: []Step{
				create(service("web"), pod("a", 2)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")).flow("one"),
				strays(),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")).flow("one").unless(broken(), strayForwarded, NFTables),
			},
		},
		{
			Name:  "stray-segments-to-nodes",
			Shows: "the same for a client that is a node",
			Tests: []string{
				"Conntrack / proxy implementation should not be vulnerable to the invalid conntrack state bug [Privileged]",
			},
			Steps: []Step{
				create(service("web"), pod("a", 1)),
				ask("node1", tcp, clusterIP("web", 80), answeredBy("a")).flow("one"),
				strays(),
				ask("node1", tcp, clusterIP("web", 80), answeredBy("a")).flow("one").unless(broken(), strayReset, NFTables, IPTables),
			},
		},
		{
			Name:  "connections-live-on",
			Shows: "a connection goes on while its pod ends, and while other pods come and go",
			Tests: []string{
				"Connectivity Pod Lifecycle / should be able to connect from a Pod to a terminating Pod",
			},
			Steps: []Step{
				create(service("web", nodePortType), pod("a", 1, lingering)),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("a")).flow("one"),
				ask(outside, tcp, nodePort("web", 80, "node2"), answeredBy("a")).flow("two"),
				create(pod("b", 2)),
				terminate("a"),
				settled(),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("b")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("a")).flow("one"),
				ask(outside, tcp, nodePort("web", 80, "node2"), answeredBy("a")).flow("two"),
			},
		},
		{
			Name:  "connections-outlive-services",
			Shows: "a connection goes on when its service is deleted",
			Steps: []Step{
				create(service("web"), pod("a", 1)),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("a")).flow("one"),
				removeService("web"),
				ask("client2", tcp, clusterIP("web", 80).before(), unanswered()),
				ask("client2", tcp, clusterIP("web", 80).before(), answeredBy("a")).flow("one"),
			},
		},
	}
}
