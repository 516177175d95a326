package drivertest

import (
	"fmt"
	"strings"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
)

// many returns the first n addresses of the pod that has many.
func many(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("m", i+1)
	}
	return strings.Join(names, " ")
}

// sequenceRows are about change: the fate of new connections afterwards, and of existing ones.
func sequenceRows() []row {
	return append(affinityRows(), append(flowRows(), changeRows()...)...)
}

// affinityRows send from 24 client addresses, so that a balancer without affinity uses both
// backends.
func affinityRows() []row {
	all := many(mostClients)
	ports := []port{httpNode, dnsNode}
	sticky := func(on string, timeout time.Duration) []svc {
		return []svc{{at: "vip", lb: "lb", ports: ports, on: on, edit: func(s *model.Service) { s.Affinity = timeout }}}
	}
	const hours, short = 3 * time.Hour, 10 * time.Second
	return []row{
		one("affinity", sticky("a b x", hours),
			tcp("c", "vip:80", oneOf("a b x")), udp("c", "vip:53", oneOf("a b x")), tcp("node", "vip:80", oneOf("a b x")),
			tcp("outside", "node:30080", oneOf("a b x").masked()), tcp("outside2", "lb:80", oneOf("a b x").masked()),
			udp("outside", "node:30053", oneOf("a b x").masked())),
		one("affinity is per client", sticky("a b", hours),
			tcp(all, "vip:80", by("a b")), tcp(all, "node:30080", by("a b").masked())),
		{name: "affinity outlives other backends' coming and the driver", steps: []step{
			{services: sticky("a", hours), sends: []send{
				tcp(all, "vip:80", by("a")), tcp(all, "node:30080", by("a").masked()), tcp("outside", "node:30080", by("a").masked())}},
			{services: sticky("a b x", hours), sends: []send{
				tcp(all, "vip:80", by("a")), tcp(all, "node:30080", by("a").masked())}},
			{services: sticky("a b x", hours), restart: true, sends: []send{
				tcp(all, "vip:80", by("a")), tcp(all, "node:30080", by("a").masked()), tcp("outside", "node:30080", by("a").masked())}},
			{services: sticky(many(12)+" a", hours), sends: []send{
				tcp(all, "vip:80", by("a")), tcp(all, "node:30080", by("a").masked())}},
		}},
		{name: "affinity ends with its backend", steps: []step{
			{services: sticky("a", hours), sends: []send{
				tcp("c", "vip:80", by("a")), udp("c", "vip:53", by("a")), tcp("outside", "node:30080", by("a").masked())}},
			{services: sticky("b x", hours), sends: []send{
				tcp("c", "vip:80", oneOf("b x")), udp("c", "vip:53", oneOf("b x")),
				tcp("outside", "node:30080", oneOf("b x").masked())}},
			{services: sticky("a c", hours), sends: []send{
				udp("c", "vip:53", oneOf("a c").hairpin()), udp("b", "vip:53", oneOf("a c"))}},
		}},
		{name: "affinity ends with a backend that drains", steps: []step{
			{services: sticky("a", hours), sends: []send{
				tcp("c", "vip:80", by("a")), tcp("c", "vip:80", by("a")).on("f"), udp("c", "vip:53", by("a")), tcp("outside", "node:30080", by("a").masked())}},
			{services: sticky("a!draining b", hours), sends: []send{
				tcp("c", "vip:80", by("b")), tcp("c", "vip:80", by("a")).on("f"), udp("c", "vip:53", by("b")),
				tcp("outside", "node:30080", by("b").masked())}},
		}},
		affinityEndsWithRoute("blackhole", sticky, func(s *step) { s.blackhole = "a" }),
		affinityEndsWithRoute("unreachable", sticky, func(s *step) { s.unreachable = "a" }),
		{name: "affinity to a backend elsewhere and a change to a Local policy", steps: []step{
			{services: sticky("x", hours), sends: []send{
				tcp("outside", "lb:80", by("x").masked()), tcp("outside2", "node:30080", by("x").masked()),
				udp("outside", "node:30053", by("x").masked()), tcp("c", "lb:80", by("x").masked())}},
			{services: localSticky("a x", hours), sends: []send{
				tcp("outside", "lb:80", by("a")), tcp("outside2", "node:30080", by("a")),
				udp("outside", "node:30053", by("a")), tcp("c", "lb:80", by("x"))}},
			{services: localSticky("x", hours), sends: []send{
				tcp("outside", "lb:80", isDropped), tcp("outside2", "node:30080", isDropped),
				udp("outside", "node:30053", isDropped), tcp("c", "lb:80", by("x"))}},
			{services: sticky("a x", hours), sends: []send{
				tcp("outside", "lb:80", oneOf("a x").masked()), tcp("c", "lb:80", by("x").masked())}},
		}},
		{name: "affinity to nobody is rejected at once", steps: []step{
			{services: sticky("a", hours), sends: []send{tcp("c", "vip:80", by("a")), tcp("outside", "node:30080", by("a").masked())}},
			{services: sticky("", hours), sends: []send{tcp("c", "vip:80", isRejected), tcp("outside", "node:30080", isRejected)}},
		}},
		{name: "affinity times out", steps: []step{
			{services: sticky("a", short), sends: []send{tcp(all, "vip:80", by("a")), tcp(all, "node:30080", by("a").masked())}},
			{services: sticky("a b", short), sends: []send{tcp(all, "vip:80", by("a")), tcp(all, "node:30080", by("a").masked())}},
			{services: sticky("a b", short), pause: short + time.Second/2, sends: []send{
				tcp(all, "vip:80", by("a b")), tcp(all, "node:30080", by("a b").masked())}},
		}},
		{name: "affinity begins and ends with a change of the service", steps: []step{
			{services: sticky("a b", 0), sends: []send{tcp("c", "vip:80", by("a b"))}},
			{services: sticky("a b", hours), sends: []send{tcp("c", "vip:80", oneOf("a b"))}},
			{services: sticky("a b", 0), sends: []send{tcp("c", "vip:80", by("a b"))}},
		}},
		{name: "affinity under a Local policy", steps: []step{
			{services: localSticky("a x", hours), sends: []send{tcp("outside", "lb:80", by("a")), tcp("outside2", "node:30080", by("a"))}},
			{services: localSticky("a b x", hours), sends: []send{tcp("outside", "lb:80", by("a")), tcp("outside2", "node:30080", by("a"))}},
			{services: localSticky("b x", hours), sends: []send{
				tcp("outside", "lb:80", by("b")), tcp("outside2", "node:30080", by("b"))}},
		}},
	}
}

