// Package probe sends requests through every service of a lab, from pods, nodes and the outside,
// and compares the outcome with the expected one.
//
// The expected outcome is derived only from the plan (Tries), by the rules of a Kubernetes service
// proxy and of network policies; it does not depend on the program under test.
package probe

import (
	"net/netip"
)

// Kind is the kind of a service's frontend.
type Kind string

// These are the kinds of frontends.
const (
	ClusterIP    Kind = "ClusterIP"
	NodePort     Kind = "NodePort"
	LoadBalancer Kind = "LoadBalancer"
	ExternalIP   Kind = "ExternalIP"
	HealthCheck  Kind = "HealthCheck" // a healthCheckNodePort, which the node itself answers
)

// From is the kind of a source.
type From string

// These are the kinds of sources.
const (
	FromPod     From = "pod"
	FromNode    From = "node"
	FromOutside From = "outside"
)

// Source is a place from which requests come.
type Source struct {
	Kind  From
	Name  string
	Node  string       // the node it is on; empty for the outside
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
	Node     string // the node where outside traffic arrives; empty for a ClusterIP
}

// Fate is the outcome of a request.
type Fate string

// These are the fates of requests.
const (
	Answered Fate = "answered"
	Refused  Fate = "refused" // at once
	Dropped  Fate = "dropped"
	Partly   Fate = "partly"   // answered by some endpoints, dropped on the way to the others
	Differs  Fate = "differs"  // answered or dropped: a proxy other than Sluice is known to do less here
	Unknown  Fate = "unjudged" // cannot be derived from the plan

	// These are for health checks: HTTP status 200, and 503.
	Healthy   Fate = "healthy"
	Unhealthy Fate = "unhealthy"
)

// Expect is the expected outcome of requests.
type Expect struct {
	Fate   Fate
	Why    string          // for all but Answered
	By     map[string]bool // the pods that may answer, as "namespace/name"
	Keep   bool            // the pod sees the client's own address, unless it is the client
	Sticky bool            // one source is always answered by the same pod
	Own    bool            // all endpoints are pods of the source's own workload
}

// Try is a source, a frontend, and the expected outcome.
type Try struct {
	Source
	Frontend
	Expect
}

// Silent is a service, or a port of one, to which nothing is sent, and the reason.
type Silent struct {
	Service string `json:"service"` // "namespace/name", with the port if it is only that port
	Why     string `json:"why"`
}
