// Package echo is the application that every pod of a lab runs: a server that answers each request
// with its pod and the client address that it saw, on TCP (HTTP, or a line of text) and UDP, and
// its client. One server process serves all pods of a node, through sockets that it opens in their
// namespaces.
package echo

import (
	"net/netip"
)

// Answer is what a pod says to any request.
type Answer struct {
	Pod       string         `json:"pod"`
	Namespace string         `json:"namespace"`
	Node      string         `json:"node"`
	Protocol  string         `json:"protocol"` // TCP or UDP
	Port      uint16         `json:"port"`     // of the pod
	Client    netip.AddrPort `json:"client"`   // as the pod sees it
}

// Pod is a pod to serve, or one container of it.
type Pod struct {
	Namespace string
	Name      string
	Container string // distinguishes what is served of one pod; empty if it is everything
	Node      string
	NetNS     string       // the named network namespace to listen in; "": that of the process
	Addrs     []netip.Addr // to listen on for UDP, whose answers must come from the requested address
	Ports     []Port
}

// Port is a port to listen on.
type Port struct {
	Protocol string // TCP or UDP
	Port     uint16
}
