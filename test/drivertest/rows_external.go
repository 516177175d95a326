package drivertest

import corev1 "k8s.io/api/core/v1"

// externalRows are about the paths into a Service from outside the cluster.
func externalRows() []row {
	ports := []port{httpNode, dnsNode}
	web := []svc{{at: "vip", ports: ports, on: "a b x"}}
	empty := []svc{{at: "vip", lb: "lb", ext: "ext", ports: ports}}
	ranged := func(name string) []svc {
		return []svc{{at: "vip", lb: "lb", ports: ports, on: "a b", ranges: []string{name}}}
	}
	same := port{name: "http", proto: http.proto, port: 8080, to: 8080}
	sameNumber := []port{
		{name: "dns", proto: dns.proto, port: 53, node: 30053, to: 8053},
		{name: "dns-tcp", proto: http.proto, port: 53, node: 30053, to: 8053},
	}
	onNode := []send{tcp("outside", "node:30080", by("a b x").masked()), tcp("node", "node:30080", by("a b x")), tcp("c", "node:30080", by("a b x").masked())}
	onNode2 := []send{tcp("outside", "node2:30080", by("a b x").masked()), tcp("node", "node2:30080", by("a b x").masked()), tcp("c", "node2:30080", by("a b x").masked())}
	notOnNode2 := []send{tcp("outside", "node2:30080", isRejected), udp("outside", "node2:30053", isRejected), tcp("node", "node2:30080", isRejected), tcp("c", "node2:30080", isRejected)}

	return []row{
		one("node port", web,
			tcp("outside", "node:30080", by("a b x").masked()), udp("outside", "node:30053", by("a b x").masked()),
			tcp("c", "node:30080", by("a b x").masked()), udp("c", "node:30053", by("a b x").masked()),
			tcp("node", "node:30080", by("a b x").masked()), udp("node", "node:30053", by("a b x").masked()),
			tcp("y", "node:30080", by("a b x").masked()), tcp("a", "node:30080", by("a b x").masked())),
		one("node port number of two transports", []svc{{at: "vip", ports: sameNumber, on: "a b"}},
			udp("outside", "node:30053", by("a b").masked()), tcp("outside", "node:30053", by("a:8053 b:8053").masked())),
		one("node ports on the first address by default", web, notOnNode2...),
		{name: "node ports on both addresses", config: config{nodePortsOn: "node node2"},
			steps: []step{{services: web, sends: append(onNode, onNode2...)}}},
		{name: "node ports on the second address", config: config{nodePortsOn: "node2"},
			steps: []step{{services: web, sends: append(onNode2, tcp("outside", "node:30080", isRejected), tcp("c", "node:30080", isRejected))}}},
		one("external address", []svc{{at: "vip", ext: "ext", ports: ports, on: "a b x"}},
			tcp("outside", "ext:80", by("a b x").masked()), udp("outside", "ext:53", by("a b x").masked()),
			tcp("c", "ext:80", by("a b x").masked()), tcp("node", "ext:80", by("a b x").masked())),
		one("load balancer address", []svc{{at: "vip", lb: "lb", ports: ports, on: "a b x"}},
			tcp("outside", "lb:80", by("a b x").masked()), udp("outside", "lb:53", by("a b x").masked()),
			tcp("c", "lb:80", by("a b x").masked()), tcp("node", "lb:80", by("a b x").masked())),
		one("two services with one load balancer address", []svc{{at: "vip", lb: "lb", on: "a"},
			{name: "other", at: "vip2", lb: "lb", ports: []port{dns, {name: "admin", proto: http.proto, port: 8443, to: 8081}}, on: "b"}},
			tcp("outside", "lb:80", by("a").masked()), tcp("outside", "lb:8443", by("b:8081").masked()), udp("outside", "lb:53", by("b").masked())),
		one("external address that is the node's own", []svc{{at: "vip", ext: "node2", on: "a b x"}},
			tcp("outside", "node2:80", isRejected), tcp("c", "node2:80", isRejected), tcp("c", "vip:80", by("a b x"))),
		{name: "external address that is the node's own, and may be", config: config{nodeAddresses: true}, steps: []step{{
			services: []svc{{at: "vip", ext: "node2", on: "a b x"}}, sends: []send{
				tcp("outside", "node2:80", by("a b x").masked()), tcp("c", "node2:80", by("a b x").masked()), tcp("node", "node2:80", by("a b x").masked()),
				tcp("outside", "node:80", isRejected)}}}},
		{name: "load balancer that is a proxy", steps: []step{
			{services: []svc{{at: "vip", lb: "outside2", ports: []port{same}, on: "a", write: proxyMode}, {name: "balancer", on: "outside2"}}, sends: []send{
				tcp("c", "vip:8080", by("a")), tcp("c", "outside2:8080", by("outside2")), tcp("node", "outside2:8080", by("outside2"))}},
			{services: []svc{{at: "vip", lb: "outside2", ports: []port{same}, on: "a", write: func(*corev1.Service) {}}, {name: "balancer", on: "outside2"}}, sends: []send{
				tcp("c", "vip:8080", by("a")), tcp("c", "outside2:8080", by("a").masked()), tcp("node", "outside2:8080", by("a").masked())}},
		}},
		one("no endpoints behind external addresses", empty,
			tcp("outside", "node:30080", isRejected), udp("outside", "node:30053", isRejected),
			tcp("c", "node:30080", isRejected), udp("c", "node:30053", isRejected),
			tcp("node", "node:30080", isRejected), udp("node", "node:30053", isRejected),
			tcp("outside", "lb:80", isRejected), udp("outside", "lb:53", isRejected),
			tcp("c", "lb:80", isRejected), tcp("node", "lb:80", isRejected), udp("node", "lb:53", isRejected),
			tcp("outside", "ext:80", isRejected), udp("c", "ext:53", isRejected), tcp("node", "ext:80", isRejected)),
		one("source ranges", []svc{{at: "vip", lb: "lb", ext: "ext", ports: ports, on: "a b", ranges: []string{"outside"}}},
			tcp("outside", "lb:80", by("a b").masked()), udp("outside", "lb:53", by("a b").masked()),
			tcp("outside2", "lb:80", isDropped), udp("outside2", "lb:53", isDropped),
			tcp("c", "lb:80", isDropped), tcp("node", "lb:80", isDropped),
			tcp("outside2", "node:30080", by("a b").masked()), tcp("outside2", "ext:80", by("a b").masked()),
			tcp("outside2", "vip:80", by("a b").masked())),
		one("source ranges of one of two services with one load balancer address", []svc{
			{at: "vip", lb: "lb", on: "a", ranges: []string{"outside"}}, {name: "other", at: "vip2", lb: "lb", ports: []port{dns}, on: "b"}},
			tcp("outside2", "lb:80", isDropped), tcp("node", "lb:80", isDropped), tcp("outside", "lb:80", by("a").masked()),
			udp("outside2", "lb:53", by("b").masked()), udp("node", "lb:53", by("b").masked()), udp("c", "lb:53", by("b").masked())),
		one("source ranges with the node", []svc{{at: "vip", lb: "lb", on: "a b", ranges: []string{"node"}}},
			tcp("node", "lb:80", by("a b").masked()), tcp("outside", "lb:80", isDropped)),
		{name: "source ranges and a load balancer address that the node has", config: config{bound: "lb"}, steps: []step{
			{services: ranged("node"), sends: []send{
				tcp("node", "lb:80", by("a b").masked()), udp("node", "lb:53", by("a b").masked()), tcp("outside", "lb:80", isDropped)}},
			{services: ranged("outside"), sends: []send{
				tcp("node", "lb:80", isDropped), udp("node", "lb:53", isDropped), tcp("outside", "lb:80", by("a b").masked())}},
		}},
		one("source ranges without endpoints", []svc{{at: "vip", lb: "lb", ranges: []string{"outside"}}},
			tcp("outside", "lb:80", isRejected)),
	}
}
