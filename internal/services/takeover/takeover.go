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

// Claim is an address and port that kube-proxy serves.
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

// NodePort reports whether the claim is for every address of the node.
func (c Frontend) NodePort() bool { return c.Key.Addr.IsUnspecified() }

func (c Frontend) String() string {
	where := c.Key.String()
	if c.NodePort() {
		where = c.Key.Protocol.String() + " node port " + netip.AddrPortFrom(c.Key.Addr, c.Key.Port).String()
	}
	if c.Service == "" {
		return where
	}
	return where + " (" + c.Service + ")"
}

// footprint is what kube-proxy has programmed in one place of the kernel.
type footprint struct {
	what   string     // the place, and what is there
	claims []Frontend // what kube-proxy serves by it, in any order, perhaps repeated
	losses []string   // the packets that only kube-proxy's rules accept: once these are gone, nobody does
	notes  []string   // what else a user should know before it is removed, and what of it will stay and why
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
	var parts []footprint
	for _, look := range []func(context.Context) ([]footprint, error){findLegacy, findNftables, findIPVS} {
		found, err := look(ctx)
		if err != nil {
			return nil, err
		}
		parts = append(parts, found...)
	}
	return parts, nil
}

// Served returns what kube-proxy has programmed in the calling thread's network namespace, sorted.
func Served(ctx context.Context) ([]Frontend, error) {
	parts, err := find(ctx)
	if err != nil {
		return nil, err
	}
	return claimsOf(parts), nil
}

// placed are the claims with node ports where they are, if addresses were chosen for them.
func placed(claims []Frontend, chosen bool, at []netip.Addr) []Frontend {
	if !chosen {
		return claims
	}
	var all []Frontend
	for _, c := range claims {
		if !c.NodePort() {
			all = append(all, c)
			continue
		}
		for _, c.Key.Addr = range at {
			all = append(all, c)
		}
	}
	return all
}

// claimsOf are the claims of all parts, each key once, sorted. A key that one part serves is
// served.
func claimsOf(parts []footprint) []Frontend {
	byKey := map[state.FrontendKey]Frontend{}
	for _, p := range parts {
		for _, c := range p.claims {
			old := byKey[c.Key]
			c.Service = cmp.Or(old.Service, c.Service)
			c.Served = c.Served || old.Served
			c.Loopback = c.Loopback || old.Loopback
			byKey[c.Key] = c
		}
	}
	return slices.SortedFunc(maps.Values(byKey), func(a, b Frontend) int { return a.Key.Compare(b.Key) })
}
