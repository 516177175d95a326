package peer

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/netns"
)

// KubeNftables is the shape of kube-proxy's nftables mode: one map from addresses to chains, a
// chain for each service that picks an endpoint at random through an anonymous map, and a chain for
// each endpoint. A mark asks for masquerading.
type KubeNftables struct{}

// Name implements Dataplane.
func (KubeNftables) Name() string { return "kube-proxy nftables" }

// Limit implements Dataplane.
func (KubeNftables) Limit() (int, string) {
	return 10_000, "loading time grows with the square"
}

// NodePorts implements Dataplane.
func (KubeNftables) NodePorts() bool { return true }

// Target implements Dataplane.
func (KubeNftables) Target(_ cluster.Cluster, first, count int) inject.Target {
	return services(first, count)
}

// Load implements Dataplane.
func (KubeNftables) Load(ctx context.Context, node *netns.NS, c cluster.Cluster) (*Loaded, error) {
	if err := need("nft", "nftables"); err != nil {
		return nil, err
	}
	var took time.Duration
	for first := 0; first < c.Services; first += nftablesBatch {
		t, err := nftablesServices(ctx, node, c, first, min(first+nftablesBatch, c.Services))
		if err != nil {
			return nil, fmt.Errorf("load %s: %w", KubeNftables{}.Name(), err)
		}
		took += t
	}
	return loaded(took, fmt.Sprintf("nft -f, %d services a transaction", nftablesBatch)), nil
}

// nftablesBatch is the number of services that are loaded in one transaction. All at once would be
// unfair: the kernel searches the whole transaction for each anonymous map, so that 10,000 services
// would take ten times as long.
const nftablesBatch = 1000

// nftablesServices loads the services from first to before end.
func nftablesServices(ctx context.Context, node *netns.NS, c cluster.Cluster, first, end int) (time.Duration, error) {
	s, err := newScript()
	if err != nil {
		return 0, err
	}
	s.add("table ip kube-proxy {")
	if first == 0 {
		s.add("chain mark-for-masquerade { meta mark set meta mark | 0x4000; }")
	}
	for i := first; i < end; i++ {
		nftablesService(s, c, i)
	}
	nftablesMaps(s, c, first, end)
	if first == 0 {
		s.add(strings.ReplaceAll(nftablesChains, "%", "%%"))
	}
	s.add("}")
	return s.run(ctx, node, "nft", "-f", "-")
}

func nftablesService(s *script, c cluster.Cluster, i int) {
	var choices []string
	for j := range c.Endpoints {
		ep := c.Endpoint(i, j)
		s.add("chain endpoint-%d-%d {", i, j)
		s.add("ip saddr %s jump mark-for-masquerade", ep.Addr())
		s.add("meta l4proto tcp dnat to %s", ep)
		s.add("}")
		choices = append(choices, fmt.Sprintf("%d : goto endpoint-%d-%d", j, i, j))
	}
	s.add("chain service-%d {", i)
	s.add("ip daddr %s tcp dport %d ip saddr != %s jump mark-for-masquerade", cluster.ServiceAddr(i), cluster.ServicePort, pods)
	s.add("numgen random mod %d vmap { %s }", c.Endpoints, strings.Join(choices, ", "))
	s.add("}")
	if i == c.Services-1 {
		s.add("chain external-%d {", i)
		s.add("jump mark-for-masquerade")
		s.add("goto service-%d", i)
		s.add("}")
	}
}

// nftablesMaps are the maps, with the elements of the services.
func nftablesMaps(s *script, c cluster.Cluster, first, end int) {
	s.add("set cluster-ips { type ipv4_addr; elements = {")
	for i := first; i < end; i++ {
		s.add("%s,", cluster.ServiceAddr(i))
	}
	s.add("} }")
	s.add("set nodeport-ips { type ipv4_addr; elements = { 172.16.0.1, 172.16.1.1 } }")
	s.add("map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }")
	s.add("map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }")
	s.add("map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }")
	s.add("map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = {")
	for i := first; i < end; i++ {
		s.add(`%s . tcp . %d comment "%s" : goto service-%d,`, cluster.ServiceAddr(i), cluster.ServicePort, cluster.ServiceName(i), i)
	}
	s.add("} }")
	s.add("map service-nodeports { type inet_proto . inet_service : verdict;")
	if c.NodePort != 0 && end == c.Services {
		s.add("elements = { tcp . %d : goto external-%d }", c.NodePort, c.Services-1)
	}
	s.add("}")
}

const nftablesChains = `
chain masquerading {
	meta mark & 0x4000 == 0 return
	meta mark set meta mark ^ 0x4000
	masquerade fully-random
}
chain services {
	ip daddr . meta l4proto . th dport vmap @service-ips
	ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
}
chain service-endpoints-check {
	ip daddr . meta l4proto . th dport vmap @no-endpoint-services
}
chain nodeport-endpoints-check {
	ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
}
chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
chain cluster-ips-check { ip daddr @cluster-ips reject; }
chain filter-prerouting { type filter hook prerouting priority -110; ct state new jump firewall-check; }
chain filter-input {
	type filter hook input priority -110
	ct state new jump nodeport-endpoints-check
	ct state new jump service-endpoints-check
}
chain filter-forward { type filter hook forward priority -110; ct state new jump service-endpoints-check; }
chain filter-forward-late { type filter hook forward priority 0; ct state new jump cluster-ips-check; }
chain filter-output {
	type filter hook output priority -110
	ct state new jump service-endpoints-check
	ct state new jump firewall-check
}
chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
chain nat-output { type nat hook output priority -100; jump services; }
chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
`
