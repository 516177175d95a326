package drivertest

import "sluice.dev/sluice/internal/model"

// endpointRows are about which endpoints of a Service count.
func endpointRows() []row {
	ports := []port{httpNode}
	web := func(on string) []svc { return []svc{{at: "vip", ports: ports, on: on}} }
	local := func(on string) []svc {
		return []svc{{at: "vip", ports: ports, on: on, edit: externalLocal}}
	}
	unready := func(publish bool) []svc {
		return []svc{{at: "vip", pods: "a!unready b!unready", edit: func(s *model.Service) { s.PublishNotReady = publish }}}
	}
	return []row{
		one("not ready", web("a b!unready"), tcp("c", "vip:80", by("a")), tcp("outside", "node:30080", by("a").masked())),
		one("none ready", web("a!unready b!unready"), tcp("c", "vip:80", isRejected), tcp("outside", "node:30080", isRejected)),
		one("pods not ready", unready(false), tcp("c", "vip:80", isRejected)),
		one("pods not ready, published", unready(true), tcp("c", "vip:80", by("a b"))),
		one("on the host network", web("node remote"), tcp("c", "vip:80", by("node remote")),
			tcp("node", "vip:80", by("node remote")), tcp("outside", "node:30080", by("node remote").masked())),

		one("draining beside ready", web("a b!draining"), tcp("c", "vip:80", by("a"))),
		one("draining alone", web("a!draining b!gone x!draining"), tcp("c", "vip:80", by("a x")), tcp("outside", "node:30080", by("a x").masked())),
		one("all gone", web("a!gone x!gone"), tcp("c", "vip:80", isRejected), tcp("outside", "node:30080", isRejected)),
		one("external Local: draining here, ready elsewhere", local("a!draining x"),
			tcp("outside", "node:30080", by("a")), tcp("c", "vip:80", by("x")), tcp("c", "node:30080", by("x"))),
		one("external Local: gone here, ready elsewhere", local("a!gone x"),
			tcp("outside", "node:30080", isDropped), tcp("c", "node:30080", by("x"))),
		one("external Local: draining beside ready", local("a!draining b x"), tcp("outside", "node:30080", by("b"))),
		one("internal Local: draining here, ready elsewhere", []svc{{at: "vip", on: "a!draining x", edit: internalLocal}},
			tcp("c", "vip:80", by("a")), tcp("node", "vip:80", by("a"))),

		one("zone hints", web("a@node b@node x@remote"), tcp("c", "vip:80", by("a b")), tcp("outside", "node:30080", by("a b").masked())),
		one("zone hints, not on all", web("a@node b x@remote"), tcp("c", "vip:80", by("a b x"))),
		one("zone hints, none for here", web("a@remote x@remote"), tcp("c", "vip:80", by("a x"))),
		one("zone hints, unready ones without", web("a@node b!unready x@remote"), tcp("c", "vip:80", by("a"))),
		one("node hints", web("a%node b%remote x%remote"), tcp("c", "vip:80", by("a"))),
		one("node hints before zone hints", web("a@node%node b@node%remote x@remote%remote"), tcp("c", "vip:80", by("a"))),
		one("node hints, none for here", web("a@node%remote b@node%remote x@remote%remote"), tcp("c", "vip:80", by("a b"))),
		one("hints and a Local policy", local("a@node b@remote x@remote"), tcp("outside", "node:30080", by("a b"))),
	}
}
