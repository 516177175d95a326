package kubetest

import "time"

// perFrontend says why a client reaches other pods through other addresses.
const perFrontend = "kube-proxy remembers a client for each port of a service, Sluice for each port and address (decision 5)"

// memory is a session's time-out in seconds, and expired is a longer pause.
const (
	memory  = 2
	expired = 2500 * time.Millisecond
)

// affinityCases are about clients that stay with their pod.
func affinityCases() []*Case {
	threePods := create(pod("a", 1), pod("b", 2), pod("c", 3))
	return []*Case{
		{
			Name:  "affinity-cluster-ip",
			Shows: "a client stays with its pod through a cluster address, and is free again when affinity is switched off",
			Tests: []string{
				"Services / should have session affinity work for service with type clusterIP [LinuxOnly]",
				"Services / should be able to switch session affinity for service with type clusterIP [LinuxOnly]",
				"Networking / should function for client IP based session affinity: http [LinuxOnly]",
				"Networking / should function for client IP based session affinity: udp [LinuxOnly]",
				"Dual stack / should function for client IP based session affinity: http [LinuxOnly]",
				"Dual stack / should function for client IP based session affinity: udp [LinuxOnly]",
			},
			Steps: []Step{
				threePods,
				create(service("web", ports(port(tcp, 80), port(udp, 80)), remembering(10800))),
				ask("client1", tcp, clusterIP("web", 80), sticky()),
				ask("client1", udp, clusterIP("web", 80), sticky()),
				ask("node3", tcp, clusterIP("web", 80), sticky()),
				update("web", "forgets clients", forgetting),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b", "c")),
				ask("client1", udp, clusterIP("web", 80), answeredBy("a", "b", "c")),
				update("web", "remembers clients", remembering(10800)),
				ask("client1", tcp, clusterIP("web", 80), sticky()),
				ask("client1", udp, clusterIP("web", 80), sticky()),
			},
		},
		{
			Name:  "affinity-node-port",
			Shows: "the same through node ports",
			Tests: []string{
				"Services / should have session affinity work for NodePort service [LinuxOnly]",
				"Services / should be able to switch session affinity for NodePort service [LinuxOnly]",
			},
			Steps: []Step{
				threePods,
				create(service("web", nodePortType, remembering(10800))),
				ask("client1", tcp, nodePort("web", 80, "node1"), sticky()),
				ask("client1", tcp, nodePort("web", 80, "node2"), sticky()),
				ask(outside, tcp, nodePort("web", 80, "node2"), sticky()),
				update("web", "forgets clients", forgetting),
				ask("client1", tcp, nodePort("web", 80, "node1"), answeredBy("a", "b", "c")),
				ask(outside, tcp, nodePort("web", 80, "node2"), answeredBy("a", "b", "c")),
				update("web", "remembers clients", remembering(10800)),
				ask("client1", tcp, nodePort("web", 80, "node1"), sticky()),
				ask(outside, tcp, nodePort("web", 80, "node2"), sticky()),
			},
		},
		{
			Name:  "affinity-balancer",
			Shows: "the same through a load balancer",
			Tests: []string{
				"LoadBalancers / should have session affinity work for LoadBalancer service with Cluster traffic policy",
				"LoadBalancers / should be able to switch session affinity for LoadBalancer service with Cluster traffic policy",
			},
			Steps: []Step{
				threePods,
				create(service("web", loadBalancerType, remembering(10800))),
				announce("web", "node1"),
				ask(outside, tcp, balanced("web", 80), sticky()),
				update("web", "forgets clients", forgetting),
				ask(outside, tcp, balanced("web", 80), answeredBy("a", "b", "c")),
				update("web", "remembers clients", remembering(10800)),
				ask(outside, tcp, balanced("web", 80), sticky()),
			},
		},
		{
			Name:  "affinity-local-balancer",
			Shows: "the same through a load balancer with externalTrafficPolicy Local",
			Tests: []string{
				"LoadBalancers / should have session affinity work for LoadBalancer service with Local traffic policy",
				"LoadBalancers / should be able to switch session affinity for LoadBalancer service with Local traffic policy",
			},
			Steps: []Step{
				create(pod("a", 1), pod("b", 1), pod("c", 2)),
				create(service("web", loadBalancerType, localExternally, remembering(10800))),
				announce("web", "node1"),
				ask(outside, tcp, balanced("web", 80), sticky().seeing(own)),
				update("web", "forgets clients", forgetting),
				ask(outside, tcp, balanced("web", 80), answeredBy("a", "b").seeing(own)),
				update("web", "remembers clients", remembering(10800)),
				ask(outside, tcp, balanced("web", 80), sticky().seeing(own)),
			},
		},
		{
			Name:  "affinity-ends",
			Shows: "a client that has been away for the session's time-out may get another pod",
			Tests: []string{
				"Services / should have session affinity timeout work for service with type clusterIP [LinuxOnly]",
				"Services / should have session affinity timeout work for NodePort service [LinuxOnly]",
			},
			Steps: []Step{
				threePods,
				create(service("web", nodePortType, remembering(memory))),
				ask("client1", tcp, clusterIP("web", 80), sticky()),
				ask("client1", tcp, clusterIP("web", 80), spread().every(expired)),
				ask("client2", tcp, nodePort("web", 80, "node1"), sticky()),
				ask("client2", tcp, nodePort("web", 80, "node1"), spread().every(expired)),
			},
		},
		{
			Name:  "affinity-of-a-pod-that-goes",
			Shows: "a client whose pod is deleted gets another, and stays with it",
			Tests: []string{
				"Services / should have session affinity work for service with type clusterIP [LinuxOnly]",
			},
			Steps: []Step{
				create(pod("a", 1), service("web", nodePortType, remembering(10800))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				ask(outside, tcp, nodePort("web", 80, "node2"), answeredBy("a")),
				create(pod("b", 2)),
				settled(),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				removePods("a"),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("b")),
				ask(outside, tcp, nodePort("web", 80, "node2"), answeredBy("b")),
				create(pod("c", 3)),
				settled(),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("b")),
				ask(outside, tcp, nodePort("web", 80, "node2"), answeredBy("b")),
			},
		},
		{
			Name:  "affinity-across-addresses",
			Shows: "whether a remembered client reaches the same pod through another address of the service",
			Tests: []string{
				"Services / should have session affinity work for service with type clusterIP [LinuxOnly]",
			},
			Steps: []Step{
				threePods,
				create(service("web", remembering(10800), externally("203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4",
					"203.0.113.5", "203.0.113.6", "203.0.113.7", "203.0.113.8", "203.0.113.9", "203.0.113.10", "203.0.113.11", "203.0.113.12"))),
				ask("client1", tcp, clusterIP("web", 80), sticky()),
				ask("client1", tcp, external("web", 80), spread().overAll()).unless(sticky().overAll(), perFrontend, NFTables, IPTables),
			},
		},
	}
}
