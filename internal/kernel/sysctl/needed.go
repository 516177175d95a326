package sysctl

import (
	"errors"
	"fmt"
	"os"

	"sluice.dev/sluice/internal/kernel/link"
)

// The parameters that let a node forward packets between its pods and its network.
const (
	Forward4 = "net.ipv4.ip_forward"
	Forward6 = "net.ipv6.conf.all.forwarding"
)

// CountPackets has the packets and bytes of each connection counted that begins from then on.
const CountPackets = "net.netfilter.nf_conntrack_acct"

// AnyWindow has connection tracking take segments of TCP whatever their numbers, and AnyReset
// resets.
const (
	AnyWindow = "net.netfilter.nf_conntrack_tcp_be_liberal"
	AnyReset  = "net.netfilter.nf_conntrack_tcp_ignore_invalid_rst"
)

// TrackedBuckets is the size of the hash table of connections. The kernel has it set from the
// machine's first network namespace alone.
const TrackedBuckets = "net.netfilter.nf_conntrack_buckets"

// Needed returns the parameters that a node needs for the families it uses,
// judged by the calling thread's network namespace, for use with Set.
//
// IPv6 forwarding is left out, and the error says what to do, where turning it on would
// remove the node's default route: the kernel forgets routes learnt by router
// advertisement on interfaces whose accept_ra is 1. The map is valid also then.
func Needed(ipv4, ipv6 bool) (map[string]string, error) {
	want := map[string]string{}
	if ipv4 {
		want[Forward4] = "1"
	}
	if !ipv6 {
		return want, nil
	}
	now, err := Read(Forward6)
	if errors.Is(err, os.ErrNotExist) {
		return want, fmt.Errorf("IPv6 is in use, but this kernel has it disabled: enable it (ipv6.disable=0) or leave IPv6 out of the cluster: %w", err)
	}
	if err != nil {
		return want, err
	}
	if now == "0" {
		lost, err := LostByForwarding()
		if err != nil {
			return want, err
		}
		if len(lost) > 0 {
			return want, fmt.Errorf("leave %s off: it would remove the default route that %s learnt by router advertisement; set net.ipv6.conf.%s.accept_ra=2 first, then %s=1",
				Forward6, lost[0], Interface(lost[0]), Forward6)
		}
	}
	want[Forward6] = "1"
	return want, nil
}

// LostByForwarding names the interfaces whose IPv6 default route the kernel would
// forget if forwarding were turned on: it was learnt by router advertisement and
// the interface's accept_ra is 1. (With 2 the kernel keeps it; with 0 a daemon looks
// after the route.)
func LostByForwarding() ([]string, error) {
	routes, err := link.Here.DefaultRoutes()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range routes {
		if !r.Advertised {
			continue
		}
		accept, err := Read("net.ipv6.conf." + Interface(r.Device) + ".accept_ra")
		if err != nil {
			return nil, err
		}
		if accept == "1" {
			names = append(names, r.Device)
		}
	}
	return names, nil
}
