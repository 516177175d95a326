package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// Question asks whether From may open a connection to To.
//
// Both are a pod (pod/NAMESPACE/NAME), a service (svc/NAMESPACE/NAME), a node (node/NAME) or an
// address. Without the kind in front, a pod of the name is taken, then a service, then a node; without
// the namespace, that is "default".
type Question struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Port     string `json:"port,omitempty"`     // a number, or the name that a pod or service gives it; empty with icmp
	Protocol string `json:"protocol,omitempty"` // tcp, udp, sctp, icmp; empty: that of a named port, or else tcp
	Family   int    `json:"family,omitempty"`   // 4 or 6; 0: those that both ends have
}

var errTarget = errors.New("write it as TO:PORT or TO:PORT/PROTOCOL (tcp, udp, sctp), or TO/icmp, with an IPv6 address in brackets")

// ParseQuestion reads what people ask: from, and to as TO:PORT[/PROTOCOL] or TO/icmp.
func ParseQuestion(from, to string) (Question, error) {
	q := Question{From: strings.Trim(from, "[]")}
	rest := to
	if i := strings.LastIndexByte(to, '/'); i >= 0 {
		protocol := strings.ToLower(to[i+1:])
		_, known := protocols[protocol]
		switch {
		case known && (protocol == "icmp" || hasPort(to[:i])):
			q.Protocol, rest = protocol, to[:i]
		case hasPort(to[:i]):
			return q, unknownProtocol(to[i+1:])
		}
	}
	if hasPort(rest) {
		i := strings.LastIndexByte(rest, ':')
		rest, q.Port = rest[:i], rest[i+1:]
	}
	q.To = strings.TrimSuffix(strings.TrimPrefix(rest, "["), "]")
	switch {
	case q.From == "":
		return q, errors.New("say where the connection comes from: a pod, service, node or address")
	case q.To == "", (q.Port == "") == (q.Protocol != "icmp"):
		return q, fmt.Errorf("%q does not say to which port: %w", to, errTarget)
	}
	if n, err := strconv.Atoi(q.Port); err == nil && (n < 1 || n > 65535) {
		return q, fmt.Errorf("port %d of %q is out of range: ports are 1 to 65535", n, to)
	}
	return q, nil
}

func unknownProtocol(name string) error {
	return fmt.Errorf("%q is no protocol that is known here: %w", name, errTarget)
}

// hasPort reports whether a text ends in a port: its last colon is not one of an IPv6 address.
func hasPort(s string) bool {
	i := strings.LastIndexByte(s, ':')
	return i > 0 && (s[i-1] == ']' || !strings.Contains(s[:i], ":"))
}

// ping stands for ICMP or ICMPv6, as the addresses have it.
const ping = 0

// protocols are the names of protocols that a question may have.
var protocols = map[string]uint8{"tcp": uint8(model.TCP), "udp": uint8(model.UDP), "sctp": uint8(model.SCTP), "icmp": ping}

// end is what one side of a question stands for.
type end struct {
	name    string // "pod shop/web-1"; empty for an address that nobody is known to have
	addrs   []netip.Addr
	pod     *model.Pod
	service *model.Service
}

// kinds of ends, as people write them in front of a name.
const (
	kindPod     = "pod"
	kindService = "svc"
	kindNode    = "node"
)

var kindNames = map[string]string{
	"pod": kindPod, "pods": kindPod, "po": kindPod,
	"svc": kindService, "service": kindService, "services": kindService,
	"node": kindNode, "nodes": kindNode,
}

// findEnd looks up what a text stands for.
func findEnd(v *store.View, text string) (end, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return end{addrs: []netip.Addr{a.Unmap().WithZone("")}}, nil
	}
	kind, name := "", text
	if first, rest, ok := strings.Cut(text, "/"); ok {
		if k := kindNames[strings.ToLower(first)]; k != "" {
			kind, name = k, rest
		}
	}
	namespace, short, ok := strings.Cut(name, "/")
	if !ok {
		namespace, short = "default", name
	}
	full := model.Name{Namespace: namespace, Name: short}
	if kind == "" || kind == kindPod {
		if pod := v.Pod(full); pod != nil {
			return podEnd(pod)
		}
	}
	if kind == "" || kind == kindService {
		if svc := v.Service(full); svc != nil {
			return serviceEnd(svc)
		}
	}
	if kind == kindNode || kind == "" && !ok {
		if node := v.Node(name); node != nil {
			return nodeEnd(node)
		}
	}
	return end{}, unknownEnd(v, kind, full, text)
}

