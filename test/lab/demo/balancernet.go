package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/netns"
)

// farmsFile is what the story needs of a configuration of 'sluice balance'.
type farmsFile struct {
	Farms []farm `json:"farms"`
}

type farm struct {
	Name      string          `json:"name"`
	Addr      netip.Addr      `json:"virtual-addr"`
	Port      json.Number     `json:"virtual-ports"`
	Scheduler string          `json:"scheduler"`
	Check     json.RawMessage `json:"health-check"`
	Backends  []struct {
		Name string      `json:"name"`
		Addr netip.Addr  `json:"ip-addr"`
		Port json.Number `json:"port"`
	} `json:"backends"`
}

// at is where clients reach a farm.
func (f *farm) at() netip.AddrPort { return netip.AddrPortFrom(f.Addr, number(f.Port)) }

func number(n json.Number) uint16 {
	v, _ := n.Int64() // readFarms has looked
	return uint16(v)
}

// readFarms reads farms that the lab can serve: each has one IPv4 address and one port, and so has
// each backend.
func readFarms(path string) (farms []farm, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read farms: %w", err)
	}
	var file farmsFile
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	for _, f := range file.Farms {
		fits := f.Addr.Is4() && isPort(f.Port)
		for _, b := range f.Backends {
			fits = fits && b.Addr.Is4() && isPort(b.Port)
		}
		if !fits || len(f.Backends) < 2 || f.Check == nil {
			return nil, fmt.Errorf("read %s: farm %s: the lab shows farms with one IPv4 address and port, a health check, "+
				"and two or more backends of the same form", path, f.Name)
		}
	}
	if len(file.Farms) == 0 {
		return nil, fmt.Errorf("read %s: there are no farms in it", path)
	}
	return file.Farms, nil
}

func isPort(n json.Number) bool {
	v, err := n.Int64()
	return err == nil && v > 0 && v <= 65535
}

// balancerNet is a client, a balancer, and a server for each address of the farms' backends, each a
// network namespace.
//
//	client eth0 ── front balancer back0, back1 … ── eth0 servers
type balancerNet struct {
	config BalancerConfig
	farms  []farm

	client, balancer *netns.NS
	servers          map[netip.Addr]*netns.NS
	pods             map[string][]echo.Pod // what the servers run, by the name of a backend
	echo             echo.Server
	dir              string // for the balancer's socket, state and log
}

// The addresses of the client's network, and the one that is every server's gateway.
var (
	frontAddr   = netip.MustParsePrefix("198.51.100.1/24")
	clientAddr  = netip.MustParsePrefix("198.51.100.2/24")
	serversGate = netip.MustParsePrefix("169.254.1.1/32")
	anywhere    = netip.MustParsePrefix("0.0.0.0/0")
)

// newBalancerNet builds the network and starts the servers. Close it, also after an error.
func newBalancerNet(c BalancerConfig, farms []farm) (*balancerNet, error) {
	n := &balancerNet{config: c, farms: farms, servers: map[netip.Addr]*netns.NS{}, pods: map[string][]echo.Pod{}}
	var err error
	if n.dir, err = os.MkdirTemp("", "sluice-demo-*"); err != nil {
		return n, fmt.Errorf("make folder: %w", err)
	}
	if n.client, err = n.namespace("client"); err != nil {
		return n, err
	}
	if n.balancer, err = n.namespace("balancer"); err != nil {
		return n, err
	}
	if err := netns.Veth(n.client, "eth0", n.balancer, "front"); err != nil {
		return n, err
	}
	err = errors.Join(setAddr(n.client, "eth0", clientAddr), setAddr(n.balancer, "front", frontAddr), setRoute(n.client, "eth0", anywhere, frontAddr.Addr()))
	for _, f := range farms {
		err = errors.Join(err, setAddr(n.balancer, "front", netip.PrefixFrom(f.Addr, 32)))
		for _, b := range f.Backends {
			err = errors.Join(err, n.serve(b.Name, b.Addr, number(b.Port)))
		}
	}
	return n, err
}

// namespace makes one of the network's namespaces, in place of what a killed run has left.
func (n *balancerNet) namespace(name string) (*netns.NS, error) {
	name = "sluice-lab-" + n.config.Name + "-" + name
	if err := errors.Join(process.KillIn(name), netns.Delete(name)); err != nil {
		return nil, err
	}
	return netns.New(name)
}

// serve starts a backend, and connects its server first if it is not there yet.
func (n *balancerNet) serve(name string, addr netip.Addr, port uint16) (err error) {
	ns := n.servers[addr]
	if ns == nil {
		i := len(n.servers)
		if ns, err = n.namespace(fmt.Sprintf("server%d", i+1)); err != nil {
			return err
		}
		n.servers[addr] = ns
		near, at := fmt.Sprintf("back%d", i), netip.PrefixFrom(addr, 32)
		if err := netns.Veth(ns, "eth0", n.balancer, near); err != nil {
			return err
		}
		err = errors.Join(
			setAddr(n.balancer, near, serversGate), setRoute(n.balancer, near, at, netip.Addr{}),
			setAddr(ns, "eth0", at), setRoute(ns, "eth0", serversGate, netip.Addr{}), setRoute(ns, "eth0", anywhere, serversGate.Addr()))
		if err != nil {
			return err
		}
	}
	pod := echo.Pod{Name: name, Container: fmt.Sprint(port), NetNS: ns.Name, Ports: []echo.Port{{Protocol: "TCP", Port: port}}}
	n.pods[name] = append(n.pods[name], pod)
	return n.echo.Put(pod)
}

// kill ends a server's programs, as a crash would: their ports refuse.
func (n *balancerNet) kill(backend string) {
	for _, p := range n.pods[backend] {
		n.echo.Remove(p)
	}
}

// revive starts them again.
func (n *balancerNet) revive(backend string) (err error) {
	for _, p := range n.pods[backend] {
		err = errors.Join(err, n.echo.Put(p))
	}
	return err
}

// Close ends all of it.
func (n *balancerNet) Close() error {
	errs := []error{n.echo.Close()}
	all := []*netns.NS{n.client, n.balancer}
	for _, ns := range n.servers {
		all = append(all, ns)
	}
	for _, ns := range all {
		if ns != nil {
			errs = append(errs, process.KillIn(ns.Name), ns.Delete())
		}
	}
	errs = append(errs, os.RemoveAll(n.dir)) // the balancer wrote into it until now
	return errors.Join(errs...)
}

func setAddr(ns *netns.NS, dev string, p netip.Prefix) error {
	l, err := ns.LinkByName(dev)
	if err == nil {
		err = ns.AddrReplace(l, &netlink.Addr{IPNet: ipNet(p)})
	}
	if err != nil {
		return fmt.Errorf("add %s to %s in %s: %w", p, dev, ns.Name, err)
	}
	return nil
}

// setRoute adds a route through a device; without a valid via, to what is on its link.
func setRoute(ns *netns.NS, dev string, to netip.Prefix, via netip.Addr) error {
	l, err := ns.LinkByName(dev)
	if err == nil {
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(to), Gw: via.AsSlice()}
		if !via.IsValid() {
			r.Scope = netlink.SCOPE_LINK
		}
		err = ns.RouteAdd(r)
	}
	if err != nil {
		return fmt.Errorf("add route to %s in %s: %w", to, ns.Name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
