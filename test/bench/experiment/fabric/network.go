// Package fabric measures the pod network between nodes: bandwidth and response times in each mode,
// the CNI plugin, and the time that a cluster's routes take.
package fabric

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/accelerate/established"
	"sluice.dev/sluice/internal/pods/attach"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/sluiceagent"
	"sluice.dev/sluice/test/netns"
)

//go:embed app.yaml
var app embed.FS

// The programs that make a network.
const (
	sluice      = "sluice"
	accelerated = "sluice, established"
	byHand      = "by hand"
)

// kind is what makes a network, and in which mode.
type kind struct {
	by   string
	mode plan.Fabric
}

func (k kind) String() string { return k.by + ", " + string(k.mode) }

// kinds are the networks that this kernel can have.
func kinds(r *harness.Run, modes ...plan.Fabric) (all []kind) {
	for _, mode := range modes {
		if mode == plan.IPIP {
			if err := canIPIP(r.NextPrefix()); err != nil {
				r.Skip("IPIP: this kernel has none (%s)", err)
				continue
			}
		}
		all = append(all, kind{sluice, mode}, kind{accelerated, mode}, kind{byHand, mode})
	}
	return all
}

func canIPIP(name string) error {
	ns, err := netns.New(name)
	if err != nil {
		return err
	}
	err = ns.LinkAdd(&netlink.Iptun{LinkAttrs: netlink.LinkAttrs{Name: "tunnel"}, Local: net.IPv4(192, 0, 2, 1)})
	return errors.Join(err, ns.Delete())
}

// network is a lab of two nodes, with a pod on each: a client and a server. A service leads to the
// server.
type network struct {
	kind
	lab                       *lab.Lab
	node1, node2              *netns.NS
	client, server, outside   *netns.NS
	node2Addr, serverAddr     netip.Addr
	clusterAddr, externalAddr netip.Addr
}

// newNetwork brings up a network. Close it.
func newNetwork(ctx context.Context, r *harness.Run, k kind) (n *network, err error) {
	objects, err := plan.ReadFS(app)
	if err != nil {
		return nil, err
	}
	exe, err := harness.LabProgram()
	if err != nil {
		return nil, err
	}
	r.Testbeds++
	cfg := lab.Config{
		Name: fmt.Sprintf("bench%dx%d", os.Getpid(), r.Testbeds), Nodes: 2, Objects: objects, Executable: exe, Sluice: r.Binary, Transient: true,
	}
	if k.by != byHand {
		cfg.Agent, cfg.Fabric = sluiceagent.New(), k.mode
	}
	if k.by == accelerated {
		cfg.AgentFlags = []string{"--accelerate=" + established.Name}
	}
	n = &network{kind: k}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if n.lab, err = lab.Up(ctx, cfg); err != nil {
		return n, err
	}
	if err := n.open(); err != nil {
		return n, err
	}
	if k.by == byHand {
		return n, n.setUpByHand()
	}
	return n, nil
}

func (n *network) open() error {
	c := n.lab.Cluster
	for _, p := range []struct {
		ns   **netns.NS
		name string
	}{
		{&n.node1, n.lab.NodeNS("node1")}, {&n.node2, n.lab.NodeNS("node2")}, {&n.outside, n.lab.NodeNS(plan.Outside)},
		{&n.client, n.podNS("client")}, {&n.server, n.podNS("server")},
	} {
		ns, err := netns.Open(p.name)
		if err != nil {
			return err
		}
		*p.ns = ns
	}
	n.node2Addr, n.serverAddr = c.Node("node2").IPs[0], plan.Addrs(n.pod("server"))[0]
	n.clusterAddr, n.externalAddr = plan.ClusterIPs(c.Services[0])[0], plan.IngressIPs(c.Services[0])[0]
	return nil
}

func (n *network) pod(name string) *corev1.Pod {
	for _, p := range n.lab.Cluster.Pods {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func (n *network) podNS(name string) string { return n.lab.PodNS(n.pod(name)) }

// Close takes the network down.
func (n *network) Close() error {
	var errs []error
	for _, ns := range []*netns.NS{n.node1, n.node2, n.client, n.server, n.outside} {
		if ns != nil {
			errs = append(errs, ns.Close())
		}
	}
	if n.lab != nil {
		errs = append(errs, n.lab.Down())
	}
	return errors.Join(errs...)
}

// setUpByHand changes the lab's routes from node to node, which are native, to a tunnel: one of
// VXLAN as flannel makes it, or of IPIP.
func (n *network) setUpByHand() error {
	nodes := []*netns.NS{n.node1, n.node2}
	device, mtu := "flannel.1", 1450
	if n.mode == plan.IPIP {
		device, mtu = "tunnel", 1480
	}
	var macs [2]string
	for i, ns := range nodes {
		own := n.lab.Cluster.Nodes[i]
		switch n.mode {
		case plan.VXLAN:
			if err := commands(ns, "ip link add "+device+" type vxlan id 1 dstport 8472 nolearning local "+own.IPs[0].String()); err != nil {
				return err
			}
		case plan.IPIP:
			if err := commands(ns, "ip link add "+device+" type ipip local "+own.IPs[0].String()); err != nil {
				return err
			}
		default:
			return nil
		}
		err := commands(ns, fmt.Sprintf("ip address add %s/32 dev %s", own.PodCIDRs[0].Addr(), device), fmt.Sprintf("ip link set %s mtu %d up", device, mtu))
		if err != nil {
			return err
		}
		link, err := ns.LinkByName(device)
		if err != nil {
			return err
		}
		macs[i] = link.Attrs().HardwareAddr.String()
	}
	for i, ns := range nodes {
		other := n.lab.Cluster.Nodes[1-i]
		route := fmt.Sprintf("ip route replace %s via %s dev %s onlink", other.PodCIDRs[0], other.IPs[0], device)
		if n.mode == plan.VXLAN {
			gateway := other.PodCIDRs[0].Addr().String()
			route = fmt.Sprintf("ip route replace %s via %s dev %s onlink", other.PodCIDRs[0], gateway, device)
			err := commands(ns, fmt.Sprintf("ip neighbour replace %s lladdr %s dev %s nud permanent", gateway, macs[1-i], device),
				fmt.Sprintf("bridge fdb append %s dev %s dst %s", macs[1-i], device, other.IPs[0]))
			if err != nil {
				return err
			}
		}
		if err := commands(ns, route); err != nil {
			return err
		}
	}
	for _, pod := range []*netns.NS{n.client, n.server} {
		if err := commands(pod, fmt.Sprintf("ip link set %s mtu %d", attach.Interface, mtu)); err != nil {
			return err
		}
	}
	return nil
}

func commands(ns *netns.NS, lines ...string) error {
	for _, line := range lines {
		words := strings.Fields(line)
		if _, err := ns.Run(words[0], words[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// inTurns brings up networks of all kinds and measures each once a round.
func inTurns(ctx context.Context, r *harness.Run, kinds []kind, measure func(context.Context, *harness.Run, *network) error) (err error) {
	var networks []*network
	defer func() {
		for _, n := range networks {
			err = errors.Join(err, n.Close())
		}
	}()
	for _, k := range kinds {
		n, err := newNetwork(ctx, r, k)
		if err != nil {
			return fmt.Errorf("set up %s: %w", k, err)
		}
		networks = append(networks, n)
	}
	for round := range r.Options.Rounds {
		for _, n := range networks {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.Logf("round %d of %d: %s", round+1, r.Options.Rounds, n.kind)
			if err := measure(ctx, r, n); err != nil {
				return fmt.Errorf("measure %s: %w", n.kind, err)
			}
		}
	}
	return nil
}
