package kubetest

import (
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// lifeCases are about services that are created, deleted, and created again.
func lifeCases() []*Case {
	wider := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubetest"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.203.0.0/24", "fd00:203::/112"}},
	}
	return []*Case{
		{
			Name:  "up-and-down",
			Shows: "creating and deleting services does not affect others",
			Tests: []string{
				"Services / should be able to up and down services",
				"Services / should delete a collection of services",
			},
			Steps: []Step{
				create(service("one", to("one")), service("two", to("two")), pod("a", 1, labelled("one")), pod("b", 2, labelled("one")),
					pod("c", 2, labelled("two")), pod("d", 3, labelled("two"))),
				ask("client1", tcp, clusterIP("one", 80), answeredBy("a", "b")),
				ask("node1", tcp, clusterIP("one", 80), answeredBy("a", "b")),
				ask("client1", tcp, clusterIP("two", 80), answeredBy("c", "d")),
				removeService("one"),
				ask("client1", tcp, clusterIP("one", 80).before(), unanswered()),
				ask("node1", tcp, clusterIP("one", 80).before(), unanswered()),
				ask("client1", tcp, clusterIP("two", 80), answeredBy("c", "d")),
				create(service("three", to("three")), pod("e", 3, labelled("three"))),
				ask("client1", tcp, clusterIP("two", 80), answeredBy("c", "d")),
				ask("client1", tcp, clusterIP("three", 80), answeredBy("e")),
				ask("node1", tcp, clusterIP("three", 80), answeredBy("e")),
			},
		},
		{
			Name:  "recreated",
			Shows: "a service that is deleted and created again works, with the same address and with another service's",
			Tests: []string{
				"Services / should work after the service has been recreated",
			},
			Steps: []Step{
				create(service("web"), pod("a", 1), pod("b", 2, labelled("other"))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("node2", tcp, clusterIP("web", 80), answeredBy("a")),
				recreate("web"),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("node2", tcp, clusterIP("web", 80), answeredBy("a")),
				removeService("web"),
				ask("client1", tcp, clusterIP("web", 80).before(), unanswered()),
				inherit(clusterIP("web", 80), service("heir", to("other"))),
				ask("client1", tcp, clusterIP("heir", 80), answeredBy("b")),
				ask("client1", tcp, clusterIP("web", 80).before(), answeredBy("b")),
			},
		},
		{
			Name:  "blue-and-green",
			Shows: "no request fails while readiness replaces the pods of a service",
			Tests: []string{
				"Connectivity Pod Lifecycle / should be able to have zero downtime on a Blue Green deployment using Services and Readiness Gates",
			},
			Steps: []Step{
				create(service("web"), pod("blue1", 1, gated), pod("blue2", 2, gated), pod("green1", 1, gated), pod("green2", 3, gated)),
				ready("blue1", true), ready("blue2", true),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("blue1", "blue2")),
				meanwhile(ask("client1", tcp, clusterIP("web", 80), answered()),
					ready("green1", true), ready("green2", true),
					ask("client1", tcp, clusterIP("web", 80), answeredBy("blue1", "blue2", "green1", "green2")),
					ready("blue1", false), ready("blue2", false),
					ask("client1", tcp, clusterIP("web", 80), answeredBy("green1", "green2")),
					settled(),
					removePods("blue1", "blue2"),
					ask("client1", tcp, clusterIP("web", 80), answeredBy("green1", "green2")),
				),
			},
		},
		rolling("rolling-update-cluster", "externalTrafficPolicy Cluster", clusterExternally,
			"LoadBalancers / should not have connectivity disruption during rolling update with externalTrafficPolicy=Cluster"),
		rolling("rolling-update-local", "externalTrafficPolicy Local", localExternally,
			"LoadBalancers / should not have connectivity disruption during rolling update with externalTrafficPolicy=Local"),
		{
			Name:  "another-service-cidr",
			Shows: "services get addresses of a CIDR that is added later, and they work",
			Tests: []string{
				"Service CIDRs / should create Services and serve on different Service CIDRs",
			},
			Alone: true, // services of other cases would get its addresses
			Steps: []Step{
				create(wider),
				create(pod("a", 1), pod("b", 2)),
				create(service("web", nodePortType, at("10.203.0.10", "fd00:203::10"))),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask("node3", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask(outside, tcp, nodePort("web", 80, "node1"), answeredBy("a", "b")),
				removeService("web"),
				removeCIDR("kubetest"),
			},
		},
	}
}

// rolling replaces the pods of a load balancer, on each node in turn: once the new pod is ready,
// the old one ends, serving until its end.
func rolling(name, policy string, option serviceOption, test string) *Case {
	request := ask(outside, tcp, balanced("web", 80), answered())
	return &Case{
		Name: name, Shows: "no request through a load balancer fails in a rolling update, with " + policy, Tests: []string{test},
		Steps: []Step{
			create(service("web", loadBalancerType, option), pod("old1", 1, lingering), pod("old2", 2, lingering)),
			announce("web", "node1"),
			ask(outside, tcp, balanced("web", 80), answered()),
			meanwhile(request,
				create(pod("new1", 1)), terminate("old1"), settled(), removePods("old1"),
				create(pod("new2", 2)), terminate("old2"), settled(), removePods("old2"),
				settled(),
			),
			ask("client1", tcp, clusterIP("web", 80), answeredBy("new1", "new2")),
			ask(outside, tcp, balanced("web", 80), answered()),
		},
	}
}
