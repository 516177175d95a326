package drivertest

import (
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
)

// clusterIPRows are about what every Service has: its cluster address.
func clusterIPRows() []row {
	web := []svc{{at: "vip", on: "a b x"}}
	bare := []svc{{at: "vip", ports: []port{http, dns, sig}}}
	plain := []svc{{at: "vip", ports: []port{http, dns, sig}, on: "a b x"}}
	admin := port{name: "admin", proto: model.TCP, port: 8443, to: 8081}
	dnsTCP := port{name: "dns-tcp", proto: model.TCP, port: 53, to: 8053}
	named := port{name: "http", proto: model.TCP, port: 80, to: 8080, toByName: true}

	return []row{
		one("cluster address", plain,
			tcp("c", "vip:80", by("a b x")), udp("c", "vip:53", by("a b x")),
			tcp("node", "vip:80", by("a b x")), udp("node", "vip:53", by("a b x")),
			tcp("outside", "vip:80", by("a b x").masked()), udp("outside", "vip:53", by("a b x").masked())),
		one("SCTP", plain,
			sctp("c", "vip:36412", by("a b x")), sctp("node", "vip:36412", by("a b x")),
			sctp("outside", "vip:36412", by("a b x").masked()), sctp("outside", "node:30412", by("a b x").masked())),
		one("several ports", []svc{{at: "vip", ports: []port{http, admin}, on: "a b"}},
			tcp("c", "vip:80", by("a:8080 b:8080")), tcp("c", "vip:8443", by("a:8081 b:8081"))),
		one("one port, two transports", []svc{{at: "vip", ports: []port{dns, dnsTCP}, on: "a b"}},
			udp("c", "vip:53", by("a b")), tcp("c", "vip:53", by("a:8053 b:8053"))),
		one("named target port of selected pods", []svc{{at: "vip", ports: []port{named}, pods: "a b x"}},
			tcp("c", "vip:80", by("a b x")), tcp("outside", "vip:80", by("a b x").masked())),
		one("two services", []svc{{at: "vip", on: "a"}, {name: "other", at: "vip2", on: "b"}},
			tcp("c", "vip:80", by("a")), tcp("c", "vip2:80", by("b"))),
		one("both families in one service", []svc{{at: "vip", dual: true, on: "a x"}},
			tcp("c", "vip/4:80", by("a/4 x/4")), tcp("c", "vip/6:80", by("a/6 x/6")),
			tcp("node", "vip/4:80", by("a/4 x/4")), tcp("node", "vip/6:80", by("a/6 x/6"))),
		one("undefined port of a service address", web,
			tcp("c", "vip:81", isRejected), udp("c", "vip:80", isRejected), sctp("c", "vip:80", isRejected),
			tcp("node", "vip:81", isRejected), udp("node", "vip:80", isRejected),
			tcp("outside", "vip:81", isRejected), udp("outside", "vip:80", isRejected)),
		one("address that no service has", web,
			tcp("c", "unallocated:80", isDropped), udp("c", "unallocated:80", isDropped),
			tcp("node", "unallocated:80", isDropped), tcp("outside", "unallocated:80", isDropped)),
		one("no endpoints", bare,
			tcp("c", "vip:80", isRejected), udp("c", "vip:53", isRejected), sctp("c", "vip:36412", isRejected),
			tcp("node", "vip:80", isRejected), udp("node", "vip:53", isRejected),
			tcp("outside", "vip:80", isRejected), udp("outside", "vip:53", isRejected), sctp("outside", "node:30412", isRejected)),
		one("large payloads", plain,
			tcp("c", "vip:80", by("a b x")).of(1<<20), udp("c", "vip:53", by("a b x")).of(8000),
			tcp("outside", "vip:80", by("a b x").masked()).of(1<<20), udp("outside", "vip:53", by("a b x").masked()).of(8000)),
		one("large datagrams of the node", []svc{{at: "vip", dual: true, on: "a x", ports: []port{dns}}},
			udp("node", "vip/4:53", by("a/4 x/4")).of(8000)),
		{name: "large datagrams of the node over IPv6", needs: driver.LargeDatagrams, steps: []step{{
			services: []svc{{at: "vip", dual: true, on: "a x", ports: []port{dns}}},
			sends:    []send{udp("node", "vip/6:53", by("a/6 x/6")).of(8000)},
		}}},
		one("to oneself", []svc{{at: "vip", ports: []port{http, dns, sig}, on: "a"}},
			tcp("a", "vip:80", by("a").masked()), udp("a", "vip:53", by("a").masked()), sctp("a", "vip:36412", by("a").masked())),
		one("to oneself or another", plain,
			tcp("a", "vip:80", by("a b x").hairpin()), udp("b", "vip:53", by("a b x").hairpin())),
		{name: "masquerade all", config: config{masqueradeAll: true}, steps: []step{{services: plain, sends: []send{
			tcp("c", "vip:80", by("a b x").masked()), udp("c", "vip:53", by("a b x").masked()),
			tcp("node", "vip:80", by("a b x")), tcp("outside", "vip:80", by("a b x").masked()),
		}}}},
		one("headless and someone else's services", []svc{
			{name: "headless", on: "a", write: headless},
			{name: "labelled", at: "vip2", on: "a", write: forAnother},
			{at: "vip", on: "b"}},
			tcp("c", "vip:80", by("b"))),
	}
}
