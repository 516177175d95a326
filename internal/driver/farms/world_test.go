package farms_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/compile/farm"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/farms"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/netns"
	"sluice.dev/sluice/internal/state"
)

// world is a client, the balancer, and servers on a network of their own: server i has the
// addresses 10.1.0.1i and fd01::1i, and its way out leads through the balancer.
type world struct {
	t                *testing.T
	client, balancer *netns.NS
	servers          []*netns.NS
	open             func() (driver.Driver, error)
	driver           driver.Driver
	state            *state.State
	tunnels          bool // to backends on other networks
}

var worlds atomic.Int32

const (
	virtual4 = "10.0.0.100"
	virtual6 = "fd00::100"
)

func newWorld(t *testing.T, servers int) *world {
	t.Helper()
	w := &world{t: t, state: &state.State{Farms: state.NewFarms()}}
	w.open = func() (driver.Driver, error) { return farms.Open(farms.Options{}) }
	id := fmt.Sprintf("farms%d-%d", os.Getpid(), worlds.Add(1))
	w.client, w.balancer = w.space(id+"c"), w.space(id+"b")
	w.must(netns.Veth(w.client, "eth0", w.balancer, "front"))
	w.address(w.client, "eth0", "10.0.0.2/24", "fd00::2/64")
	w.address(w.client, "eth0", "10.0.0.3/24", "fd00::3/64")
	w.address(w.balancer, "front", "10.0.0.1/24", "fd00::1/64")
	w.address(w.balancer, "front", virtual4+"/32", virtual6+"/128")
	w.must(w.balancer.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "back"}}))
	w.address(w.balancer, "back", "10.1.0.1/24", "fd01::1/64")
	for i := range servers {
		s := w.space(fmt.Sprintf("%ss%d", id, i+1))
		port := fmt.Sprintf("s%d", i+1)
		w.must(netns.Veth(s, "eth0", w.balancer, port))
		w.up(w.balancer, port, "back")
		w.address(s, "eth0", fmt.Sprintf("10.1.0.1%d/24", i+1), fmt.Sprintf("fd01::1%d/64", i+1))
		w.route(s, "10.1.0.1", "fd01::1")
		w.serve(s, fmt.Sprintf("s%d", i+1))
		w.servers = append(w.servers, s)
	}
	w.route(w.client, "10.0.0.1", "fd00::1")
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		w.must(w.balancer.Sysctl(key, "1"))
	}
	w.start()
	t.Cleanup(func() { _ = w.driver.Close() })
	w.must(w.driver.Probe(t.Context()))
	return w
}

// start opens a driver.
func (w *world) start() {
	w.t.Helper()
	w.must(w.balancer.Do(func() (err error) { w.driver, err = w.open(); return err }))
}

// restart has another driver take over.
func (w *world) restart() {
	w.t.Helper()
	w.must(w.driver.Close())
	w.start()
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) space(name string) *netns.NS {
	ns, err := netns.New(name)
	w.must(err)
	w.t.Cleanup(func() { _ = ns.Delete() })
	w.must(ns.Sysctl("net.ipv6.conf.all.accept_dad", "0"))
	w.must(ns.Sysctl("net.ipv6.conf.default.accept_dad", "0"))
	return ns
}

func (w *world) up(ns *netns.NS, device, master string) netlink.Link {
	w.t.Helper()
	l, err := ns.LinkByName(device)
	w.must(err)
	if master != "" {
		m, err := ns.LinkByName(master)
		w.must(err)
		w.must(ns.LinkSetMaster(l, m))
	}
	w.must(ns.LinkSetUp(l))
	return l
}

func (w *world) address(ns *netns.NS, device string, addrs ...string) {
	w.t.Helper()
	l := w.up(ns, device, "")
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		w.must(err)
		addr.Flags = 0x02 // IFA_F_NODAD
		if addr.IP.To4() != nil {
			addr.Flags = 0
		}
		w.must(ns.AddrAdd(l, addr))
	}
}

func (w *world) route(ns *netns.NS, via ...string) {
	w.t.Helper()
	for _, v := range via {
		dst := "0.0.0.0/0"
		if strings.Contains(v, ":") {
			dst = "::/0"
		}
		_, all, _ := net.ParseCIDR(dst)
		w.must(ns.RouteAdd(&netlink.Route{Dst: all, Gw: net.ParseIP(v)}))
	}
}

