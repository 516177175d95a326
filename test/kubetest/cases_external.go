package kubetest

import corev1 "k8s.io/api/core/v1"

// otherFamily says why a load balancer with source ranges of one family answers in the other.
const otherFamily = "In kube-proxy, source ranges of one family leave the other open to all clients; in Sluice they close it (decision 6)"

// externalCases are about external addresses and load balancers.
func externalCases() []*Case {
	return []*Case{
		{
			Name:  "external-addresses",
			Shows: "external addresses that no node has lead to the service, from pods, nodes and outside",
			Tests: []string{
				"Services / should be possible to connect to a service via ExternalIP when the external IP is not assigned to a node",
			},
			Steps: []Step{
				create(service("web", externally("203.0.113.250", "2001:db8::cb00:71fa")), pod("a", 1), pod("b", 2)),
				route("node3", "203.0.113.250", "2001:db8::cb00:71fa"),
				ask("client1", tcp, external("web", 80), answeredBy("a", "b")),
				ask("node1", tcp, external("web", 80), answeredBy("a", "b")),
				ask(outside, tcp, external("web", 80), answeredBy("a", "b").seeing(node)),
				update("web", "loses its addresses", externally()),
				ask("client1", tcp, external("web", 80).before(), unanswered()),
				ask(outside, tcp, external("web", 80).before(), unanswered()),
			},
		},
		{
			Name:  "balancer-from-everywhere",
			Shows: "a load balancer's addresses work from outside, and from pods and nodes without leaving the node",
			Tests: []string{
				"LoadBalancers ExternalTrafficPolicy: Local / should work from pods",
			},
			Steps: []Step{
				create(service("web", loadBalancerType, localExternally), pod("a", 1)),
				announce("web", "node1"),
				ask(outside, tcp, balanced("web", 80), answeredBy("a").seeing(own)),
				ask("client1", tcp, balanced("web", 80), answeredBy("a")),
				ask("client2", tcp, balanced("web", 80), answeredBy("a")),
				ask("node2", tcp, balanced("web", 80), answeredBy("a")),
			},
		},
		{
			Name:  "source-ranges",
			Shows: "a load balancer answers clients in its source ranges; node ports and the cluster address answer all clients",
			Tests: []string{
				"LoadBalancers / should only allow access from service loadbalancer source ranges",
			},
			Steps: []Step{
				create(service("web", loadBalancerType), pod("a", 1), pod("b", 2)),
				announce("web", "node1"),
				ask(outside, tcp, balanced("web", 80), answeredBy("a", "b")),
				ask("client1", tcp, balanced("web", 80), answeredBy("a", "b")),
				ask("client2", tcp, balanced("web", 80), answeredBy("a", "b")),
				restrict("web", "client1"),
				ask(outside, tcp, balanced("web", 80), silent()),
				ask("client2", tcp, balanced("web", 80), silent()),
				ask("client1", tcp, balanced("web", 80), answeredBy("a", "b")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a", "b")),
				update("web", "admits all", fromRanges("0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1")),
				ask(outside, tcp, balanced("web", 80), answeredBy("a", "b")),
				ask("client2", tcp, balanced("web", 80), answeredBy("a", "b")),
				update("web", "admits nobody", fromRanges("255.0.0.0/32", "ffff::/128")),
				ask(outside, tcp, balanced("web", 80), silent()),
				ask("client1", tcp, balanced("web", 80), silent()),
				update("web", "admits all IPv4", fromRanges("0.0.0.0/0")),
				ask(outside, tcp, balanced("web", 80).v4(), answeredBy("a", "b")),
				ask(outside, tcp, balanced("web", 80).v6(), silent()).unless(answeredBy("a", "b"), otherFamily, NFTables, IPTables),
				update("web", "has no ranges", fromRanges()),
				ask(outside, tcp, balanced("web", 80), answeredBy("a", "b")),
				ask("client1", tcp, balanced("web", 80), answeredBy("a", "b")),
				ask("client2", tcp, balanced("web", 80), answeredBy("a", "b")),
			},
		},
		{
			Name:  "balancer-rejects-without-endpoints",
			Shows: "external addresses of all sorts refuse while there are no endpoints",
			Tests: []string{
				"Services / should be rejected when no endpoints exist",
			},
			Steps: []Step{
				create(service("web", loadBalancerType, ports(port(tcp, 80), port(udp, 80)))),
				announce("web", "node2"),
				ask(outside, tcp, balanced("web", 80), refused()),
				ask(outside, tcp, nodePort("web", 80, "node1"), refused()),
				ask(outside, udp, nodePort("web", 80, "node1"), refused()),
				ask("client1", tcp, balanced("web", 80), refused()),
				ask("client1", udp, clusterIP("web", 80), refused()),
				create(pod("a", 3)),
				ask(outside, tcp, balanced("web", 80), answeredBy("a")),
				ask("client1", udp, clusterIP("web", 80), answeredBy("a")),
			},
		},
		{
			Name:  "balancer-that-is-a-proxy",
			Shows: "the addresses of a load balancer that sends to the nodes' own addresses are left alone",
			Steps: []Step{
				create(service("web", loadBalancerType), pod("a", 1)),
				announceAs("web", "node1", corev1.LoadBalancerIPModeVIP),
				ask("client1", tcp, balanced("web", 80), answeredBy("a")),
				ask(outside, tcp, balanced("web", 80), answeredBy("a")),
				announceAs("web", "node1", corev1.LoadBalancerIPModeProxy),
				ask("client1", tcp, balanced("web", 80), silent()),
				ask(outside, tcp, balanced("web", 80), silent()),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a")),
			},
		},
	}
}