// affinityEndsWithRoute removes a client's backend together with the route to it, so that no packet
// to it passes the routing decision.
func affinityEndsWithRoute(kind string, sticky func(string, time.Duration) []svc, lose func(*step)) row {
	gone := step{services: sticky("b x", 3*time.Hour), sends: []send{
		tcp("c", "vip:80", oneOf("b x")), udp("c", "vip:53", oneOf("b x")),
		tcp("node", "vip:80", oneOf("b x")), udp("node", "vip:53", oneOf("b x")),
		tcp("outside", "node:30080", oneOf("b x").masked()), udp("outside", "lb:53", oneOf("b x").masked()),
	}}
	lose(&gone)
	return row{name: "affinity ends with its backend and the route to it: " + kind, steps: []step{
		{services: sticky("a", 3*time.Hour), sends: []send{
			tcp("c", "vip:80", by("a")), udp("c", "vip:53", by("a")), tcp("node", "vip:80", by("a")), udp("node", "vip:53", by("a")),
			tcp("outside", "node:30080", by("a").masked()), udp("outside", "lb:53", by("a").masked())}},
		gone,
	}}
}

func localSticky(on string, timeout time.Duration) []svc {
	return []svc{{at: "vip", lb: "lb", ports: []port{httpNode, dnsNode}, on: on, edit: func(s *model.Service) { s.Affinity, s.ExternalLocal = timeout, true }}}
}

