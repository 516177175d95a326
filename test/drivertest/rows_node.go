package drivertest

// nodeRows are about what is known of the node and the cluster, and about changes of it.
func nodeRows() []row {
	web := func(on string) []svc { return []svc{{at: "vip", ports: []port{httpNode, dnsNode}, on: on}} }
	local := []svc{{at: "vip", lb: "lb", ports: []port{httpNode, dnsNode}, on: "a x", edit: externalLocal}}
	return []row{
		{name: "no prefix is known", config: config{noPrefixes: true}, steps: []step{
			{noPods: true, services: web("a b"), sends: []send{
				tcp("c", "vip:80", by("a b")), udp("c", "vip:53", by("a b")), tcp("node", "vip:80", by("a b")), udp("node", "vip:53", by("a b")),
				tcp("outside", "vip:80", by("a b")), udp("outside", "vip:53", by("a b")),
				tcp("a", "vip:80", by("a b").hairpin()), tcp("outside", "node:30080", by("a b").masked()),
				tcp("c", "vip:81", isRejected), tcp("outside", "vip:81", isRejected)}},
			{noPods: true, services: local, sends: []send{
				tcp("outside", "node:30080", by("a")), udp("outside", "node:30053", by("a")), tcp("outside", "lb:80", by("a")),
				tcp("node", "node:30080", by("a x")), tcp("c", "vip:80", by("a x"))}},
		}},
		{name: "the node's pods become known", config: config{noPrefixes: true}, steps: []step{
			{noPods: true, services: web("a"), sends: []send{tcp("outside", "vip:80", by("a")), tcp("c", "vip:80", by("a"))}},
			{services: web("a"), sends: []send{tcp("outside", "vip:80", by("a").masked()), tcp("c", "vip:80", by("a"))}},
			{services: local, sends: []send{tcp("c", "node:30080", by("a x")), tcp("outside", "node:30080", by("a"))}},
			{noPods: true, services: web("a"), sends: []send{tcp("outside", "vip:80", by("a")), tcp("c", "vip:80", by("a"))}},
		}},
		{name: "the node's address changes", steps: []step{
			{services: web("a"), sends: []send{
				tcp("outside", "node:30080", by("a").masked()), tcp("outside", "node2:30080", isRejected), udp("outside", "node:30053", by("a").masked()).on("flow")}},
			{at: "node2", services: web("a"), sends: []send{
				tcp("outside", "node2:30080", by("a").masked()), tcp("outside", "node:30080", isRejected), udp("outside", "node:30053", isRejected).on("flow"),
				tcp("c", "node2:30080", by("a").masked()), tcp("c", "vip:80", by("a"))}},
			{at: "node2 node", services: web("a"), restart: true, sends: []send{tcp("outside", "node2:30080", by("a").masked())}},
			{services: web("a"), sends: []send{
				tcp("outside", "node:30080", by("a").masked()), tcp("outside", "node2:30080", isRejected), udp("outside", "node:30053", by("a").masked()).on("flow")}},
		}},
	}
}
