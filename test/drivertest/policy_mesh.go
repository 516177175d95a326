package drivertest

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/netns"
)

// A Mesh is a node with pods. Each pod is behind an interface of its own, with a host route to each
// of its addresses, and has a probe that sends and receives first packets of connections. A second
// host, the wire, stands for the world outside.
type Mesh struct {
	Node *netns.NS

	topology *topology
	probes   map[netip.Addr]*probe // by address
	sentinel sentinel
	port     uint16 // source port of the last round
}

// Outside are the addresses of the host outside, by family.
var Outside = [2]netip.Addr{netip.MustParseAddr("192.168.3.1"), netip.MustParseAddr("fd00:192:168:3::1")}

// NewMesh builds the node, with an address in each family, and its pods. Names of pods must be
// short, as their interfaces are named after them. Everything is removed when the test ends.
func NewMesh(t testing.TB, node [2]netip.Addr, pods map[string][2]netip.Addr) *Mesh {
	t.Helper()
	w := &topology{hosts: map[string]*host{}, addrs: map[string]dual{}, owner: map[netip.Addr]*host{}}
	m := &Mesh{topology: w, probes: map[netip.Addr]*probe{}, port: 20000}
	if err := m.build(t, dual(node), pods); err != nil {
		t.Fatalf("build the mesh: %v", err)
	}
	t.Cleanup(m.close)
	if err := m.arm(); err != nil {
		t.Fatalf("open the probes: %v", err)
	}
	return m
}

func (m *Mesh) build(t testing.TB, node dual, pods map[string][2]netip.Addr) error {
	if _, err := m.topology.host(t, "wire", "", true); err != nil {
		return err
	}
	if err := m.join(t, "node", "wire", node, slices.Concat(nodePodCIDRs, serviceCIDRs, externalCIDRs)); err != nil {
		return err
	}
	if err := m.join(t, "outside", "wire", dual(Outside), nil); err != nil {
		return err
	}
	m.Node = m.topology.hosts["node"].ns
	// Under emulation, or on a busy machine, an answer may take longer than the seconds that
	// connection tracking gives it.
	for _, timeout := range []string{"sctp_timeout_closed", "sctp_timeout_cookie_wait", "udp_timeout"} {
		if err := m.Node.Sysctl("net/netfilter/nf_conntrack_"+timeout, "120"); err != nil {
			return err
		}
	}
	for name, addrs := range pods {
		if err := m.join(t, name, "node", dual(addrs), nil); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mesh) join(t testing.TB, name, up string, addrs dual, routes []netip.Prefix) error {
	h, err := m.topology.host(t, name, "node", name == "node")
	if err != nil {
		return err
	}
	if err := attach(m.topology.hosts[up].ns, up == "wire", h.ns, name, []dual{addrs}, routes); err != nil {
		return err
	}
	m.topology.name(h, []dual{addrs})
	return nil
}

// arm opens the probes of all hosts except the wire.
func (m *Mesh) arm() error {
	for a, h := range m.topology.owner {
		err := h.ns.Do(func() (err error) {
			m.probes[a], err = openProbe(a)
			return err
		})
		if err != nil {
			return fmt.Errorf("open the probe of %s: %w", h.name, err)
		}
	}
	return m.sentinel.open(m)
}

func (m *Mesh) close() {
	for _, p := range m.probes {
		p.close()
	}
	m.sentinel.close()
}

// A First is the first packet of a connection.
type First struct {
	From, To netip.Addr
	Protocol model.Protocol // TCP, UDP or SCTP
	Port     uint16         // of the destination
}

// A Fate is the outcome of a First.
type Fate struct {
	Arrived  bool // at the destination
	Answered bool // the reply to it came back
}

// In runs f inside a host of the mesh, by its name.
func (m *Mesh) In(host string, f func() error) error { return m.topology.hosts[host].ns.Do(f) }

// ForgetNeighbours makes a host and the node resolve each other's link addresses again.
func (m *Mesh) ForgetNeighbours(pod string) error {
	for ns, name := range map[*netns.NS]string{m.Node: "to-" + pod, m.topology.hosts[pod].ns: "eth0"} {
		l, err := ns.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			known, err := ns.NeighList(l.Attrs().Index, family)
			if err != nil {
				return fmt.Errorf("list neighbours at %s: %w", name, err)
			}
			for _, n := range known {
				if n.State == netlink.NUD_PERMANENT {
					if err := ns.NeighDel(&n); err != nil {
						return fmt.Errorf("forget neighbour %v at %s: %w", n.IP, name, err)
					}
				}
			}
		}
	}
	return nil
}