// flowRows are about existing connections while their service changes.
func flowRows() []row {
	ports := []port{httpNode, dnsNode}
	web := func(on string) []svc { return []svc{{at: "vip", lb: "lb", ports: ports, on: on}} }
	local := func(on string) []svc {
		return []svc{{at: "vip", lb: "lb", ports: ports, on: on, edit: externalLocal}}
	}
	udpFlows := func(backend string) []send {
		return []send{
			udp("c", "vip:53", by(backend)).on("pod"), udp("node", "vip:53", by(backend)).on("node"),
			udp("outside", "node:30053", by(backend).masked()).on("node port"),
			udp("outside", "lb:53", by(backend).masked()).on("load balancer"),
			udp("node", "node:30053", by(backend)).on("own node port"),
		}
	}
	internal := func(on string) []svc {
		return []svc{{at: "vip", lb: "lb", ports: ports, on: on, edit: internalLocal}}
	}
	// The same flows go to all of a service's addresses, from everywhere: without a driver, and
	// with one.
	everywhere := func(on string) []svc { return []svc{{at: "vip", lb: "lb", ext: "ext", ports: ports, on: on}} }
	early := []send{
		udp("outside", "ext:53", isDropped).on("external"), udp("c", "ext:53", isDropped).on("pod external"),
		udp("node", "ext:53", isDropped).on("node external"), udp("outside", "lb:53", isDropped).on("load balancer"),
		udp("c", "vip:53", isDropped).on("pod"), udp("node", "vip:53", isDropped).on("node"),
		udp("outside", "node:30053", isRejected).on("node port"),
	}
	late := func(backend string) []send {
		return []send{
			udp("outside", "ext:53", by(backend).masked()).on("external"), udp("c", "ext:53", by(backend).masked()).on("pod external"),
			udp("node", "ext:53", by(backend).masked()).on("node external"), udp("outside", "lb:53", by(backend).masked()).on("load balancer"),
			udp("c", "vip:53", by(backend)).on("pod"), udp("node", "vip:53", by(backend)).on("node"),
			udp("outside", "node:30053", by(backend).masked()).on("node port"),
		}
	}
	none := []send{
		udp("c", "vip:53", isDropped).on("pod"), udp("node", "vip:53", isDropped).on("node"),
		udp("outside", "node:30053", isRejected).on("node port"), udp("outside", "lb:53", isDropped).on("load balancer"),
		udp("node", "node:30053", isRejected).on("own node port"),
	}
	udpNone := []send{udp("c", "vip:53", isRejected).on("pod"), udp("outside", "node:30053", isRejected).on("node port")}
	tcpFlows := func(f func(string) fate) []send {
		return []send{
			tcp("c", "vip:80", f("a")).on("pod"), tcp("node", "vip:80", f("a")).on("node"),
			tcp("outside", "node:30080", masked(f("a"))).on("node port"),
		}
	}
	cutAll := func(string) fate { return isCut }
	return []row{
		{name: "UDP flows move when their endpoint goes", steps: []step{
			{services: web("a"), sends: udpFlows("a")},
			{services: web("b"), sends: udpFlows("b")},
			{services: web("b!unready x"), sends: udpFlows("x")},
			{services: web("a x!gone"), sends: udpFlows("a")},
			{services: web(""), sends: udpNone},
			{services: web("b"), sends: udpFlows("b")},
		}},
		{name: "UDP flows stay when others come and go", steps: []step{
			{services: web("a"), sends: udpFlows("a")},
			{services: web("a b x"), sends: udpFlows("a")},
			{services: web("a " + many(12)), sends: udpFlows("a")},
			{services: web("a b"), restart: true, sends: udpFlows("a")},
		}},
		{name: "UDP flows live while their endpoint serves", steps: []step{
			{services: web("a"), sends: udpFlows("a")},
			{services: web("a!draining b"), sends: append(udpFlows("a"), udp("c", "vip:53", by("b")), udp("outside", "lb:53", by("b").masked()))},
			{services: web("a!draining b"), restart: true, sends: udpFlows("a")},
			{services: web("a!gone b"), sends: udpFlows("b")},
			{services: web("a@node b@remote"), sends: append(udpFlows("b"), udp("c", "vip:53", by("a")))},
			{services: web("a%node b%remote x%remote"), restart: true, sends: append(udpFlows("b"), udp("c", "vip:53", by("a")))},
			{services: web("a b!unready"), sends: udpFlows("a")},
		}},
		{name: "UDP flows live while policies change", steps: []step{
			{services: web("x"), sends: udpFlows("x")},
			{services: local("a x"), sends: append(udpFlows("x"), udp("outside", "lb:53", by("a")), udp("c", "vip:53", by("a x")))},
			{services: local("x"), sends: append(udpFlows("x"), udp("outside", "lb:53", isDropped))},
			{services: internal("a x"), restart: true, sends: append(udpFlows("x"), udp("c", "vip:53", by("a")))},
			// They are sent twice, as a change cuts flows only a moment later.
			{services: internal("a x"), restart: true, pause: silence, sends: udpFlows("x")},
			{services: internal("a x!unready"), sends: udpFlows("a")},
		}},
		{name: "UDP flows of a Local policy that has nobody here", steps: []step{
			{services: web("x"), sends: []send{udp("c", "vip:53", by("x")).on("pod"), udp("node", "vip:53", by("x")).on("node")}},
			{services: internal("x"), sends: []send{
				udp("c", "vip:53", by("x")).on("pod"), udp("node", "vip:53", by("x")).on("node"), udp("c", "vip:53", isDropped)}},
			{services: internal("a"), sends: []send{udp("c", "vip:53", by("a")).on("pod"), udp("node", "vip:53", by("a")).on("node")}},
		}},
		{name: "UDP flows move under a Local policy", steps: []step{
			{services: local("a x"), sends: []send{udp("outside", "node:30053", by("a")).on("f"), udp("outside", "lb:53", by("a")).on("g")}},
			{services: local("b x"), sends: []send{udp("outside", "node:30053", by("b")).on("f"), udp("outside", "lb:53", by("b")).on("g")}},
			{services: local("x"), sends: []send{udp("outside", "node:30053", isDropped).on("f")}},
			{services: local("a x"), sends: []send{udp("outside", "node:30053", by("a")).on("f"), udp("outside", "lb:53", by("a")).on("g")}},
		}},
		{name: "UDP flows begun before the driver came", steps: []step{
			{away: true, sends: early},
			{services: everywhere("a"), sends: late("a")},
		}},
		{name: "UDP flows go on without the driver", needs: driver.InPackets, steps: []step{
			{services: everywhere("a"), sends: late("a")},
			{services: everywhere("a"), away: true, sends: late("a")},
			{services: everywhere("b"), sends: late("b")},
		}},
		// kubernetes/kubernetes#139629, #141371, also while nobody follows.
		{name: "UDP flows of a service that goes", steps: []step{
			{services: web("a"), sends: udpFlows("a")},
			{sends: none},
			{services: web("b"), sends: udpFlows("b")},
			{missed: true, sends: none},
			{services: web("a"), missed: true, sends: udpFlows("a")},
			{services: web(""), missed: true, sends: udpNone},
			{services: web("x"), missed: true, sends: udpFlows("x")},
		}},
		{name: "UDP flow begun before its service", steps: []step{
			{services: []svc{{name: "other", at: "vip2", ports: ports[1:], on: "a"}}, sends: []send{udp("c", "vip:53", isDropped).on("f")}},
			{services: web("a"), sends: []send{udp("c", "vip:53", by("a")).on("f")}},
		}},
		{name: "TCP flows live while their endpoint drains", steps: []step{
			{services: web("a"), sends: tcpFlows(by)},
			{services: web("a b"), sends: tcpFlows(by)},
			{services: web("a!draining b"), sends: append(tcpFlows(by), tcp("c", "vip:80", by("b")))},
			{services: web("a!gone b"), sends: append(tcpFlows(by), tcp("c", "vip:80", by("b")))},
			{services: web("a!unready b"), restart: true, sends: tcpFlows(by)},
			{services: web("b"), sends: append(tcpFlows(cutAll), tcp("c", "vip:80", by("b")))},
		}},
		{name: "TCP flows to an endpoint that came back", steps: []step{
			{services: web("a")},
			{services: web("b")},
			{services: web("a"), sends: tcpFlows(by)},
			// A driver that closes does its second pass of deletions at once, without waiting.
			{services: web("a"), restart: true, sends: tcpFlows(by)},
		}},
		{name: "TCP flows live while all else changes", steps: []step{
			{services: web("a"), sends: tcpFlows(by)},
			{services: append(web("a "+many(12)), svc{name: "other", at: "vip2", on: "b"}), sends: tcpFlows(by)},
			{services: web("a"), sends: tcpFlows(by)},
			{services: web("a!draining"), restart: true, sends: tcpFlows(by)},
		}},
		{name: "a stray segment from the backend", steps: []step{
			{services: web("a"), sends: append(tcpFlows(by),
				tcp("c", "vip:80", by("a")).on("pod").afterStray(), tcp("c", "vip:80", by("a")).on("pod"),
				tcp("node", "vip:80", by("a")).on("node").afterStray(), tcp("node", "vip:80", by("a")).on("node"),
				tcp("outside", "node:30080", by("a").masked()).on("node port").afterStray(),
				tcp("outside", "node:30080", by("a").masked()).on("node port"))},
		}},
	}
}

