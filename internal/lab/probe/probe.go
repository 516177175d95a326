// Package probe sends requests through every service of a lab, from pods, nodes and the outside,
// and compares what becomes of them with what should.
//
// What should is worked out from the plan alone (Tries), by the rules of a Kubernetes service proxy
// and of network policies; nothing of the program under test is asked.
package probe

import (
	"net/netip"
)

// Kind is the kind of a service's frontend.
type Kind string

// The kinds of frontends.
const (
	ClusterIP    Kind = "ClusterIP"
	NodePort     Kind = "NodePort"
	LoadBalancer Kind = "LoadBalancer"
	ExternalIP   Kind = "ExternalIP"
	HealthCheck  Kind = "HealthCheck" // a healthCheckNodePort, which the node itself answers
)

// From is the kind of a source.
type From string

// The kinds of sources.
const (
	FromPod     From = "pod"
	FromNode    From = "node"
	FromOutside From = "outside"
)

// Source is somewhere that requests come from.
type Source struct {
	Kind  From
	Name  string
	Node  string       // where it is; empty for the outside
	Of    string       // a pod's workload, "namespace/name"
	NetNS string       // its named network namespace
	Addrs []netip.Addr // its own addresses
}

// Frontend is one address and port of a service.
type Frontend struct {
	Service  string // "namespace/name"
	Kind     Kind
	Protocol string // TCP or UDP
	To       netip.AddrPort
	Node     string // the node that outside traffic arrives at; empty for a ClusterIP
}

// Fate is what becomes of a request.
type Fate string

// The fates of requests.
const (
	Answered Fate = "answered"
	Refused  Fate = "refused" // at once
	Dropped  Fate = "dropped"
	Partly   Fate = "partly"   // answered by some endpoints, dropped on the way to the others
	Differs  Fate = "differs"  // answered or dropped: another proxy than Sluice is known to do less here
	Unjudged Fate = "unjudged" // the plan cannot tell

	// Of a health check: HTTP status 200, and 503.
	Healthy   Fate = "healthy"
	Unhealthy Fate = "unhealthy"
)

// Expect is what should become of requests.
type Expect struct {
	Fate   Fate
	Why    string          // for all but Answered
	By     map[string]bool // the pods that may answer, as "namespace/name"
	Keep   bool            // the pod sees the client's own address, unless it asked itself
	Sticky bool            // one source is always answered by the same pod
	Own    bool            // all endpoints are pods of the source's own workload
}

// Try is a source, a frontend, and what to expect.
type Try struct {
	Source
	Frontend
	Expect
}

// Silent is a service, or a port of one, that is not sent anything, and why.
type Silent struct {
	Service string `json:"service"` // "namespace/name", with the port if it is only that
	Why     string `json:"why"`
}