// serve answers on ports 80, 81 and 8080 with the server's name and the client that it sees.
func (w *world) serve(ns *netns.NS, name string) {
	w.t.Helper()
	for _, port := range []int{80, 81, 8080} {
		var l net.Listener
		var u net.PacketConn
		w.must(ns.Do(func() (err error) {
			if l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err != nil {
				return err
			}
			u, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
			return err
		}))
		w.t.Cleanup(func() { _ = l.Close(); _ = u.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go answer(c, name)
			}
		}()
		go func() {
			b := make([]byte, 2000)
			for {
				_, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = u.WriteTo([]byte(reply(name, from, u.LocalAddr())), from)
			}
		}()
	}
}

func reply(name string, from, at net.Addr) string {
	f, a := netip.MustParseAddrPort(from.String()), netip.MustParseAddrPort(at.String())
	return fmt.Sprintf("%s %s %d\n", name, f.Addr().Unmap(), a.Port())
}

func answer(c net.Conn, name string) {
	defer func() { _ = c.Close() }()
	for r := bufio.NewReader(c); ; {
		if _, err := r.ReadString('\n'); err != nil {
			return
		}
		if _, err := io.WriteString(c, reply(name, c.RemoteAddr(), c.LocalAddr())); err != nil {
			return
		}
	}
}

// got is what a server said.
type got struct {
	server string
	client netip.Addr
	port   int
}

// dial connects from an address and port, which may be zero.
func (w *world) dial(ns *netns.NS, network, to string, from netip.AddrPort) (c net.Conn, err error) {
	d := net.Dialer{Timeout: 2 * time.Second}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(from)
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(from)
		}
	}
	// An interface takes a moment after it is up until it has routes of IPv6.
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err = ns.Do(func() (err error) { c, err = d.DialContext(context.Background(), network, to); return err })
		if !errors.Is(err, unix.ENETUNREACH) || time.Now().After(end) {
			return c, err
		}
	}
}

// exchange asks and reads the answer. A datagram may get lost while a neighbour is looked for, so
// it is sent again.
func exchange(c net.Conn) (g got, err error) {
	const sends, wait = 4, 500 * time.Millisecond
	_, datagrams := c.(*net.UDPConn)
	var line string
	for try := range sends {
		deadline := time.Now().Add(wait)
		if !datagrams {
			deadline = time.Now().Add(sends * wait)
		}
		_ = c.SetDeadline(deadline)
		if _, err := io.WriteString(c, "hello\n"); err != nil {
			return g, err
		}
		line, err = bufio.NewReader(c).ReadString('\n')
		if !datagrams || !errors.Is(err, os.ErrDeadlineExceeded) || try == sends-1 {
			break
		}
	}
	if err != nil {
		return g, err
	}
	var client string
	_, err = fmt.Sscanf(line, "%s %s %d", &g.server, &client, &g.port)
	g.client, _ = netip.ParseAddr(client)
	return g, err
}

// ask opens a connection, asks once and closes it.
func (w *world) ask(network, to string) (got, error) {
	from := netip.MustParseAddr("10.0.0.2")
	if strings.HasPrefix(to, "[") {
		from = netip.MustParseAddr("fd00::2")
	}
	return w.askFrom(w.client, network, to, netip.AddrPortFrom(from, 0))
}

func (w *world) askFrom(ns *netns.NS, network, to string, from netip.AddrPort) (got, error) {
	c, err := w.dial(ns, network, to, from)
	if err != nil {
		return got{}, err
	}
	defer func() { _ = c.Close() }()
	return exchange(c)
}

// answers asks several times, and counts who answered.
func (w *world) answers(n int, network, to string) map[string]int {
	w.t.Helper()
	counts := map[string]int{}
	for range n {
		g, err := w.ask(network, to)
		if err != nil {
			w.t.Fatalf("%s %s: %v\n%s", network, to, err, w.list())
		}
		counts[g.server]++
	}
	return counts
}

