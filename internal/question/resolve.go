package question

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/internal/verdict"
)

// maxAskers limits how many pods of a service are asked about.
const maxAskers = 16

// Connections returns the connections of a question, as addresses, ports and protocols: one for
// each address family, and for each pod behind an asking service, the pods of node first. An error
// says why the question makes no sense.
func (q Question) Connections(v *store.View, node string) (list []verdict.Question, err error) {
	from, err := find(v, q.From)
	if err != nil {
		return nil, err
	}
	to, err := find(v, q.To)
	if err != nil {
		return nil, err
	}
	port, protocol, err := to.port(q)
	if err != nil {
		return nil, err
	}
	for _, asker := range askers(v, from, node) {
		for _, is4 := range []bool{true, false} {
			src, dst := asker.family(is4), to.family(is4)
			if !src.IsValid() || !dst.IsValid() || q.Family == 4 && !is4 || q.Family == 6 && is4 {
				continue
			}
			c := verdict.Question{From: src, To: dst, Protocol: protocol, Port: port}
			if protocol == ping {
				c.Protocol, c.ICMPType = verdict.Ping(dst)
			}
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return nil, noFamily(q, from, to)
	}
	return list, nil
}

// party is what one side of a question means.
type party struct {
	name    string // "pod shop/web-1", or the address
	addrs   []netip.Addr
	ports   []model.ContainerPort // that have names, perhaps
	service *model.Service
}

// find looks up what an end stands for.
func find(v *store.View, e End) (party, error) {
	if e.Addr.IsValid() {
		return party{name: e.Addr.String(), addrs: []netip.Addr{e.Addr}}, nil
	}
	namespace, short, ok := strings.Cut(e.Name, "/")
	if !ok {
		namespace, short = "default", e.Name
	}
	full := model.Name{Namespace: namespace, Name: short}
	if e.Kind == "" || e.Kind == Pod {
		if pod := v.Pod(full); pod != nil {
			return ofPod(pod)
		}
	}
	if e.Kind == "" || e.Kind == Service {
		if svc := v.Service(full); svc != nil {
			return ofService(svc)
		}
	}
	if e.Kind == Node || e.Kind == "" && !ok {
		if node := v.Node(e.Name); node != nil {
			return ofNode(node)
		}
	}
	return party{}, unknown(v, e, full)
}

func ofPod(pod *model.Pod) (party, error) {
	p := party{name: "pod " + pod.Name.String(), addrs: pod.IPs, ports: pod.Ports}
	switch {
	case pod.Finished:
		return p, fmt.Errorf("%s has finished: it has no network any more", p.name)
	case len(pod.IPs) == 0:
		return p, fmt.Errorf("%s has no address yet", p.name)
	}
	return p, nil
}

func ofService(svc *model.Service) (party, error) {
	p := party{name: "service " + svc.Name.String(), service: svc}
	p.addrs = slices.Concat(svc.ClusterIPs, svc.LoadBalancerIPs, svc.ExternalIPs)
	for _, port := range svc.Ports {
		p.ports = append(p.ports, model.ContainerPort{Name: port.Name, Protocol: port.Protocol, Port: port.Port})
	}
	if svc.Unproxied != "" {
		return p, fmt.Errorf("%s is not translated on this node (%s): ask about one of its pods", p.name, svc.Unproxied)
	}
	if len(p.addrs) == 0 {
		return p, fmt.Errorf("%s has no address", p.name)
	}
	p.addrs = onePerFamily(p.addrs)
	return p, nil
}

func ofNode(node *model.Node) (party, error) {
	p := party{name: "node " + node.Name, addrs: onePerFamily(node.IPs)}
	if len(p.addrs) == 0 {
		return p, fmt.Errorf("%s has no address", p.name)
	}
	return p, nil
}

// onePerFamily returns the first address of each family.
func onePerFamily(addrs []netip.Addr) []netip.Addr {
	var found []netip.Addr
	for _, a := range addrs {
		if !slices.ContainsFunc(found, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			found = append(found, a)
		}
	}
	return found
}

// family returns the address of the family, or the zero address.
func (p party) family(is4 bool) netip.Addr {
	for _, a := range p.addrs {
		if a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}

// port returns the number and the protocol of a question's port.
func (p party) port(q Question) (uint16, uint8, error) {
	protocol, known := protocols[cmp.Or(q.Protocol, "tcp")]
	if !known {
		return 0, 0, unknownProtocol(q.Protocol)
	}
	if q.Protocol == "icmp" {
		return 0, protocol, nil
	}
	if n, err := strconv.ParseUint(q.Port, 10, 16); err == nil {
		return uint16(n), protocol, nil
	}
	var names []string
	for _, port := range p.ports {
		if port.Name == q.Port && (q.Protocol == "" || uint8(port.Protocol) == protocol) {
			return port.Port, uint8(port.Protocol), nil
		}
		if port.Name != "" {
			names = append(names, port.Name)
		}
	}
	if len(names) == 0 {
		return 0, 0, fmt.Errorf("port %q is not a number, and %s has no named ports", q.Port, p.name)
	}
	return 0, 0, fmt.Errorf("%s has no port %q: it has %s", p.name, q.Port, strings.Join(names, ", "))
}

// askers returns the senders where a service is named: the pods that it selects, this node's first.
func askers(v *store.View, from party, node string) []party {
	if from.service == nil {
		return []party{from}
	}
	var here, elsewhere []party
	for _, pod := range v.Selected(from.service) {
		p, err := ofPod(pod)
		switch {
		case err != nil || pod.HostNetwork: // it does not send by an address of its own
		case pod.Node == node:
			here = append(here, p)
		default:
			elsewhere = append(elsewhere, p)
		}
	}
	all := append(here, elsewhere...)
	return all[:min(len(all), maxAskers)]
}

func noFamily(q Question, from, to party) error {
	has := func(p party) string {
		var families []string
		for _, is4 := range []bool{true, false} {
			if p.family(is4).IsValid() {
				families = append(families, map[bool]string{true: "IPv4", false: "IPv6"}[is4])
			}
		}
		return fmt.Sprintf("%s has %s", p.name, strings.Join(families, " and "))
	}
	if from.service != nil {
		return fmt.Errorf("%s selects no pod that could send: name a pod", from.name)
	}
	if q.Family != 0 {
		return fmt.Errorf("not both have an IPv%d address: %s, %s", q.Family, has(from), has(to))
	}
	return fmt.Errorf("no address family is common to both: %s, %s", has(from), has(to))
}
