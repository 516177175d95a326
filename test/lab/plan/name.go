package plan

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Domain is the cluster's DNS domain.
const Domain = "cluster.local"

// Hosts is the text of an /etc/hosts file for a pod of the given namespace: every Service as svc
// (in its own namespace), svc.ns, svc.ns.svc and svc.ns.svc.cluster.local, a headless one with its
// endpoints' addresses; pods with a subdomain under their Service; nodes and the outside host.
func (c *Cluster) Hosts(namespace string) string {
	var b strings.Builder
	line := func(a netip.Addr, names ...string) { fmt.Fprintf(&b, "%s\t%s\n", a, strings.Join(names, " ")) }
	line(netip.MustParseAddr("127.0.0.1"), "localhost")
	line(netip.IPv6Loopback(), "localhost", "ip6-localhost", "ip6-loopback")
	for _, svc := range c.Services {
		for _, a := range ClusterIPs(svc) {
			line(a, serviceNames(svc, "", namespace)...)
		}
		if Headless(svc) {
			c.headlessNames(svc, namespace, line)
		}
	}
	for _, n := range c.Nodes {
		for _, a := range n.IPs {
			line(a, n.Name)
		}
	}
	for _, a := range c.OutsideIPs {
		line(a, Outside)
	}
	return b.String()
}

// headlessNames writes the names of a headless Service, as in DNS: its ready endpoints, each also
// under its own name.
func (c *Cluster) headlessNames(svc *corev1.Service, namespace string, line func(netip.Addr, ...string)) {
	for _, s := range c.SlicesOf(svc) {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, a := range parse(e.Addresses) {
				names := serviceNames(svc, "", namespace)
				if e.Hostname != nil {
					names = append(names, serviceNames(svc, *e.Hostname+".", namespace)...)
				}
				line(a, names...)
			}
		}
	}
}

// serviceNames lists a Service's names, the longest first, each with a prefix.
func serviceNames(svc *corev1.Service, prefix, from string) []string {
	name := prefix + svc.Name + "." + svc.Namespace
	names := []string{name + ".svc." + Domain, name + ".svc", name}
	if svc.Namespace == from {
		names = append(names, prefix+svc.Name)
	}
	return names
}
