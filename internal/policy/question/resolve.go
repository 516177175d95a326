package question

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/store"
)

// maxAskers limits how many pods of a service are asked about.
const maxAskers = 16

// party is what one side of a question means.
type party struct {
	name    string // "pod shop/web-1", or the address
	addrs   []netip.Addr
	ports   []model.ContainerPort // that have names, perhaps
	service *model.Service
	node    bool // or a pod in the network of one
}

// find looks up what an end stands for.
func find(v *store.View, e End) (party, error) {
	switch a := e.Addr; {
	case a.IsLoopback() || a.IsUnspecified():
		return party{}, fmt.Errorf("%v is %s: what goes there leaves no pod or node, and nothing judges it", a, model.Unusable(a))
	case a.IsMulticast():
		return party{}, fmt.Errorf("%v is %s: there are no connections to it", a, model.Unusable(a))
	case a.IsValid():
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
	p := party{name: "pod " + pod.Name.String(), addrs: unmapped(pod.IPs), ports: pod.Ports, node: pod.HostNetwork}
	switch {
	case pod.Finished:
		return p, Finished(pod.Name)
	case len(pod.IPs) == 0:
		return p, fmt.Errorf("%s has no address yet", p.name)
	}
	return p, nil
}

func ofService(svc *model.Service) (party, error) {
	p := party{name: "service " + svc.Name.String(), service: svc}
	for _, port := range svc.Ports {
		p.ports = append(p.ports, model.ContainerPort{Name: port.Name, Protocol: port.Protocol, Port: port.Port})
	}
	if svc.Unproxied != "" && svc.Unproxied != model.Headless {
		return p, fmt.Errorf("%s is not translated on this node (%s): ask about one of its pods", p.name, svc.Unproxied)
	}
	return p, nil
}

func ofNode(node *model.Node) (party, error) {
	p := party{name: "node " + node.Name, addrs: onePerFamily(unmapped(node.IPs)), node: true}
	if len(p.addrs) == 0 {
		return p, fmt.Errorf("%s has no address", p.name)
	}
	return p, nil
}

func unmapped(addrs []netip.Addr) []netip.Addr {
	list := make([]netip.Addr, len(addrs))
	for i, a := range addrs {
		list[i] = a.Unmap()
	}
	return list
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
			names = append(names, fmt.Sprintf("%s (%v)", port.Name, port.Protocol))
		}
	}
	if len(names) == 0 {
		return 0, 0, fmt.Errorf("port %q is not a number, and %s has no named ports", q.Port, p.name)
	}
	return 0, 0, fmt.Errorf("%s has no port %q: it has %s", p.name, q.Port, strings.Join(names, ", "))
}

// target is an address and port that a question is about.
type target struct {
	addr     netip.Addr
	port     uint16
	protocol uint8
}

// targets returns what a question asks about: of a service all its addresses that those inside the
// cluster use, or those outside; of a headless one those of its endpoints, which a client gets from
// DNS.
func (q Question) targets(v *store.View, to party, inside bool) ([]target, error) {
	if to.service != nil && to.service.Unproxied != "" {
		return q.endpoints(v, to)
	}
	ports, err := q.ports(to)
	if err != nil {
		return nil, err
	}
	addrs := to.addrs
	if to.service != nil {
		if addrs, err = addressesOf(to.service, inside); err != nil {
			return nil, err
		}
	}
	var list []target
	for _, port := range ports {
		for _, a := range addrs {
			list = append(list, target{a, port.Port, uint8(port.Protocol)})
		}
	}
	return list, nil
}

// ports are those that the question is about; icmp has one, 0.
func (q Question) ports(to party) ([]model.ContainerPort, error) {
	if q.Port == "" && q.Protocol != "icmp" && to.service != nil {
		list := slices.DeleteFunc(slices.Clone(to.ports), func(p model.ContainerPort) bool {
			return q.Protocol != "" && uint8(p.Protocol) != protocols[q.Protocol]
		})
		if len(list) == 0 {
			return nil, fmt.Errorf("%s has no port of that protocol", to.name)
		}
		return list, nil
	}
	number, protocol, err := to.port(q)
	return []model.ContainerPort{{Port: number, Protocol: model.Protocol(protocol)}}, err
}

// addressesOf returns the addresses by which a service is reached from inside or outside.
func addressesOf(svc *model.Service, inside bool) ([]netip.Addr, error) {
	if inside {
		if len(svc.ClusterIPs) == 0 {
			return nil, fmt.Errorf("service %s has no address", svc.Name)
		}
		return unmapped(svc.ClusterIPs), nil
	}
	if addrs := unmapped(slices.Concat(svc.LoadBalancerIPs, svc.ExternalIPs)); len(addrs) > 0 {
		return addrs, nil
	}
	err := fmt.Errorf("service %s has no address outside the cluster, and the client is outside", svc.Name)
	for _, p := range svc.Ports {
		if p.NodePort != 0 {
			return nil, fmt.Errorf("%w: ask about its node port, as in node/NAME:%d", err, p.NodePort)
		}
	}
	return nil, fmt.Errorf("%w: ask about %s, if that is reached from there", err, model.Join(svc.ClusterIPs, ", "))
}