func podEnd(pod *model.Pod) (end, error) {
	e := end{name: "pod " + pod.Name.String(), pod: pod, addrs: pod.IPs}
	switch {
	case pod.Finished:
		return e, fmt.Errorf("%s has finished: it has no network any more", e.name)
	case len(pod.IPs) == 0:
		return e, fmt.Errorf("%s has no address yet", e.name)
	}
	return e, nil
}

func serviceEnd(svc *model.Service) (end, error) {
	e := end{name: "service " + svc.Name.String(), service: svc}
	e.addrs = slices.Concat(svc.ClusterIPs, svc.LoadBalancerIPs, svc.ExternalIPs)
	if svc.Unproxied != "" {
		return e, fmt.Errorf("%s is not translated on this node (%s): ask about one of its pods", e.name, svc.Unproxied)
	}
	if len(e.addrs) == 0 {
		return e, fmt.Errorf("%s has no address", e.name)
	}
	e.addrs = onePerFamily(e.addrs)
	return e, nil
}

func nodeEnd(node *model.Node) (end, error) {
	e := end{name: "node " + node.Name, addrs: onePerFamily(node.IPs)}
	if len(e.addrs) == 0 {
		return e, fmt.Errorf("%s has no address", e.name)
	}
	return e, nil
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
func (e end) family(is4 bool) netip.Addr {
	for _, a := range e.addrs {
		if a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}

// port finds the number and the protocol of what a question calls a port.
func (e end) port(q Question) (uint16, uint8, error) {
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
	match := func(name string, p model.Protocol) bool {
		names = append(names, name)
		return name == q.Port && (q.Protocol == "" || uint8(p) == protocol)
	}
	switch {
	case e.service != nil:
		for _, p := range e.service.Ports {
			if match(p.Name, p.Protocol) {
				return p.Port, uint8(p.Protocol), nil
			}
		}
	case e.pod != nil:
		for _, p := range e.pod.Ports {
			if match(p.Name, p.Protocol) {
				return p.Port, uint8(p.Protocol), nil
			}
		}
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == "" })
	if len(names) == 0 {
		return 0, 0, fmt.Errorf("port %q is no number, and %s gives no port a name", q.Port, cmp.Or(e.name, q.To))
	}
	return 0, 0, fmt.Errorf("%s has no port %q: it has %s", e.name, q.Port, strings.Join(names, ", "))
}

// maxNearest bounds how many names are offered for one that nothing has.
const maxNearest = 3

// unknownEnd says that nothing has the name, and what has one like it.
func unknownEnd(v *store.View, kind string, name model.Name, text string) error {
	var names []string
	if kind != kindService && kind != kindNode {
		for _, pod := range v.Pods() {
			names = append(names, pod.Name.String())
		}
	}
	if kind == "" || kind == kindService {
		for _, svc := range v.ServiceNames() {
			names = append(names, "svc/"+svc.String())
		}
	}
	if kind == kindNode || kind == "" {
		for _, node := range v.NodeNames() {
			names = append(names, "node/"+node)
		}
	}
	what := map[string]string{"": "pod, service or node", kindPod: "pod", kindService: "service", kindNode: "node"}[kind]
	err := fmt.Errorf("there is no %s %s", what, strings.TrimPrefix(text, kind+"/"))
	near := nearest(names, name)
	if len(near) == 0 {
		return fmt.Errorf("%w: write NAMESPACE/NAME, node/NAME or an address", err)
	}
	return fmt.Errorf("%w: did you mean %s?", err, strings.Join(near, ", "))
}

// nearest returns the names most like the one that was asked for: by their last part, then as a whole.
func nearest(names []string, asked model.Name) []string {
	type scored struct {
		name  string
		score int
	}
	// Kubernetes' names have no capitals.
	namespace, short := strings.ToLower(asked.Namespace), strings.ToLower(asked.Name)
	var found []scored
	for _, n := range names {
		last := n[strings.LastIndexByte(n, '/')+1:]
		d := distance(last, short)
		if strings.HasPrefix(last, short) {
			d = 1 // a pod of the Deployment or StatefulSet
		}
		if d > max(2, len(short)/3) {
			continue
		}
		score := 2 * d
		if !strings.Contains("/"+n, "/"+namespace+"/") {
			score++
		}
		found = append(found, scored{n, score})
	}
	slices.SortStableFunc(found, func(a, b scored) int {
		return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.name, b.name))
	})
	var near []string
	for _, f := range found[:min(len(found), maxNearest)] {
		near = append(near, f.name)
	}
	return near
}

// distance is the number of letters to insert, delete or replace to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
