package drivertest

import (
	"time"

	"sluice.dev/sluice/internal/model"
)

func externalLocal(s *model.Service) { s.ExternalLocal = true }
func internalLocal(s *model.Service) { s.InternalLocal = true }

// policyRows are about traffic policies: which endpoints count, and which client address they see.
func policyRows() []row {
	ports := []port{httpNode, dnsNode}
	local := func(on string) []svc {
		return []svc{{at: "vip", lb: "lb", ext: "ext", ports: ports, on: on, edit: externalLocal}}
	}
	inside := func(on string) []svc {
		return []svc{{at: "vip", ports: ports, on: on, edit: internalLocal}}
	}
	return []row{
		one("external traffic policy Local", local("a x"),
			tcp("outside", "node:30080", by("a")), udp("outside", "node:30053", by("a")),
			tcp("outside", "lb:80", by("a")), udp("outside2", "lb:53", by("a")), tcp("outside", "ext:80", by("a")),
			tcp("outside", "vip:80", by("a x").masked())),
		one("external traffic policy Local, from pods and the node", local("a x"),
			tcp("c", "node:30080", by("a x")), tcp("c", "lb:80", by("a x")), udp("c", "lb:53", by("a x")),
			tcp("node", "node:30080", by("a x")), tcp("node", "lb:80", by("a x")), udp("node", "lb:53", by("a x")),
			tcp("y", "node:30080", by("a x").masked()), tcp("c", "vip:80", by("a x"))),
		one("external traffic policy Local, several local endpoints", local("a b x"),
			tcp("outside", "node:30080", by("a b")), udp("outside", "lb:53", by("a b"))),
		one("external traffic policy Local, source ranges and affinity", []svc{{at: "vip", lb: "lb", ports: ports, on: "a b x", ranges: []string{"outside"},
			edit: func(s *model.Service) { s.ExternalLocal, s.Affinity = true, time.Hour }}},
			tcp("outside", "lb:80", oneOf("a b")), udp("outside", "lb:53", oneOf("a b")), tcp("outside2", "lb:80", isDropped),
			tcp("outside2", "node:30080", oneOf("a b")), tcp("c", "lb:80", isDropped), tcp("c", "node:30080", oneOf("a b x"))),
		one("external traffic policy Local, none local", local("x y"),
			tcp("outside", "node:30080", isDropped), udp("outside", "node:30053", isDropped),
			tcp("outside", "lb:80", isDropped), tcp("outside", "ext:80", isDropped),
			tcp("c", "node:30080", by("x y")), tcp("c", "lb:80", by("x y")), tcp("node", "lb:80", by("x y")),
			tcp("outside", "vip:80", by("x y").masked())),
		one("external traffic policy Local, no endpoints", local(""),
			tcp("outside", "node:30080", isRejected), udp("outside", "lb:53", isRejected),
			tcp("c", "node:30080", isRejected), tcp("node", "lb:80", isRejected)),
		one("external traffic policy Local, endpoint on the host network", local("node x"),
			tcp("outside", "node:30080", by("node")), tcp("outside", "lb:80", by("node")), tcp("c", "lb:80", by("node x"))),
		one("external traffic policy Local, to oneself", local("a"),
			tcp("a", "lb:80", by("a").masked()), tcp("a", "node:30080", by("a").masked())),
		one("internal traffic policy Local", inside("a x"),
			tcp("c", "vip:80", by("a")), udp("c", "vip:53", by("a")),
			tcp("node", "vip:80", by("a")), tcp("outside", "vip:80", by("a").masked()),
			tcp("outside", "node:30080", by("a x").masked()), tcp("a", "vip:80", by("a").masked())),
		one("internal traffic policy Local, endpoint on the host network", inside("node x"),
			tcp("c", "vip:80", by("node")), tcp("node", "vip:80", by("node"))),
		one("internal traffic policy Local, none local", inside("x y"),
			tcp("c", "vip:80", isDropped), udp("c", "vip:53", isDropped),
			tcp("node", "vip:80", isDropped), tcp("outside", "vip:80", isDropped),
			tcp("outside", "node:30080", by("x y").masked())),
		one("internal traffic policy Local, no endpoints", inside(""),
			tcp("c", "vip:80", isRejected), tcp("node", "vip:80", isRejected)),
	}
}
