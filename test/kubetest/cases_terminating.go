package kubetest

// terminatingCases are about pods that still serve while they terminate.
func terminatingCases() []*Case {
	return []*Case{
		{
			Name:  "terminating-internal-cluster",
			Shows: "without ready pods, terminating ones that still serve get new connections; ready ones take over",
			Tests: []string{
				"Services / should fallback to terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Cluster",
			},
			Steps: []Step{
				create(service("web"), pod("a", 1, lingering)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				terminate("a"),
				settled(),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("a")),
				create(pod("b", 2)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("b")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("b")),
				removePods("b"),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				removePods("a"),
				ask("client1", tcp, clusterIP("web", 80), refused()),
			},
		},
		{
			Name:  "terminating-internal-local",
			Shows: "the same on one node with internalTrafficPolicy Local",
			Tests: []string{
				"Services / should fallback to local terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Local",
			},
			Steps: []Step{
				create(service("web", localInternally), pod("a", 1, lingering)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				terminate("a"),
				settled(),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("client2", tcp, clusterIP("web", 80), silent()),
				create(pod("b", 2)),
				settled(),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("b")),
			},
		},
		{
			Name:  "terminating-external-cluster",
			Shows: "the same through node ports",
			Tests: []string{
				"Services / should fallback to terminating endpoints when there are no ready endpoints with externallTrafficPolicy=Cluster",
			},
			Steps: []Step{
				create(service("web", nodePortType), pod("a", 1, lingering)),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a")),
				terminate("a"),
				settled(),
				ask("client1", tcp, nodePort("web", 80, "node1"), answeredBy("a")),
				ask("client2", tcp, nodePort("web", 80, "node1"), answeredBy("a")),
				ask(outside, tcp, nodePort("web", 80, "node3"), answeredBy("a")),
			},
		},
		{
			Name:  "terminating-external-local",
			Shows: "the same on one node with externalTrafficPolicy Local",
			Tests: []string{
				"Services / should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local",
			},
			Steps: []Step{
				create(service("web", nodePortType, localExternally), pod("a", 1, lingering)),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a")),
				terminate("a"),
				settled(),
				ask("client1", tcp, nodePort("web", 80, "node1"), answeredBy("a")),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a").seeing(own)),
				ask(outside, tcp, nodePort("web", 80, "node2"), silent()),
				create(pod("b", 2)),
				settled(),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a").seeing(own)),
				ask(outside, tcp, nodePort("web", 80, "node2"), answeredBy("b").seeing(own)),
			},
		},
		{
			Name:  "terminating-health-check",
			Shows: "the health check port fails when the node's only pods are terminating, though they still serve",
			Tests: []string{
				"Services / should fail health check node port if there are only terminating endpoints",
			},
			Steps: []Step{
				create(service("web", loadBalancerType, localExternally), pod("a", 1, lingering)),
				ask("client1", tcp, healthCheck("web", "node1"), says(200)),
				ask(outside, tcp, healthCheck("web", "node1"), says(200)),
				terminate("a"),
				ask("client1", tcp, healthCheck("web", "node1"), says(503)),
				ask(outside, tcp, healthCheck("web", "node1"), says(503)),
				ask("client1", tcp, nodePort("web", 80, "node1"), answeredBy("a")),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a")),
			},
		},
		{
			Name:  "terminating-pods-themselves",
			Shows: "a terminating pod answers at its own address, and reaches pods and services, until its end",
			Tests: []string{
				"Connectivity Pod Lifecycle / should be able to connect from a Pod to a terminating Pod",
				"Connectivity Pod Lifecycle / should be able to connect to other Pod from a terminating Pod",
			},
			Steps: []Step{
				create(service("web", to("other")), pod("a", 1, lingering), pod("b", 2, labelled("other"))),
				ask("client2", tcp, podItself("a", 80), answeredBy("a").seeing(own)),
				terminate("a"),
				settled(),
				ask("client2", tcp, podItself("a", 80), answeredBy("a").seeing(own)),
				ask("a", tcp, podItself("b", 80), answeredBy("b").seeing(own)),
				ask("a", tcp, clusterIP("web", 80), answeredBy("b").seeing(own)),
			},
		},
		{
			Name:  "terminating-unready",
			Shows: "a terminating pod that is not ready gets nothing, unless the service publishes addresses that are not ready",
			Tests: []string{
				"Services / should be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is true",
				"Services / should not be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is false",
			},
			Steps: []Step{
				create(service("strict", nodePortType), service("lax", nodePortType, publishingNotReady), pod("a", 1, lingering, gated)),
				ready("a", true),
				ask("client2", tcp, clusterIP("strict", 80), answeredBy("a")),
				ask("client2", tcp, clusterIP("lax", 80), answeredBy("a")),
				ask("client2", tcp, nodePort("strict", 80, "node1"), answeredBy("a")),
				ask("client2", tcp, nodePort("strict", 80, "node2"), answeredBy("a")),
				terminate("a"),
				ready("a", false),
				settled(),
				ask("client2", tcp, clusterIP("strict", 80), refused()),
				ask("client2", tcp, nodePort("strict", 80, "node1"), refused()),
				ask("client2", tcp, nodePort("strict", 80, "node2"), refused()),
				ask("client2", tcp, clusterIP("lax", 80), answeredBy("a")),
				ask("client2", tcp, nodePort("lax", 80, "node1"), answeredBy("a")),
				ask("client2", tcp, nodePort("lax", 80, "node2"), answeredBy("a")),
			},
		},
	}
}