// endpoints returns those of a headless service that are ready, with the port of the question, or
// with that of the service's port of its name.
func (q Question) endpoints(v *store.View, to party) (list []target, err error) {
	add := func(a netip.Addr, number uint16, name string, protocol model.Protocol) {
		t := target{a.Unmap(), number, uint8(protocol)}
		asked, err := strconv.ParseUint(q.Port, 10, 16)
		switch {
		case q.Protocol != "" && t.protocol != protocols[q.Protocol]:
			return
		case err == nil:
			t.port, t.protocol = uint16(asked), protocols[cmp.Or(q.Protocol, "tcp")]
		case q.Port != "" && q.Port != name:
			return
		}
		if !slices.Contains(list, t) {
			list = append(list, t)
		}
	}
	for _, slice := range v.Slices(to.service.Name) {
		for i := range slice.Endpoints {
			for _, p := range slice.Ports {
				if slice.Endpoints[i].Ready {
					add(slice.Endpoints[i].Addr, p.Port, p.Name, p.Protocol)
				}
			}
		}
	}
	if len(v.Slices(to.service.Name)) == 0 {
		for _, pod := range v.Selected(to.service) {
			for i := range to.service.Ports {
				p := &to.service.Ports[i]
				for _, a := range pod.IPs {
					if number := p.On(pod); number != 0 && to.service.Offers(pod) {
						add(a, number, p.Name, p.Protocol)
					}
				}
			}
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s is headless and has no endpoint that is ready with that port: ask about one of its pods", to.name)
	}
	return list, nil
}

// askers returns the senders where a service is named: the pods that it selects, this node's first.
// More is how many are not asked about.
func askers(v *store.View, from party, node string) (list []party, more int, err error) {
	if from.service == nil {
		return []party{from}, 0, nil
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
	if len(all) == 0 {
		return nil, 0, fmt.Errorf("%s selects no pod that is known and could send: name a pod, or an address", from.name)
	}
	list = all[:min(len(all), maxAskers)]
	return list, len(all) - len(list), nil
}

// connections returns those that a question is about, and how many senders it leaves out.
func (q Question) connections(v *store.View, h *homes) (list []verdict.Question, more int, err error) {
	from, err := find(v, q.From)
	if err != nil {
		return nil, 0, err
	}
	to, err := find(v, q.To)
	if err != nil {
		return nil, 0, err
	}
	senders, more, err := askers(v, from, h.here)
	if err != nil {
		return nil, 0, err
	}
	inside := q.From.Addr == netip.Addr{} || h.home(q.From.Addr) != ""
	switch {
	case q.Via != "" && inside:
		return nil, 0, errors.New("--via is for a client outside the cluster: one inside begins at its own node")
	case q.Via != "" && v.Node(q.Via) == nil:
		return nil, 0, unknown(v, End{Kind: Node, Name: q.Via}, model.Name{Name: q.Via})
	}
	targets, err := q.targets(v, to, inside)
	if err != nil {
		return nil, 0, err
	}
	for _, sender := range senders {
		for _, a := range sender.addrs {
			for _, t := range targets {
				if a.Is4() != t.addr.Is4() || q.Family == 4 && !a.Is4() || q.Family == 6 && a.Is4() {
					continue
				}
				c := verdict.Question{From: a, AnyOwn: sender.node, To: t.addr, Protocol: t.protocol, Port: t.port}
				if q.Protocol == "icmp" {
					c.Protocol, c.ICMPType = verdict.Ping(t.addr)
				}
				if q.Via != "" {
					c.Via = []string{q.Via}
				}
				list = append(list, c)
			}
		}
	}
	if len(list) == 0 {
		return nil, 0, noFamily(q, senders[0], targets, to)
	}
	return list, more, nil
}

func noFamily(q Question, from party, targets []target, to party) error {
	var theirs []netip.Addr
	for _, t := range targets {
		theirs = append(theirs, t.addr)
	}
	has := func(name string, addrs []netip.Addr) string {
		var families []string
		for _, is4 := range []bool{true, false} {
			if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is4() == is4 }) {
				families = append(families, model.FamilyName(is4))
			}
		}
		return fmt.Sprintf("%s has %s", name, strings.Join(families, " and "))
	}
	if q.Family != 0 {
		return fmt.Errorf("not both have an IPv%d address: %s, %s", q.Family, has(from.name, from.addrs), has(to.name, theirs))
	}
	return fmt.Errorf("no address family is common to both: %s, %s", has(from.name, from.addrs), has(to.name, theirs))
}
