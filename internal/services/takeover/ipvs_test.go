package takeover

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// inStep is an agent that has programmed all.
func inStep(context.Context) error { return nil }

// TestIPVS takes over from what kube-proxy programs in IPVS mode, made here by hand: connections
// that IPVS carries and connections of the node whose own address is a service's go on until they
// end, new ones are ours, and then all is gone but what is not kube-proxy's.
func TestIPVS(t *testing.T) {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		t.Skip("this kernel has no IPVS; that of `make test-vm VM='-run TestIPVS internal/services/takeover'` has")
	}
	w := newIPVSNode(t)
	byIPVS, ofNode := w.dial(w.client), w.dial(w.node)
	if got := ofNode.LocalAddr().(*net.TCPAddr).IP.String(); got != vip.String() {
		t.Fatalf("the node connects to its own service from %s: this test is about %s", got, vip)
	}
	w.program()
	ours := w.dial(w.client)

	out, err := w.from(t.Context(), Options{Drain: 100 * time.Millisecond})
	if err == nil || !strings.Contains(out, "IPVS still carries") {
		t.Fatalf("did not wait for connections: %v\n%s", err, out)
	}
	t.Logf("with connections:\n%s", out)
	for what, conn := range map[string]net.Conn{"by IPVS": byIPVS, "of the node": ofNode, "ours": ours} {
		if err := echo(conn); err != nil {
			t.Errorf("connection %s: %v", what, err)
		}
	}
	if again := w.dial(w.node); again.LocalAddr().(*net.TCPAddr).IP.Equal(vip.AsSlice()) {
		t.Error("the node's new connections still have the service's address")
	}
	hangUp(byIPVS)
	hangUp(ofNode)
	out, err = w.from(t.Context(), Options{Drain: time.Minute})
	t.Logf("once they have ended:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
	if err := echo(ours); err != nil {
		t.Errorf("our connection: %v", err)
	}
	w.left(t)
	if out, err := w.from(t.Context(), Options{}); err != nil || !strings.Contains(out, "nothing to do") {
		t.Errorf("a second time: %v\n%s", err, out)
	}
}

var (
	vip     = netip.MustParseAddr("10.96.0.10")
	backend = netip.MustParseAddr("10.244.1.2")
	others  = netip.MustParseAddr("192.0.2.99") // a virtual server of somebody else's
)

// iptablesOfIPVS is what matters of the rules that kube-proxy makes with iptables beside: what the
// node connects is masqueraded.
const iptablesOfIPVS = `
table ip nat {
	chain KUBE-MARK-MASQ { meta mark set meta mark or 0x4000; }
	chain KUBE-SERVICES { ip saddr != 172.31.1.0/24 ip daddr 10.96.0.10 tcp dport 80 jump KUBE-MARK-MASQ; }
	chain KUBE-POSTROUTING { meta mark and 0x4000 == 0 return; meta mark set meta mark xor 0x4000; masquerade; }
	chain PREROUTING { type nat hook prerouting priority -100; jump KUBE-SERVICES; }
	chain OUTPUT { type nat hook output priority -100; jump KUBE-SERVICES; }
	chain POSTROUTING { type nat hook postrouting priority 100; jump KUBE-POSTROUTING; }
}
`

// ipvsNode is a node with a client and a backend behind it.
type ipvsNode struct {
	t                     *testing.T
	node, client, backend *world.Host
	driver                *nftables.Driver
}

func newIPVSNode(t *testing.T) *ipvsNode {
	w := &ipvsNode{t: t, node: world.NewHost(t, "node")}
	w.client = w.join("client", netip.MustParseAddr("172.31.1.1"))
	w.backend = w.join("backend", backend.Prev())
	w.node.Forward()
	w.node.Set("net.ipv4.vs.conntrack", "1")
	w.listen()
	w.node.Exec("nft", iptablesOfIPVS)
	w.node.In(w.asProxy)
	w.node.In(func() (err error) {
		w.driver, err = nftables.Open(nftables.Options{Shared: true})
		return err
	})
	t.Cleanup(func() { _ = w.driver.Close() })
	return w
}

func (w *ipvsNode) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// join links a host to the node, which has the address before the host's.
func (w *ipvsNode) join(name string, router netip.Addr) *world.Host {
	w.t.Helper()
	host := world.NewHost(w.t, name)
	w.node.Join("to-"+name, host, "eth0")
	w.node.Address("to-"+name, router.String()+"/24")
	host.Address("eth0", router.Next().String()+"/24")
	host.Gateway(router.String())
	return host
}

