package drivertest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
)

// A svc declares a Service together with its endpoints, by the names that the topology gives to
// addresses.
type svc struct {
	name        string   // "web" if empty
	at, lb, ext string   // cluster, load balancer and external addresses: names, separated by spaces
	ports       []port   // http if empty
	on          string   // endpoints in EndpointSlices, see parseEndpoint
	pods        string   // endpoints as Pods that the Service selects, instead of slices
	ranges      []string // source ranges: names of addresses
	dual        bool     // everything in both families, whatever the row's
	edit        func(*model.Service)
	write       func(*corev1.Service) // what a user writes for Kubernetes beside the addresses and ports
}

// A port is a Service's port and the same port of its slices.
type port struct {
	name     string
	proto    model.Protocol
	port     uint16
	node     uint16
	to       uint16 // port on which the endpoints listen
	toByName bool   // the Service names a container port instead
}

var (
	http     = port{name: "http", proto: model.TCP, port: 80, to: 8080}
	httpNode = port{name: "http", proto: model.TCP, port: 80, node: 30080, to: 8080}
	dns      = port{name: "dns", proto: model.UDP, port: 53, to: 8053}
	dnsNode  = port{name: "dns", proto: model.UDP, port: 53, node: 30053, to: 8053}
	sig      = port{name: "sig", proto: model.SCTP, port: 36412, node: 30412, to: 8412}
)

type objectKey struct {
	kind model.Kind
	name model.Name
}

// objects are the objects of a cluster at one moment.
type objects map[objectKey]any

const namespace = "test"

// declare builds the objects of a step's services in family f, and the two nodes.
func (w *topology) declare(f family, s step) objects {
	o := objects{}
	for i, n := range []string{"node", "remote"} {
		o[objectKey{model.NodeKind, model.Name{Name: n}}] = &model.Node{
			Name:     n,
			Labels:   map[string]string{"topology.kubernetes.io/zone": w.zone(n)},
			IPs:      []netip.Addr{w.addrs[n][ipv4], w.addrs[n][ipv6]},
			PodCIDRs: [][]netip.Prefix{nodePodCIDRs, otherPodCIDRs}[i],
		}
	}
	own := o[objectKey{model.NodeKind, model.Name{Name: "node"}}].(*model.Node)
	if s.at != "" {
		own.IPs = slices.Concat(w.all(s.at, ipv4), w.all(s.at, ipv6))
	}
	if s.noPods {
		own.PodCIDRs = nil
	}
	for _, s := range s.services {
		w.declareService(o, f, s.complete())
	}
	return o
}

func (s svc) complete() svc {
	if s.name == "" {
		s.name = "web"
	}
	if s.ports == nil {
		s.ports = []port{http}
	}
	return s
}

// zone returns a node's zone: each has its own.
func (w *topology) zone(node string) string {
	if node == "" {
		return ""
	}
	return "zone-" + node
}

func (w *topology) declareService(o objects, f family, s svc) {
	families := []family{f}
	if s.dual {
		families = []family{ipv4, ipv6}
	}
	out := &model.Service{Name: model.Name{Namespace: namespace, Name: s.name}}
	for _, f := range families {
		out.ClusterIPs = append(out.ClusterIPs, w.all(s.at, f)...)
		out.LoadBalancerIPs = append(out.LoadBalancerIPs, w.all(s.lb, f)...)
		out.ExternalIPs = append(out.ExternalIPs, w.all(s.ext, f)...)
		for _, name := range s.ranges {
			a := w.addr(name, f)
			out.SourceRanges = append(out.SourceRanges, netip.PrefixFrom(a, a.BitLen()))
		}
		w.declareSlice(o, f, s)
	}
	for _, p := range s.ports {
		sp := model.ServicePort{Name: p.name, Protocol: p.proto, Port: p.port, NodePort: p.node, TargetPort: p.to}
		if p.toByName {
			sp.TargetPort, sp.TargetName = 0, p.name
		}
		out.Ports = append(out.Ports, sp)
	}
	if s.pods != "" {
		out.Selector = map[string]string{"app": s.name}
		w.declarePods(o, s)
	}
	if s.edit != nil {
		s.edit(out)
	}
	if s.write != nil {
		out = written(out, s.write)
	}
	o[objectKey{model.ServiceKind, out.Name}] = out
}