func masked(f fate) fate {
	if f.outcome == answered {
		return f.masked()
	}
	return f
}

// changeRows are about the fate of new connections after a change.
func changeRows() []row {
	ports := []port{httpNode, dnsNode}
	web := func(on string) []svc { return []svc{{at: "vip", ports: ports, on: on}} }
	cluster := func(on string) []svc { return []svc{{at: "vip", on: on}} }
	local := func(on string) []svc {
		return []svc{{at: "vip", ports: ports, on: on, edit: externalLocal}}
	}
	toPort := func(to uint16) []svc {
		return []svc{{at: "vip", ports: []port{{name: "http", proto: model.TCP, port: 80, to: to}}, on: "a"}}
	}
	ranges := func(names ...string) []svc { return []svc{{at: "vip", lb: "lb", on: "a", ranges: names}} }
	policy := func(f func(*model.Service)) []svc {
		return []svc{{at: "vip", lb: "lb", ports: ports, on: "a x", edit: f}}
	}
	sizes, localSizes := row{name: "every size"}, row{name: "every size, external traffic policy Local"}
	for _, n := range []int{1, 2, 3, 4, 5, 7, 12, 13, 16, 24, 9, 6, 3, 1} {
		sizes.steps = append(sizes.steps, step{services: web(many(n)), sends: []send{
			tcp("c", "vip:80", by(many(n))), tcp("outside", "node:30080", by(many(n)).masked())}})
		localSizes.steps = append(localSizes.steps, step{services: local(many(n) + " x"), sends: []send{
			tcp("outside", "node:30080", by(many(n))), tcp("c", "node:30080", by(many(n)+" x"))}})
	}
	return []row{
		sizes,
		localSizes,
		{name: "endpoints come and go", steps: []step{
			{services: web(""), sends: []send{tcp("c", "vip:80", isRejected), tcp("outside", "node:30080", isRejected)}},
			{services: web("a b"), sends: []send{tcp("c", "vip:80", by("a b")), tcp("outside", "node:30080", by("a b").masked())}},
			{services: web("b"), sends: []send{tcp("c", "vip:80", by("b")), tcp("outside", "node:30080", by("b").masked())}},
			{services: web("b!unready"), sends: []send{tcp("c", "vip:80", isRejected), udp("c", "vip:53", isRejected)}},
			{services: web("a"), sends: []send{tcp("c", "vip:80", by("a")), udp("c", "vip:53", by("a"))}},
			{services: web(""), sends: []send{tcp("c", "vip:80", isRejected), tcp("node", "vip:80", isRejected), tcp("outside", "node:30080", isRejected)}},
		}},
		{name: "service goes and comes back", steps: []step{
			{services: web("a"), sends: []send{tcp("c", "vip:80", by("a"))}},
			{sends: []send{tcp("c", "vip:80", isDropped), tcp("outside", "node:30080", isRejected)}},
			{services: web("b"), sends: []send{tcp("c", "vip:80", by("b")), tcp("outside", "node:30080", by("b").masked())}},
		}},
		{name: "addresses and ports change hands", steps: []step{
			{services: web("a"), sends: []send{tcp("c", "vip:80", by("a")), tcp("outside", "node:30080", by("a").masked())}},
			{services: []svc{{name: "heir", at: "vip", ports: ports, on: "b"}}, sends: []send{
				tcp("c", "vip:80", by("b")), udp("c", "vip:53", by("b")), tcp("outside", "node:30080", by("b").masked())}},
			{services: []svc{{name: "heir", at: "vip2", on: "b"}, {name: "third", at: "vip", ports: ports, on: "x"}}, sends: []send{
				tcp("c", "vip2:80", by("b")), tcp("c", "vip:80", by("x")), tcp("outside", "node:30080", by("x").masked())}},
		}},
		{name: "type changes", steps: []step{
			{services: cluster("a"), sends: []send{tcp("c", "vip:80", by("a")), tcp("outside", "node:30080", isRejected)}},
			{services: web("a"), sends: []send{tcp("c", "vip:80", by("a")), tcp("outside", "node:30080", by("a").masked())}},
			{services: []svc{{on: "a", write: externalName}}, sends: []send{
				tcp("c", "vip:80", isDropped), tcp("outside", "node:30080", isRejected)}},
			{services: web("a"), sends: []send{tcp("c", "vip:80", by("a")), tcp("outside", "node:30080", by("a").masked())}},
			{services: cluster("a"), sends: []send{tcp("c", "vip:80", by("a")), udp("c", "vip:53", isRejected), tcp("outside", "node:30080", isRejected)}},
		}},
		{name: "ports come and go", steps: []step{
			{services: web("a"), sends: []send{tcp("c", "vip:80", by("a")), udp("c", "vip:53", by("a"))}},
			{services: cluster("a"), sends: []send{tcp("c", "vip:80", by("a")), udp("c", "vip:53", isRejected)}},
			{services: web("a"), sends: []send{tcp("c", "vip:80", by("a")), udp("c", "vip:53", by("a"))}},
		}},
		{name: "target port changes", steps: []step{
			{services: toPort(8080), sends: []send{tcp("c", "vip:80", by("a:8080"))}},
			{services: toPort(8081), sends: []send{tcp("c", "vip:80", by("a:8081"))}},
		}},
		{name: "policies change", steps: []step{
			{services: policy(nil), sends: []send{tcp("outside", "lb:80", by("a x").masked()), tcp("c", "vip:80", by("a x"))}},
			{services: policy(externalLocal), sends: []send{tcp("outside", "lb:80", by("a")), tcp("c", "vip:80", by("a x"))}},
			{services: policy(internalLocal), sends: []send{tcp("outside", "lb:80", by("a x").masked()), tcp("c", "vip:80", by("a"))}},
			{services: policy(nil), sends: []send{tcp("outside", "node:30080", by("a x").masked()), tcp("c", "vip:80", by("a x"))}},
		}},
		{name: "source ranges change", steps: []step{
			{services: ranges(), sends: []send{tcp("outside", "lb:80", by("a").masked()), tcp("outside2", "lb:80", by("a").masked())}},
			{services: ranges("outside"), sends: []send{tcp("outside", "lb:80", by("a").masked()), tcp("outside2", "lb:80", isDropped)}},
			{services: ranges("outside2"), sends: []send{tcp("outside", "lb:80", isDropped), tcp("outside2", "lb:80", by("a").masked())}},
			{services: ranges(), sends: []send{tcp("outside", "lb:80", by("a").masked()), tcp("outside2", "lb:80", by("a").masked())}},
		}},
	}
}
