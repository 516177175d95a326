package drivertest

import (
	"slices"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
)

// bystanderRows are about traffic that belongs to no service.
func bystanderRows() []row {
	return []row{
		one("what is not addressed to a service", []svc{
			{at: "vip", ports: []port{httpNode, dns}, on: "a b x"}, {name: "far", on: "outside"}},
			tcp("c", "b:8080", by("b")), tcp("c", "x:8080", by("x")), udp("c", "b:8053", by("b")),
			tcp("node", "b:8080", by("b")), tcp("outside", "b:8080", by("b")), tcp("x", "a:8080", by("a")),
			tcp("c", "outside:8080", by("outside")),
			icmp("c", "b", by("b")), icmp("node", "x", by("x")), icmp("outside", "a", by("a")), icmp("outside", "node", by("node"))),
		// The same tuple after translation, and replies to a port that is a node port
		// (kubernetes/kubernetes#90258, #111682).
		{name: "source ports that are in use twice", needs: driver.SharedPorts, steps: []step{{services: []svc{
			{at: "vip", lb: "lb", ports: []port{httpNode, dnsNode}, on: "a x"}, {name: "far", ports: []port{http, dns}, on: "outside"}},
			sends: slices.Concat(twins("c", by("a x")), twins("node", by("a x").masked()), twins("outside", by("a x").masked()), []send{
				tcp("node", "outside:8080", by("outside")).at(30080).on("own"), tcp("node", "outside:8080", by("outside")).at(30080).on("own"),
				tcp("node", "vip:80", by("a x").masked()).at(30080).on("to a service"),
				tcp("outside", "node:30080", by("a x").masked()).at(30080).on("to a node port"), udp("outside", "node:30053", by("a x").masked()).at(30053).on("to a node port, UDP"),
				tcp("outside", "lb:80", by("a x").masked()).at(30080).on("to a load balancer"), udp("outside", "lb:53", by("a x").masked()).at(30053).on("to a load balancer, UDP"),
			})}}},
		{name: "pods to the outside", config: config{outgoing: true}, steps: []step{{
			services: []svc{{at: "vip", ports: []port{httpNode, dns}, on: "a b x"}, {name: "far", at: "vip2", ports: []port{http, dns}, on: "outside"}, {name: "host", on: "remote node"}},
			sends: []send{
				tcp("c", "outside:8080", by("outside").masked()), udp("c", "outside:8053", by("outside").masked()), icmp("c", "outside", by("outside")),
				tcp("c", "remote:8080", by("remote").masked()), tcp("c", "vip2:80", by("outside").masked()),
				tcp("c", "b:8080", by("b")), tcp("c", "x:8080", by("x")), udp("c", "x:8053", by("x")), tcp("c", "vip:80", by("a b x")),
				tcp("c", "node:8080", by("node")), tcp("node", "outside:8080", by("outside")), tcp("outside", "b:8080", by("b")),
			}}}},
		// A router with one route for all pods, and a host that answers by another way
		// (projectcalico/calico#7434, kubernetes/kubernetes#94861).
		{name: "only one direction passes the node", steps: []step{{
			services: []svc{{at: "vip", ports: []port{httpNode, dns}, on: "a x"}, {name: "host", on: "remote node"}}, oneWay: "x remote",
			sends: []send{
				tcp("outside", "x:8080", by("x")).on("to a pod of another node"), tcp("outside", "x:8080", by("x")).on("to a pod of another node"),
				tcp("outside", "remote:8080", by("remote")).on("between hosts"), tcp("outside", "remote:8080", by("remote")).on("between hosts"),
			}}}},
		changedWay(),
		one("another table's translation", []svc{{at: "vip", ports: []port{httpNode}, on: "c"}},
			tcp("outside", "node:5555", by("c")), tcp("outside", "node:30080", by("c").masked())),
		// That table translates after the driver's, so services may have the node's address here.
		one("another program's service", []svc{
			{name: "theirs", at: "vip2", on: "a", write: forAnother}, {at: "vip", on: "b"}, {name: "c", at: "vip3", on: "c"}},
			tcp("a", "vip2:5555", by("c")), tcp("outside", "vip2:5555", by("c")), tcp("a", "vip:80", by("b"))),
	}
}

// twins are connections of one source port to a service, and to the endpoints themselves that it
// has.
func twins(from string, f fate) (all []send) {
	for range 2 {
		for proto, to := range map[model.Protocol][3]string{model.TCP: {"vip:80", "a:8080", "x:8080"}, model.UDP: {"vip:53", "a:8053", "x:8053"}} {
			for i, fate := range []fate{f, by("a"), by("x")} {
				s := send{from: from, to: to[i], proto: proto, fate: fate, port: 40001}
				all = append(all, s.on(from+" "+proto.String()+" "+to[i]))
			}
		}
	}
	return all
}

// changedWay is about connections that go on when the way to the other node leads by another
// interface, as it does when the mode of the pod network changes.
func changedWay() row {
	services := []svc{
		{at: "vip", ports: []port{httpNode, dnsNode}, on: "x"},
		{name: "local", at: "vip2", ports: []port{{name: "http", proto: model.TCP, port: 80, node: 30081, to: 8080}}, on: "x", edit: func(s *model.Service) { s.ExternalLocal = true }},
		{name: "far", at: "vip3", on: "outside"},
	}
	flows := []send{
		tcp("outside", "node:30080", by("x").masked()).on("from outside, TCP"), udp("outside", "node:30053", by("x").masked()).on("from outside, UDP"),
		tcp("node", "vip:80", by("x").masked()).on("from the node, TCP"), udp("node", "vip:53", by("x").masked()).on("from the node, UDP"),
		tcp("node", "node:30081", by("x").masked()).on("from the node, Local"),
		tcp("c", "node:30080", by("x").masked()).on("from a pod, masqueraded"),
		tcp("c", "vip:80", by("x")).on("from a pod"), tcp("c", "outside:8080", by("outside").masked()).on("to the outside"),
	}
	return row{name: "the way to a node changes", config: config{outgoing: true}, steps: []step{
		{services: services, sends: flows},
		{services: services, sends: flows, detour: "x"},
		{services: services, sends: flows, restart: true},
	}}
}