func (w *topology) all(names string, f family) (addrs []netip.Addr) {
	for name := range strings.FieldsSeq(names) {
		addrs = append(addrs, w.addr(name, f))
	}
	return addrs
}

func (w *topology) declareSlice(o objects, f family, s svc) {
	if s.pods != "" {
		return
	}
	slice := &model.EndpointSlice{
		Name:    model.Name{Namespace: namespace, Name: fmt.Sprintf("%s-%v", s.name, f)},
		Service: s.name,
	}
	for _, p := range s.ports {
		slice.Ports = append(slice.Ports, model.EndpointPort{Name: p.name, Protocol: p.proto, Port: p.to})
	}
	for spec := range strings.FieldsSeq(s.on) {
		slice.Endpoints = append(slice.Endpoints, w.parseEndpoint(spec, f))
	}
	o[objectKey{model.EndpointSliceKind, slice.Name}] = slice
}

// parseEndpoint reads "NAME[!CONDITION][@NODE][%NODE]": the condition is unready, draining
// (terminating and still serving) or gone (terminating and no longer serving); @ hints at the zone
// of a node, % at the node itself.
func (w *topology) parseEndpoint(spec string, f family) model.Endpoint {
	rest, nodeHint, _ := strings.Cut(spec, "%")
	rest, zoneHint, _ := strings.Cut(rest, "@")
	name, condition, _ := strings.Cut(rest, "!")
	node := w.hostOf(name).node
	e := model.Endpoint{Addr: w.addr(name, f), Node: node, Zone: w.zone(node)}
	switch condition {
	case "":
		e.Ready, e.Serving = true, true
	case "unready":
	case "draining":
		e.Serving, e.Terminating = true, true
	case "gone":
		e.Terminating = true
	default:
		panic("drivertest: no endpoint condition " + condition)
	}
	if zoneHint != "" {
		e.ZoneHints = []string{w.zone(zoneHint)}
	}
	if nodeHint != "" {
		e.NodeHints = []string{nodeHint}
	}
	return e
}

// declarePods makes a Pod for each endpoint "NAME[!unready]", with its container ports.
func (w *topology) declarePods(o objects, s svc) {
	for spec := range strings.FieldsSeq(s.pods) {
		name, condition, _ := strings.Cut(spec, "!")
		p := &model.Pod{
			Name:        model.Name{Namespace: namespace, Name: s.name + "-" + name},
			Labels:      map[string]string{"app": s.name},
			Node:        w.hostOf(name).node,
			HostNetwork: w.hostOf(name).name == w.hostOf(name).node,
			Ready:       condition == "",
		}
		for f := range []family{ipv4, ipv6} {
			p.IPs = append(p.IPs, w.addr(name, family(f)))
		}
		for _, sp := range s.ports {
			p.Ports = append(p.Ports, model.ContainerPort{Name: sp.name, Protocol: sp.proto, Port: sp.to})
		}
		o[objectKey{model.PodKind, p.Name}] = p
	}
}

// serveAll starts a server behind every declared endpoint, whatever its condition: even an endpoint
// that must not be reached has to be reachable.
func (w *topology) serveAll(f family, services []svc) error {
	for _, s := range services {
		s = s.complete()
		families := []family{f}
		if s.dual {
			families = []family{ipv4, ipv6}
		}
		for spec := range strings.FieldsSeq(s.on + " " + s.pods) {
			name, _, _ := strings.Cut(spec, "!")
			name, _, _ = strings.Cut(name, "@")
			name, _, _ = strings.Cut(name, "%")
			for _, p := range s.ports {
				for _, f := range families {
					if err := w.hostOf(name).serve(p.proto, netip.AddrPortFrom(w.addr(name, f), p.to)); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}