// listen echoes on the backend.
func (w *ipvsNode) listen() {
	var l net.Listener
	w.backend.In(func() (err error) {
		l, err = net.Listen("tcp4", ":8080")
		return err
	})
	w.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				buf := make([]byte, 16)
				for {
					n, err := conn.Read(buf)
					if err != nil {
						return
					}
					_, _ = conn.Write(buf[:n])
				}
			}()
		}
	}()
}

// asProxy does what kube-proxy does in IPVS mode, and adds a virtual server and a set of somebody
// else's.
func (w *ipvsNode) asProxy() error {
	dummy := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: proxyDevice}}
	if err := netlink.LinkAdd(dummy); err != nil {
		return err
	}
	if err := netlink.AddrAdd(dummy, &netlink.Addr{IPNet: &net.IPNet{IP: vip.AsSlice(), Mask: net.CIDRMask(32, 32)}}); err != nil {
		return err
	}
	for name, kind := range map[string]string{"KUBE-CLUSTER-IP": "hash:ip,port", "OTHERS": "hash:ip,port"} {
		if err := netlink.IpsetCreate(name, kind, netlink.IpsetCreateOptions{}); err != nil {
			return fmt.Errorf("create ipset: %w", err)
		}
	}
	conn, err := ipvs.New("")
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, addr := range []netip.Addr{vip, others} {
		s := &ipvs.Service{AddressFamily: unix.AF_INET, Protocol: unix.IPPROTO_TCP, Address: addr.AsSlice(), Port: 80, SchedName: "rr", Netmask: 0xffffffff}
		if err := conn.NewService(s); err != nil {
			return fmt.Errorf("add virtual server: %w", err)
		}
		d := &ipvs.Destination{AddressFamily: unix.AF_INET, Address: backend.AsSlice(), Port: 8080, Weight: 1}
		if err := conn.NewDestination(s, d); err != nil {
			return fmt.Errorf("add destination: %w", err)
		}
	}
	return nil
}

// program has the driver serve the service, as the agent would.
func (w *ipvsNode) program() {
	w.t.Helper()
	s := state.New()
	s.Services.ClusterIPs[vip] = struct{}{}
	to := []netip.AddrPort{netip.AddrPortFrom(backend, 8080)}
	s.Services.Frontends[state.FrontendKey{Addr: vip, Protocol: model.TCP, Port: 80}] = &state.Frontend{Service: model.Name{Namespace: "a", Name: "b"}, Backends: to, Alive: to, Serving: to}
	s.Services.Settings.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("172.31.1.0/24"), netip.MustParsePrefix("10.244.0.0/16")}
	plan, err := w.driver.Adopt(w.t.Context(), s, driver.Keep{})
	w.must(err)
	w.must(plan.Apply(w.t.Context()))
}

// from runs From on the node.
func (w *ipvsNode) from(ctx context.Context, o Options) (string, error) {
	var out bytes.Buffer
	o.Out, o.Socket, o.Node, o.Sync, o.Kernel = &out, w.t.TempDir()+"/none", "node", inStep, w.driver
	o.Minor = func(error) bool { return false }
	err := w.node.Do(func() error { return From(ctx, o) })
	return out.String(), err
}

// dial connects to the service, and sees that it answers.
func (w *ipvsNode) dial(ns *world.Host) net.Conn {
	w.t.Helper()
	var conn net.Conn
	ns.In(func() (err error) {
		conn, err = (&net.Dialer{Timeout: 5 * time.Second}).Dial("tcp4", netip.AddrPortFrom(vip, 80).String())
		return err
	})
	w.t.Cleanup(func() { _ = conn.Close() })
	w.must(echo(conn))
	return conn
}

// hangUp resets a connection, which connection tracking and IPVS then forget within seconds rather
// than minutes.
func hangUp(conn net.Conn) {
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func echo(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 16))
	return err
}

// left checks what is left on the node.
func (w *ipvsNode) left(t *testing.T) {
	t.Helper()
	w.node.In(func() error {
		if _, err := netlink.LinkByName(proxyDevice); err == nil {
			t.Error("the device is still there")
		}
		if routes, err := link.Here.LocalRoutes(routeProtocol); err != nil || len(routes) > 0 {
			t.Errorf("routes are left: %v %v", routes, err)
		}
		if _, err := netlink.IpsetList("KUBE-CLUSTER-IP"); err == nil {
			t.Error("kube-proxy's set is still there")
		}
		if _, err := netlink.IpsetList("OTHERS"); err != nil {
			t.Errorf("somebody else's set: %v", err)
		}
		conn, err := ipvs.New("")
		if err != nil {
			return err
		}
		defer conn.Close()
		services, err := conn.GetServices()
		if err == nil && (len(services) != 1 || !services[0].Address.Equal(others.AsSlice())) {
			t.Errorf("left: %v, want somebody else's virtual server alone", services)
		}
		return err
	})
}
