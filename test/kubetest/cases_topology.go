package kubetest

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// forZone hints that an endpoint is for clients of a zone, forNode for those of a node.
func forZone(zone string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
}

func forNode(node, zone string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{
			ForZones: []discoveryv1.ForZone{{Name: zone}}, ForNodes: []discoveryv1.ForNode{{Name: node}},
		}
	}
}

// topologyCases are about nearby endpoints. node1 and node4 share a zone; node2 and node3 each have
// their own.
func topologyCases() []*Case {
	zones := func(name, preference string, tests ...string) *Case {
		return &Case{
			Name: name, Shows: "with trafficDistribution " + preference + " clients reach the pods of their zone, all of them; those of a zone without pods reach all",
			Tests: tests,
			Steps: []Step{
				create(service("web", distributed(preference)), pod("a", 1), pod("b", 4), pod("c", 3)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask("client4", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask("client3", tcp, clusterIP("web", 80), answeredBy("c")),
				ask("node3", tcp, clusterIP("web", 80), answeredBy("c")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("a", "b", "c")),
				removePods("a"),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("b")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("b", "c")),
				removePods("c"),
				create(pod("d", 2)),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("d")),
				ask("client3", tcp, clusterIP("web", 80), answeredBy("b", "d")),
			},
		}
	}
	eighty := port(tcp, 80)
	return []*Case{
		zones("prefer-close", corev1.ServiceTrafficDistributionPreferClose,
			"Traffic Distribution / should route traffic to an endpoint in the same zone when using PreferClose",
			"Traffic Distribution / should route traffic correctly between pods on multiple nodes when using PreferClose"),
		zones("prefer-same-zone", corev1.ServiceTrafficDistributionPreferSameZone,
			"Traffic Distribution / should route traffic to an endpoint in the same zone when using PreferSameZone",
			"Traffic Distribution / should route traffic correctly between pods on multiple nodes when using PreferSameZone"),
		{
			Name:  "prefer-same-node",
			Shows: "with trafficDistribution PreferSameNode clients reach the pods of their node, else of their zone, else all",
			Tests: []string{
				"Traffic Distribution / should route traffic to an endpoint on the same node or fall back to same zone when using PreferSameNode",
				"Traffic Distribution / should route traffic to an endpoint on the same node when using PreferSameNode and fall back when the endpoint becomes unavailable",
			},
			Steps: []Step{
				create(service("web", distributed(corev1.ServiceTrafficDistributionPreferSameNode)), pod("a", 1), pod("b", 2)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("b")),
				ask("client4", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("client3", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				create(pod("c", 4)),
				ask("client4", tcp, clusterIP("web", 80), answeredBy("c")),
				removePods("a"),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("c")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("b")),
				create(pod("d", 1)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("d")),
				ask("client4", tcp, clusterIP("web", 80), answeredBy("c")),
				removePods("b"),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("c", "d")),
			},
		},
		{
			Name:  "topology-hints",
			Shows: "hints of slices are followed if all ready endpoints have them and one matches, and are ignored otherwise",
			Tests: []string{
				"Topology Hints / should distribute endpoints evenly",
			},
			Steps: []Step{
				create(service("web", to("")), pod("a", 1), pod("b", 2), pod("c", 3)),
				lead("only", "web", eighty, nil, endpoint{"a", forZone("zone-b")}, endpoint{"b", forZone("zone-a")}, endpoint{"c", forZone("zone-a")}),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("b", "c")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("client3", tcp, clusterIP("web", 80), answeredBy("a", "b", "c")),
				lead("only", "web", eighty, nil, endpoint{"a", forZone("zone-b")}, endpoint{"b", forZone("zone-a")}, endpoint{"c", nil}),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b", "c")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("a", "b", "c")),
				lead("only", "web", eighty, nil, endpoint{"a", forNode("node2", "zone-b")}, endpoint{"b", forNode("node1", "zone-a")}, endpoint{"c", forNode("node3", "zone-c")}),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("b")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("client3", tcp, clusterIP("web", 80), answeredBy("c")),
				ask("client4", tcp, clusterIP("web", 80), answeredBy("b")),
				lead("only", "web", eighty, nil, endpoint{"a", forNode("node2", "zone-a")}, endpoint{"b", forZone("zone-a")}, endpoint{"c", forNode("node3", "zone-b")}),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ask("client2", tcp, clusterIP("web", 80), answeredBy("c")),
				ask("client3", tcp, clusterIP("web", 80), answeredBy("a", "b", "c")),
			},
		},
	}
}
