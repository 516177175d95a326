// Package takeover moves a node's services from kube-proxy to this project's agent, and back,
// without breaking a connection: it finds what kube-proxy has programmed in this network namespace
// (in any of its modes), compares it with what the agent has, finds the process that is to stop,
// and removes its rules.
//
// While both programs' rules are in the kernel each connection is translated once. The first chain
// of the nat hooks to translate a connection settles it, and of chains of one priority the kernel
// calls the newest first: each new connection is translated once, by the one or the other, and its
// later packets by connection tracking alone, whichever rules are left. The rules of kube-proxy
// that drop and refuse look for addresses of services, which a translated packet no longer has. A
// chain FORWARD of iptables that refuses unknown packets does harm: kube-proxy accepts packets
// there by a mark that only its own connections carry. losses reports it before the agent starts.
package takeover

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/state"
)

// Frontend is an address and port that kube-proxy serves.
type Frontend struct {
	// Key's address is the unspecified one of its family (0.0.0.0 or ::) where every address of the
	// node is meant: for NodePorts.
	Key     state.FrontendKey
	Service string // as kube-proxy's comments name it, "namespace/name:port"; it may be empty
	Served  bool   // there are endpoints: new connections are not just refused or dropped
	// Loopback: where the kernel lets it (net.ipv4.conf.all.route_localnet), 127.0.0.1 is among a
	// node port's addresses.
	Loopback bool
}

// NodePort reports whether the frontend is for every address of the node.
func (f Frontend) NodePort() bool { return f.Key.Addr.IsUnspecified() }

func (f Frontend) String() string {
	where := f.Key.String()
	if f.NodePort() {
		where = f.Key.Protocol.String() + " node port " + netip.AddrPortFrom(f.Key.Addr, f.Key.Port).String()
	}
	if f.Service == "" {
		return where
	}
	return where + " (" + f.Service + ")"
}

// footprint is what kube-proxy has programmed in one place of the kernel.
type footprint struct {
	what      string     // the table or device, and what is there
	frontends []Frontend // what kube-proxy serves by it, in any order, perhaps repeated
	losses    []string   // the packets that only kube-proxy's rules accept: once these are gone, nobody does
	notes     []string   // what else a user should know before it is removed, and what of it will stay and why
	// remove removes it in an order that breaks no connection.
	remove func(ctx context.Context, d drain) error
}

// drain says how long to wait for connections to end, and where to report it.
type drain struct {
	limit time.Duration
	say   func(format string, args ...any)
}

// find returns what kube-proxy has programmed in the calling thread's network namespace, in the
// order in which it is to be removed.
func find(ctx context.Context) ([]footprint, error) {
	var footprints []footprint
	for _, look := range []func(context.Context) ([]footprint, error){findLegacy, findNftables, findIPVS} {
		found, err := look(ctx)
		if err != nil {
			return nil, err
		}
		footprints = append(footprints, found...)
	}
	return footprints, nil
}

// Served returns what kube-proxy has programmed in the calling thread's network namespace, sorted.
func Served(ctx context.Context) ([]Frontend, error) {
	footprints, err := find(ctx)
	if err != nil {
		return nil, err
	}
	return frontendsOf(footprints), nil
}

// placed returns the frontends, with a node port at each of the addresses that were chosen for node
// ports, if any were.
func placed(frontends []Frontend, chosen bool, at []netip.Addr) []Frontend {
	if !chosen {
		return frontends
	}
	var all []Frontend
	for _, f := range frontends {
		if !f.NodePort() {
			all = append(all, f)
			continue
		}
		for _, f.Key.Addr = range at {
			all = append(all, f)
		}
	}
	return all
}

// frontendsOf returns the frontends of all footprints, each key once, sorted. A key that one
// footprint serves is served.
func frontendsOf(footprints []footprint) []Frontend {
	byKey := map[state.FrontendKey]Frontend{}
	for _, fp := range footprints {
		for _, f := range fp.frontends {
			old := byKey[f.Key]
			f.Service = cmp.Or(old.Service, f.Service)
			f.Served = f.Served || old.Served
			f.Loopback = f.Loopback || old.Loopback
			byKey[f.Key] = f
		}
	}
	return slices.SortedFunc(maps.Values(byKey), func(a, b Frontend) int { return a.Key.Compare(b.Key) })
}
