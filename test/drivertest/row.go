package drivertest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
)

// A row is one line of the table: what a user declares, what clients send, and the expected
// outcome. It runs for each family.
type row struct {
	name   string
	config config
	steps  []step
	needs  driver.Capability // beside what its services and steps show
}

// config is what differs from the node's usual configuration, which has the cluster's prefixes, and
// NodePorts on the node's first address.
type config struct {
	masqueradeAll bool
	nodePortsOn   string // names of addresses; "" is the first address of the node
	noPrefixes    bool   // configures neither the services' nor the pods' prefixes
	nodeAddresses bool   // services may have addresses of the node
	outgoing      bool   // the pod network is ours: pods reach what is outside of the cluster's prefixes with the node's address
	bound         string // names of further addresses of the node
}

// shares reports whether the row takes over the driver, and what is in the kernel, of a row before
// it: unless clients are remembered, or the node is another one.
func (r row) shares() bool {
	return r.config == (config{}) && !slices.ContainsFunc(r.steps, func(s step) bool {
		return s.away || slices.ContainsFunc(s.services, func(s svc) bool {
			m := &model.Service{}
			if s.edit != nil {
				s.edit(m)
			}
			return m.Affinity > 0
		})
	})
}

// A step declares all services, passes the change to the driver, and sends packets.
type step struct {
	services []svc
	at       string        // names of the addresses in the Node object; "node" if empty
	noPods   bool          // the Node object has no pod CIDR
	restart  bool          // first, the driver is closed and opened again, and must find nothing to do
	missed   bool          // no driver follows the change: the next one finds it
	away     bool          // the driver is purged and closed, and comes back with the next step
	pause    time.Duration // wait for the kernel's own time-outs
	// Removed pods: from this step on, the node's routes to them lead nowhere, with or without an
	// error.
	blackhole, unreachable string
	detour                 string // from this step on, the node reaches these addresses by another interface
	oneWay                 string // the wire leads to these addresses by the node what comes from outside: the node sees no answers
	sends                  []send
}

// one is a row of a single step.
func one(name string, services []svc, sends ...send) row {
	return row{name: name, steps: []step{{services: services, sends: sends}}}
}

// echoRequest is used as a transport for a ping.
const echoRequest model.Protocol = 1

// A send is a number of connections of a client, or one more exchange over a flow.
type send struct {
	from  string // the name of an address, or several of one host, used in turns
	to    string // name:port
	proto model.Protocol
	flow  string // the same connection as others in the row with this name
	size  int    // bytes of payload, in each direction
	stray bool   // before the exchange, the backend sends a TCP segment outside any window on the flow
	port  uint16 // that it is sent from; 0: any
	fate  fate
}

func tcp(from, to string, f fate) send  { return send{from: from, to: to, proto: model.TCP, fate: f} }
func udp(from, to string, f fate) send  { return send{from: from, to: to, proto: model.UDP, fate: f} }
func sctp(from, to string, f fate) send { return send{from: from, to: to, proto: model.SCTP, fate: f} }
func icmp(from, to string, f fate) send {
	return send{from: from, to: to + ":0", proto: echoRequest, fate: f}
}

func (s send) on(flow string) send { s.flow = flow; return s }
func (s send) of(size int) send    { s.size = size; return s }
func (s send) at(port uint16) send { s.port = port; return s }
func (s send) afterStray() send    { s.stray = true; return s }

func (s send) String() string {
	proto := s.proto.String()
	if s.proto == echoRequest {
		proto = "ping"
	}
	text := fmt.Sprintf("%s from %s to %s", proto, s.from, s.to)
	if s.flow != "" {
		text += " (flow " + s.flow + ")"
	}
	return text
}

type outcome string

const (
	answered outcome = "answered"
	rejected outcome = "rejected at once"
	dropped  outcome = "dropped"
	cut      outcome = "cut"
)

// A fate is the expected outcome of a send.
type fate struct {
	outcome outcome
	by      []string // answered: the backends, name[:port]; of several, each is seen eventually
	// Answered: "" if the backends see the client's own address, "node" if the node's, "hairpin" if
	// the node's only for a client on the backend's own host.
	source string
	sticky bool // answered: only one of the backends is ever seen
}

// These are fates. A flow that is cut gets no more answers from its backend.
var (
	isRejected = fate{outcome: rejected}
	isDropped  = fate{outcome: dropped}
	isCut      = fate{outcome: cut}
)

// by is answered by these backends, which see the client's own address.
func by(backends string) fate { return fate{outcome: answered, by: strings.Fields(backends)} }

// oneOf is answered by one and the same of these backends each time.
func oneOf(backends string) fate { f := by(backends); f.sticky = true; return f }

// masked is the same fate, but the backends see the node's address. A backend on the node's own
// network still sees the client's address: its replies always pass the node.
func (f fate) masked() fate { f.source = "node"; return f }

// hairpin is the same fate, but a backend that is the client itself sees the node's address.
func (f fate) hairpin() fate { f.source = "hairpin"; return f }

func (f fate) String() string {
	if f.outcome != answered {
		return string(f.outcome)
	}
	text := "answered by " + strings.Join(f.by, ", ")
	if f.sticky {
		text = "answered by one and the same of " + strings.Join(f.by, ", ")
	}
	return text + map[string]string{
		"":        ", client address kept",
		"node":    ", seen from the node's address",
		"hairpin": ", client address kept except for the client itself",
	}[f.source]
}

// backends resolves the names of a fate; the default is the port that most rows' services have.
func (w *topology) backends(f family, s send) map[netip.AddrPort]bool {
	usual := map[model.Protocol]string{model.TCP: "8080", model.UDP: "8053", model.SCTP: "8412", echoRequest: "0"}
	out := map[netip.AddrPort]bool{}
	for _, b := range s.fate.by {
		if !strings.Contains(b, ":") {
			b += ":" + usual[s.proto]
		}
		out[w.addrPort(b, f)] = false
	}
	return out
}

// addrPort resolves "name:port".
func (w *topology) addrPort(s string, f family) netip.AddrPort {
	name, port, _ := strings.Cut(s, ":")
	var p uint16
	if _, err := fmt.Sscan(port, &p); err != nil {
		panic("drivertest: no port in " + s)
	}
	return netip.AddrPortFrom(w.addr(name, f), p)
}
