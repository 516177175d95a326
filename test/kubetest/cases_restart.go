package kubetest

// staysFlushed says why services do not come back.
const staysFlushed = "kube-proxy's nftables mode checks its rules once an hour, its iptables mode every 30 seconds. Sluice's cannot be flushed, or are back within a second"

// restartCases are about what happens while the proxy or the API server is away.
func restartCases() []*Case {
	return []*Case{
		{
			Name:  "rules-deleted",
			Shows: "services go on, or soon work again, when all rules of a node are flushed",
			Tests: []string{
				"Networking / should recreate its iptables rules if they are deleted",
			},
			Alone: true,
			Steps: []Step{
				create(service("web", nodePortType), pod("a", 1), pod("b", 2)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				quiet(),
				settled(),
				flushRules("node1"),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")).unless(unanswered(), staysFlushed, NFTables),
				restartProxy("node1"),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a", "b")),
			},
		},
		{
			Name:  "proxy-restarts",
			Shows: "services go on while the proxy is killed and restarted, clients stay with their pods, and changes are followed afterwards",
			Tests: []string{
				"Services / should work after restarting kube-proxy",
			},
			Alone: true,
			Steps: []Step{
				create(service("one", nodePortType, to("one")), pod("a", 1, labelled("one")), pod("b", 2, labelled("one"))),
				ask("client1", tcp, clusterIP("one", 80), answeredBy("a", "b")),
				ask("client1", tcp, clusterIP("one", 80), sticky()).flow("one"),
				create(service("sticky", to("one"), remembering(10800))),
				ask("client1", tcp, clusterIP("sticky", 80), sticky()),
				meanwhile(ask("client1", tcp, clusterIP("one", 80), answered()), restartProxy("node1")),
				meanwhile(ask("client1", tcp, clusterIP("sticky", 80), sticky()), restartProxy("node1"), settled()),
				ask("client1", tcp, clusterIP("one", 80), sticky()).flow("one"),
				ask("client1", tcp, clusterIP("one", 80), answeredBy("a", "b")),
				ask(outside, tcp, nodePort("one", 80, "node1"), answeredBy("a", "b")),
				create(service("two", to("two")), pod("c", 3, labelled("two"))),
				ask("client1", tcp, clusterIP("two", 80), answeredBy("c")),
				ask("client1", tcp, clusterIP("one", 80), answeredBy("a", "b")),
				removePods("a"),
				ask("client1", tcp, clusterIP("one", 80), answeredBy("b")),
			},
		},
		{
			Name:  "api-restarts",
			Shows: "services go on while the API server is away, and follow changes when it is back",
			Tests: []string{
				"Services / should work after restarting apiserver",
			},
			Alone: true,
			Steps: []Step{
				create(service("one", nodePortType, to("one")), pod("a", 1, labelled("one")), pod("b", 2, labelled("one"))),
				ask("client1", tcp, clusterIP("one", 80), answeredBy("a", "b")),
				ask("client1", tcp, clusterIP("one", 80), sticky()).flow("one"),
				meanwhile(ask("client1", tcp, clusterIP("one", 80), answered()), restartAPI()),
				ask("client1", tcp, clusterIP("one", 80), sticky()).flow("one"),
				ask("client1", tcp, clusterIP("one", 80), answeredBy("a", "b")),
				create(service("two", to("two")), pod("c", 3, labelled("two"))),
				ask("client1", tcp, clusterIP("two", 80), answeredBy("c")),
				removePods("a"),
				ask("client1", tcp, clusterIP("one", 80), answeredBy("b")),
			},
		},
	}
}
