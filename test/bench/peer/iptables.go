package peer

import (
	"context"
	"fmt"
	"strings"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/netns"
)

// KubeIptables is the shape of kube-proxy's iptables mode: one chain that lists all services, a
// chain for each service that picks an endpoint at random with the statistic match, and a chain for
// each endpoint. A mark asks for masquerading.
type KubeIptables struct{}

// Name implements Dataplane.
func (KubeIptables) Name() string { return "kube-proxy iptables" }

// Limit implements Dataplane.
func (KubeIptables) Limit() (int, string) {
	return 10_000, "loading and walking more takes minutes"
}

// NodePorts implements Dataplane.
func (KubeIptables) NodePorts() bool { return true }

// Target implements Dataplane.
func (KubeIptables) Target(_ cluster.Cluster, first, count int) inject.Target {
	return services(first, count)
}

// Load implements Dataplane.
func (KubeIptables) Load(ctx context.Context, node *netns.NS, c cluster.Cluster) (*Loaded, error) {
	if err := need("iptables-legacy-restore", "iptables"); err != nil {
		return nil, err
	}
	s, err := newScript()
	if err != nil {
		return nil, err
	}
	iptablesFilter(s)
	iptablesNat(s, c)
	took, err := s.run(ctx, node, "iptables-legacy-restore", "-w", "--noflush")
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", KubeIptables{}.Name(), err)
	}
	return loaded(took, "iptables-restore"), nil
}

// iptablesFilter is the constant part that all forwarded packets pass.
func iptablesFilter(s *script) {
	s.add("*filter")
	for _, chain := range []string{"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL"} {
		s.add(":%s - [0:0]", chain)
	}
	s.add("-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL")
	s.add("-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES")
	s.add("-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL")
	s.add("-A FORWARD -j KUBE-FORWARD")
	s.add("-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES")
	s.add("-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES")
	s.add("-A OUTPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL")
	s.add("-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES")
	s.add("-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP")
	s.add("-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT")
	s.add("-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	s.add("COMMIT")
}

func iptablesNat(s *script, c cluster.Cluster) {
	s.add("*nat")
	for _, chain := range []string{"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"} {
		s.add(":%s - [0:0]", chain)
	}
	for i := range c.Services {
		s.add(":KUBE-SVC-%d - [0:0]", i)
		for j := range c.Endpoints {
			s.add(":KUBE-SEP-%d-%d - [0:0]", i, j)
		}
	}
	s.add("-A PREROUTING -j KUBE-SERVICES")
	s.add("-A OUTPUT -j KUBE-SERVICES")
	s.add("-A POSTROUTING -j KUBE-POSTROUTING")
	s.add("-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000")
	s.add("-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN")
	s.add("-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000")
	s.add("-A KUBE-POSTROUTING -j MASQUERADE --random-fully")
	for i := range c.Services {
		iptablesService(s, c, i)
	}
	if c.NodePort != 0 {
		last := c.Services - 1
		s.add(":KUBE-EXT-%d - [0:0]", last)
		s.add("-A KUBE-EXT-%d -j KUBE-MARK-MASQ", last)
		s.add("-A KUBE-EXT-%d -j KUBE-SVC-%d", last, last)
		s.add("-A KUBE-NODEPORTS -p tcp -m tcp --dport %d -j KUBE-EXT-%d", c.NodePort, last)
	}
	// NodePorts come after all cluster addresses, as in kube-proxy.
	s.add("-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS")
	s.add("COMMIT")
}

func iptablesService(s *script, c cluster.Cluster, i int) {
	vip, proto := cluster.ServiceAddr(i), strings.ToLower(c.Transport().String())
	s.add(`-A KUBE-SERVICES -d %s/32 -p %s -m comment --comment "%s cluster IP" -m %[2]s --dport %[4]d -j KUBE-SVC-%[5]d`,
		vip, proto, cluster.ServiceName(i), cluster.ServicePort, i)
	s.add("-A KUBE-SVC-%d ! -s %s -d %s/32 -p %s -m %[4]s --dport %[5]d -j KUBE-MARK-MASQ", i, pods, vip, proto, cluster.ServicePort)
	for j := range c.Endpoints {
		ep := c.Endpoint(i, j)
		choice := ""
		if left := c.Endpoints - j; left > 1 {
			choice = fmt.Sprintf(" -m statistic --mode random --probability %.10f", 1/float64(left))
		}
		s.add(`-A KUBE-SVC-%d -m comment --comment "%s -> %s"%s -j KUBE-SEP-%d-%d`, i, cluster.ServiceName(i), ep, choice, i, j)
		s.add("-A KUBE-SEP-%d-%d -s %s/32 -j KUBE-MARK-MASQ", i, j, ep.Addr())
		s.add("-A KUBE-SEP-%d-%d -p %s -m %[3]s -j DNAT --to-destination %[4]s", i, j, proto, ep)
	}
}
