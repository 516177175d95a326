package peer

import (
	"cmp"
	"context"
	"fmt"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/netns"
)

// Nth is iptables-legacy as a balancer by hand: for each service a rule that leads to its chain,
// and there one for each backend, which match in turns (-m statistic --mode nth).
type Nth struct {
	Masquerade bool   // backends see the node's address
	Protocol   string // "": tcp
}

// Name implements Dataplane.
func (n Nth) Name() string {
	if n.Masquerade {
		return "iptables SNAT"
	}
	return "iptables DNAT"
}

// Limit implements Dataplane.
func (Nth) Limit() (int, string) { return 20_000, "every new connection walks all of them" }

// NodePorts implements Dataplane.
func (Nth) NodePorts() bool { return false }

// Target implements Dataplane.
func (Nth) Target(_ cluster.Cluster, first, count int) inject.Target { return services(first, count) }

// Load implements Dataplane.
func (n Nth) Load(ctx context.Context, node *netns.NS, c cluster.Cluster) (*Loaded, error) {
	if err := need("iptables-legacy-restore", "iptables"); err != nil {
		return nil, err
	}
	s, err := newScript()
	if err != nil {
		return nil, err
	}
	s.add("*nat")
	for i := range c.Services {
		s.add(":FARM-%d - [0:0]", i)
	}
	protocol := cmp.Or(n.Protocol, "tcp")
	for i := range c.Services {
		s.add("-A PREROUTING -d %s/32 -p %s --dport %d -j FARM-%d", cluster.ServiceAddr(i), protocol, cluster.ServicePort, i)
		for j := range c.Endpoints {
			turn := ""
			if left := c.Endpoints - j; left > 1 {
				turn = fmt.Sprintf(" -m statistic --mode nth --every %d --packet 0", left)
			}
			s.add("-A FARM-%d -p %s%s -j DNAT --to-destination %s", i, protocol, turn, c.Endpoint(i, j))
		}
	}
	if n.Masquerade {
		s.add("-A POSTROUTING -m conntrack --ctstate DNAT -j MASQUERADE")
	}
	s.add("COMMIT")
	took, err := s.run(ctx, node, "iptables-legacy-restore", "-w", "--noflush")
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", n.Name(), err)
	}
	return loaded(took, "iptables-restore"), nil
}
