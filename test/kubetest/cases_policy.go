package kubetest

// otherNodesPods says what happens if a pod asks another node, without pods, of a service with
// externalTrafficPolicy Local.
const otherNodesPods = "kube-proxy with a cluster CIDR leads pods past externalTrafficPolicy Local on other nodes than their own, too, but leaves their addresses as they " +
	"are: the answers of a pod on a third node come back by another path and are not translated. Sluice masquerades them"

// policyCases are about traffic that stays on its node.
func policyCases() []*Case {
	return []*Case{
		{
			Name:  "internal-local-from-pods",
			Shows: "with internalTrafficPolicy Local pods reach the pods of their own node, and none if it has none",
			Tests: []string{
				"Services / should respect internalTrafficPolicy=Local Pod to Pod",
			},
			Steps: []Step{
				create(service("web", localInternally), pod("a", 1)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a").seeing(own)),
				ask("client2", tcp, clusterIP("web", 80), silent()),
				create(pod("b", 2)),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("b")),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
			},
		},
		{
			Name:  "internal-local-from-nodes",
			Shows: "the same for nodes and pods on their network",
			Tests: []string{
				"Services / should respect internalTrafficPolicy=Local Pod (hostNetwork: true) to Pod",
			},
			Steps: []Step{
				create(service("web", localInternally, ports(portTo(tcp, 8000, number(80)))), pod("a", 1)),
				create(pod("host1", 1, onHost, labelled("other"), serving(tcp, 10281)), pod("host2", 2, onHost, labelled("other"), serving(tcp, 10281))),
				ask("host1", tcp, clusterIP("web", 8000), answeredBy("a")),
				ask("host2", tcp, clusterIP("web", 8000), silent()),
				ask("node1", tcp, clusterIP("web", 8000), answeredBy("a")),
				ask("node2", tcp, clusterIP("web", 8000), silent()),
			},
		},
		{
			Name:  "internal-local-to-nodes",
			Shows: "the same to pods on their node's network",
			Tests: []string{
				"Services / should respect internalTrafficPolicy=Local Pod and Node, to Pod (hostNetwork: true)",
			},
			Steps: []Step{
				create(service("web", localInternally, ports(portTo(tcp, 80, number(10180)))), pod("a", 1, onHost, servingBoth(10180))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("client2", tcp, clusterIP("web", 80), silent()),
				ask("node1", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("node2", tcp, clusterIP("web", 80), silent()),
			},
		},
		{
			Name:  "external-local-node-port",
			Shows: "with externalTrafficPolicy Local pods see the addresses of outside clients, and nodes without pods do not answer",
			Tests: []string{
				"Services / should support externalTrafficPolicy=Local for type=NodePort",
				"LoadBalancers ExternalTrafficPolicy: Local / should only target nodes with endpoints",
				"LoadBalancers ExternalTrafficPolicy: Local / should target all nodes with endpoints",
				"LoadBalancers ExternalTrafficPolicy: Local / should work for type=LoadBalancer",
			},
			Steps: []Step{
				create(service("web", loadBalancerType, localExternally), pod("a", 1)),
				announce("web", "node1"),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a").seeing(own)),
				ask("node2", tcp, nodePort("web", 80, "node1"), answeredBy("a").seeing(own)),
				ask(outside, tcp, nodePort("web", 80, "node2"), silent()),
				ask(outside, tcp, nodePort("web", 80, "node3"), silent()),
				ask(outside, tcp, balanced("web", 80), answeredBy("a").seeing(own)),
				create(pod("b", 2), pod("c", 2)),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a").seeing(own)),
				ask(outside, tcp, nodePort("web", 80, "node2"), answeredBy("b", "c").seeing(own)),
				ask(outside, tcp, nodePort("web", 80, "node3"), silent()),
				announce("web", "node3"),
				ask(outside, tcp, balanced("web", 80), silent()),
				ask("client3", tcp, clusterIP("web", 80), answeredBy("a", "b", "c")),
			},
		},
		{
			Name:  "external-local-changes",
			Shows: "a change of externalTrafficPolicy changes node ports and health check ports on all nodes, and back; nodes and pods reach all endpoints nevertheless",
			Tests: []string{
				"Services / should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes",
			},
			Steps: []Step{
				create(service("web", loadBalancerType, localExternally), pod("a", 1)),
				announce("web", "node1"),
				ask(outside, tcp, healthCheck("web", "node1"), says(200)),
				ask("node2", tcp, healthCheck("web", "node1"), says(200)),
				ask(outside, tcp, healthCheck("web", "node2"), says(503)),
				ask(outside, tcp, healthCheck("web", "node3"), says(503)),
				ask("node2", tcp, nodePort("web", 80, "node1"), answeredBy("a").seeing(own)),
				ask("node2", tcp, nodePort("web", 80, "node2"), answeredBy("a")),
				ask("client2", tcp, nodePort("web", 80, "node2"), answeredBy("a")),
				ask("client2", tcp, nodePort("web", 80, "node3"), answeredBy("a")).unless(silent(), otherNodesPods, NFTables, IPTables),
				ask("node2", tcp, nodePort("web", 80, "node3"), silent()),
				update("web", "spreads what comes from outside", clusterExternally),
				ask(outside, tcp, healthCheck("web", "node1").before(), refused()),
				ask(outside, tcp, healthCheck("web", "node2").before(), refused()),
				ask(outside, tcp, healthCheck("web", "node3").before(), refused()),
				ask("node2", tcp, nodePort("web", 80, "node1"), answeredBy("a")),
				ask("node2", tcp, nodePort("web", 80, "node2"), answeredBy("a")),
				ask("node2", tcp, nodePort("web", 80, "node3"), answeredBy("a")),
				ask(outside, tcp, nodePort("web", 80, "node3"), answeredBy("a").seeing(node)),
				update("web", "keeps to the node", localExternally),
				ask(outside, tcp, healthCheck("web", "node1"), says(200)),
				ask(outside, tcp, healthCheck("web", "node2"), says(503)),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a").seeing(own)),
				ask("node2", tcp, nodePort("web", 80, "node2"), answeredBy("a")),
				ask(outside, tcp, nodePort("web", 80, "node3"), silent()),
				removePods("a"),
				ask(outside, tcp, healthCheck("web", "node1"), says(503)),
			},
		},
		{
			Name:  "internal-local-changes",
			Shows: "a change of internalTrafficPolicy is followed, and back",
			Steps: []Step{
				create(service("web"), pod("a", 1), pod("b", 2)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask("client3", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				update("web", "keeps to the node", localInternally),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("client3", tcp, clusterIP("web", 80), silent()),
				update("web", "spreads again", clusterInternally),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask("client3", tcp, clusterIP("web", 80), answeredBy("a", "b")),
			},
		},
	}
}
