// Package question parses the questions of `sluice why`, and finds the addresses that they are
// about. It does no I/O: it reads the objects through a view of the store.
package question

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// Question asks whether From may open a connection to To.
type Question struct {
	From, To End
	Port     string // a number, or the name that a pod or service gives it; empty for icmp, and for all ports of a service
	Protocol string // tcp, udp, sctp, icmp; empty: the protocol of a named port, or else tcp
	Family   int    // 4 or 6; 0: all that both ends have
	Via      string // the node by which it comes into the cluster; empty: see Case
	Suggest  bool   // say which policies would allow it
}

// End is one side of a question: an address, or the name of an object.
type End struct {
	Addr netip.Addr // invalid if Name is set
	Kind Kind       // empty: a pod of that name, or else a service, or else a node
	Name string     // NAMESPACE/NAME, or NAME in the namespace "default" or of a node
}

// Kind is what kind of object an End names.
type Kind string

// These are the kinds of ends, as people write them before a name.
const (
	Pod     Kind = "pod"
	Service Kind = "svc"
	Node    Kind = "node"
)

var kindNames = map[string]Kind{
	"pod": Pod, "pods": Pod, "po": Pod,
	"svc": Service, "service": Service, "services": Service,
	"node": Node, "nodes": Node,
}

// ParseEnd reads an address, or a name with or without its kind: pod/NAMESPACE/NAME,
// svc/NAMESPACE/NAME, node/NAME.
func ParseEnd(text string) End {
	if a, err := netip.ParseAddr(text); err == nil {
		return End{Addr: a.Unmap().WithZone("")}
	}
	if first, rest, ok := strings.Cut(text, "/"); ok {
		if kind := kindNames[strings.ToLower(first)]; kind != "" {
			return End{Kind: kind, Name: rest}
		}
	}
	return End{Name: text}
}

// String returns a text that ParseEnd reads.
func (e End) String() string {
	switch {
	case e.Addr.IsValid():
		return e.Addr.String()
	case e.Kind != "":
		return string(e.Kind) + "/" + e.Name
	}
	return e.Name
}

var errTarget = errors.New("write it as TO:PORT or TO:PORT/PROTOCOL (tcp, udp, sctp), or TO/icmp, with an IPv6 address in brackets")

// Parse parses what people ask: from, and to as TO:PORT[/PROTOCOL] or TO/icmp.
func Parse(from, to string) (Question, error) {
	from = strings.Trim(from, "[]")
	q := Question{From: ParseEnd(from)}
	rest := to
	if i := strings.LastIndexByte(to, '/'); i >= 0 {
		protocol := strings.ToLower(to[i+1:])
		_, known := protocols[protocol]
		switch {
		case known && (protocol == "icmp" || hasPort(to[:i]) || namesService(to[:i])):
			q.Protocol, rest = protocol, to[:i]
		case hasPort(to[:i]):
			return q, unknownProtocol(to[i+1:])
		}
	}
	if hasPort(rest) {
		i := strings.LastIndexByte(rest, ':')
		rest, q.Port = rest[:i], rest[i+1:]
	}
	rest = strings.TrimSuffix(strings.TrimPrefix(rest, "["), "]")
	q.To = ParseEnd(rest)
	switch {
	case from == "":
		return q, errors.New("say where the connection comes from: a pod, service, node or address")
	case rest != "" && q.Port == "" && q.To.Kind == Service: // all its ports
	case rest == "", (q.Port == "") == (q.Protocol != "icmp"):
		return q, fmt.Errorf("%q has no port: %w", to, errTarget)
	}
	if n, err := strconv.Atoi(q.Port); err == nil && (n < 1 || n > 65535) {
		return q, fmt.Errorf("port %d of %q is out of range: ports are 1 to 65535", n, to)
	}
	return q, nil
}

// namesService reports whether a text is svc/NAMESPACE/NAME.
func namesService(text string) bool {
	e := ParseEnd(text)
	return e.Kind == Service && strings.Contains(e.Name, "/")
}

func unknownProtocol(name string) error {
	return fmt.Errorf("%q is not a known protocol: %w", name, errTarget)
}

// hasPort reports whether a text ends in a port: its last colon is not one of an IPv6 address.
func hasPort(s string) bool {
	i := strings.LastIndexByte(s, ':')
	return i > 0 && (s[i-1] == ']' || !strings.Contains(s[:i], ":"))
}

// ping stands for ICMP or ICMPv6, depending on the addresses.
const ping = 0

// protocols are the protocol names that a question may use.
var protocols = map[string]uint8{"tcp": uint8(model.TCP), "udp": uint8(model.UDP), "sctp": uint8(model.SCTP), "icmp": ping}