func (w *world) list() string {
	w.t.Helper()
	if _, virtual := w.driver.(*ipvs.Farms); virtual {
		return w.table("ip_vs") + w.table("ip_vs_conn")
	}
	out, err := w.balancer.Run("nft", "list", "table", "inet", farms.TableName)
	if err != nil {
		w.t.Errorf("nft cannot list the table: %v", err)
	}
	return string(out)
}

// set has the balancer serve farms, by what changed alone once it has served any.
func (w *world) set(all ...*model.Farm) {
	w.t.Helper()
	w.change(w.farms(all...))
}

// farms is the change to these farms, and to the interfaces that there are.
func (w *world) farms(all ...*model.Farm) state.Delta {
	w.t.Helper()
	delta := state.Delta{Farms: state.FarmsDelta{Farms: map[string]*state.Farm{}, Devices: map[int]bool{}, Tunnels: map[netip.Addr]bool{}}}
	for name := range w.state.Farms.Farms {
		delta.Farms.Farms[name] = nil
	}
	links := w.links()
	for index := range w.state.Farms.Devices {
		delta.Farms.Devices[index] = false
	}
	for _, l := range links.Links {
		if len(l.Addresses) > 0 && l.Name != "lo" {
			delta.Farms.Devices[l.Index] = true
		}
	}
	for to := range w.state.Farms.Tunnels {
		delta.Farms.Tunnels[to] = false
	}
	for _, f := range all {
		delta.Farms.Farms[f.Name] = farm.Compile(f, func(a netip.Addr) int {
			index := farm.Device(links, a)
			if index == 0 && w.tunnels {
				index, _ = state.FarmTunnel(a)
				delta.Farms.Tunnels[a] = true
			}
			return index
		})
	}
	return delta
}

// change has the balancer carry out a change; the first is an adoption.
func (w *world) change(delta state.Delta) {
	w.t.Helper()
	held := false
	w.driver.Held(func(*state.State) { held = true })
	w.state.Apply(delta)
	if !held {
		w.apply(w.driver.Adopt(w.t.Context(), w.state, driver.Keep{}))
		return
	}
	w.apply(w.driver.Update(w.t.Context(), delta))
	w.settled()
}

// links are the balancer's.
func (w *world) links() (l model.Links) {
	w.t.Helper()
	w.must(w.balancer.Do(func() (err error) { l, err = link.Here.Links(); return err }))
	return l
}

func (w *world) apply(p driver.Plan, err error) {
	w.t.Helper()
	if err == nil {
		err = p.Apply(w.t.Context())
	}
	w.must(err)
}

// settled fails unless the kernel holds just what is wanted. Right after a large change it may not
// list all elements: it moves them to a larger table meanwhile.
func (w *world) settled() {
	w.t.Helper()
	for try := 1; ; try++ {
		p, err := w.driver.Adopt(w.t.Context(), w.state, driver.Keep{})
		w.must(err)
		if p.Len() == 0 {
			w.must(p.Apply(w.t.Context()))
			break
		}
		if try == 100 {
			w.t.Fatalf("the kernel differs from what is wanted:\n%s", p)
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.list()
}

func timedOut(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// at is where a farm is found.
func at(addr string, ports ...model.PortSpan) model.FarmAddress {
	a := model.FarmAddress{Protocols: []model.Protocol{model.TCP, model.UDP}, Ports: ports, IPv4: true, IPv6: true}
	if addr != "" {
		a.Addr = netip.MustParseAddr(addr)
		a.IPv4, a.IPv6 = a.Addr.Is4(), a.Addr.Is6()
	}
	return a
}

func port(n uint16) model.PortSpan { return model.PortSpan{First: n, Last: n} }

// backends are the first so many servers, of one family or the other.
func backends(n int, is4 bool, at uint16) (all []model.FarmBackend) {
	for i := range n {
		addr := fmt.Sprintf("fd01::1%d", i+1)
		if is4 {
			addr = fmt.Sprintf("10.1.0.1%d", i+1)
		}
		all = append(all, model.FarmBackend{Name: fmt.Sprintf("s%d", i+1), Addr: netip.MustParseAddr(addr), Port: at, Weight: 1, Priority: 1})
	}
	return all
}
