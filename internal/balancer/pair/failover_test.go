package pair

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	farm "sluice.dev/sluice/internal/balancer/compile"
	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// A balancer that dies is replaced by the other one, and established connections go on at their
// backends; and so once more, after the first has come back.
func TestFailover(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	need(t, "keepalived", "conntrackd", "nft", "sysctl", "logger")
	l := newLab(t)
	var clients []*client
	for range 40 {
		clients = append(clients, l.connect())
	}
	for round := range l.boxes {
		var dies, stands *box
		l.wait("the connections are known on the other machine", func() bool {
			dies = l.serving(nil)
			stands = l.other(dies)
			return stands.knows(clients)
		})
		died := time.Now()
		dies.die()
		l.connect().Close()
		t.Logf("failover %d: a new connection works after %s", round+1, time.Since(died).Round(time.Millisecond))
		for _, c := range clients {
			c.goesOn(t)
		}
		t.Logf("failover %d: %d established connections go on after %s", round+1, len(clients), time.Since(died).Round(time.Millisecond))
		if l.serving(dies) != stands {
			t.Fatal("somebody else serves")
		}
		dies.live(t)
	}
	for i, b := range l.boxes {
		if i > 0 {
			_, err := b.Run("nft", "table inet farms { chain in { type filter hook input priority 0; tcp dport 81 ct state invalid,untracked synproxy mss 1460 wscale 7; }; }")
			must(t, err)
		}
		l.wait("packets of unknown connections are dropped", func() bool { table, loose := b.drops(t); return table && !loose })
		must(t, b.running[1].Process.Signal(syscall.SIGTERM))
		l.wait("they are treated as before once keepalived has been stopped, but for a SYN proxy", func() bool {
			table, loose := b.drops(t)
			return !table && loose == (i == 0)
		})
	}
}

// drops reports whether the box has the table that drops packets of connections that it does not
// know, and whether the kernel takes such packets for the beginning of one.
func (b *box) drops(t *testing.T) (table, takes bool) {
	tables, err := b.Run("nft", "list", "tables")
	loose, looseErr := b.Run("sysctl", "-n", "net.netfilter.nf_conntrack_tcp_loose")
	must(t, errors.Join(err, looseErr))
	return bytes.Contains(tables, []byte("sluice-pair")), string(loose) == "1\n"
}

// lab is a client, two balancers and two backends (of which one machine has the addresses), on two
// networks.
type lab struct {
	t               *testing.T
	client, backend *world.Host
	boxes           [2]*box
}

// box is a balancer with what runs on it.
type box struct {
	*world.Host
	config  Config
	running []*exec.Cmd
}

const virtual = "10.0.0.100"

var backends = []string{"10.1.0.11", "10.1.0.12"}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, client: world.NewHost(t, "client"), backend: world.NewHost(t, "backend")}
	front, back := network(t, "front"), network(t, "back")
	join(l.client, "eth0", front, "client", "10.0.0.9/24")
	join(l.backend, "eth0", back, "backend", "10.1.0.11/24", "10.1.0.12/24")
	l.backend.Gateway("10.1.0.1")
	for i := range l.boxes {
		b := &box{Host: world.NewHost(t, fmt.Sprintf("box%d", i))}
		l.boxes[i] = b
		join(b.Host, "eth0", front, fmt.Sprintf("box%d", i), fmt.Sprintf("10.0.0.%d/24", 2+i))
		join(b.Host, "eth1", back, fmt.Sprintf("box%d", i), fmt.Sprintf("10.1.0.%d/24", 2+i))
		b.Set("net.ipv4.ip_forward", "1")
		b.balance(t)
		b.config = Config{
			Name: fmt.Sprintf("box%d", i), Interface: "eth0",
			Local: addr("10.0.0.%d", 2+i), Peer: addr("10.0.0.%d", 3-i),
			Addresses: parse(t, virtual+"/24", "10.1.0.1/24@eth1"), RouterID: 51, Priority: 100, Check: "/bin/true",
			SyncInterface: "eth1", SyncLocal: addr("10.1.0.%d", 2+i), SyncPeer: addr("10.1.0.%d", 3-i),
			Dir: t.TempDir(), RunDir: t.TempDir(),
		}
		write(t, b.config)
	}
	for _, address := range backends {
		l.echo(address)
	}
	l.boxes[0].start(t)
	l.serving(nil) // of two that start at once, both may serve for a moment
	l.boxes[1].start(t)
	return l
}

// balance has the box serve a farm at the virtual address, as sluice balance does.
func (b *box) balance(t *testing.T) {
	f := &model.Farm{Name: "web", Mode: model.DNAT, Addresses: []model.FarmAddress{{
		Addr: netip.MustParseAddr(virtual), IPv4: true, Protocols: []model.Protocol{model.TCP}, Ports: []model.PortSpan{{First: 80, Last: 80}},
	}}}
	for _, address := range backends {
		f.Backends = append(f.Backends, model.FarmBackend{Name: address, Addr: netip.MustParseAddr(address), Port: 8080, Weight: 1, Priority: 1})
	}
	want := &state.State{Farms: state.NewFarms()}
	want.Farms.Farms[f.Name] = farm.Compile(f, nil)
	b.In(func() error {
		d, err := farms.Open(farms.Options{})
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = d.Close() })
		plan, err := d.Adopt(t.Context(), want, driver.Keep{})
		if err != nil {
			return err
		}
		return plan.Apply(t.Context())
	})
}

// start starts what the box runs.
func (b *box) start(t *testing.T) {
	in := func(file string) string { return filepath.Join(b.config.Dir, file) }
	b.running = nil
	for _, args := range [][]string{
		{"conntrackd", "-C", in("conntrackd.conf")},
		{"keepalived", "--dont-fork", "--log-console", "--vrrp", "--use-file", in("keepalived.conf"),
			"--pid", filepath.Join(b.config.RunDir, "keepalived.pid"), "--vrrp_pid", filepath.Join(b.config.RunDir, "vrrp.pid")},
	} {
		var says bytes.Buffer
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = &says, &says
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		b.In(cmd.Start)
		b.running = append(b.running, cmd)
		t.Cleanup(func() {
			kill(cmd)
			if t.Failed() {
				t.Logf("%s on %s:\n%s", args[0], b.Name, says.String())
			}
		})
	}
}

// kill ends a program and its children at once. It may have ended before.
func kill(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}
}

// die cuts the box off and kills what runs on it, as a power failure does.
func (b *box) die() {
	b.links((*netlink.Handle).LinkSetDown)
	for _, cmd := range b.running {
		kill(cmd)
	}
	// keepalived's child is in a group of its own, and would go only a moment later.
	text, err := os.ReadFile(filepath.Join(b.config.RunDir, "vrrp.pid"))
	if pid, bad := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && bad == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// live starts the box again, empty except for its rules.
func (b *box) live(t *testing.T) {
	for _, d := range []string{"eth0", "eth1"} { // the addresses that keepalived could not take away
		link, err := b.LinkByName(d)
		must(t, err)
		for _, a := range parse(t, virtual+"/24", "10.1.0.1/24") {
			_ = b.AddrDel(link, &netlink.Addr{IPNet: &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(24, 32)}})
		}
	}
	must(t, b.ConntrackTableFlush(netlink.ConntrackTable))
	for _, file := range []string{"conntrackd.lock", "conntrackd.ctl", "keepalived.pid", "vrrp.pid"} {
		_ = os.Remove(filepath.Join(b.config.RunDir, file))
	}
	b.links((*netlink.Handle).LinkSetUp)
	b.start(t)
}

func (b *box) links(set func(*netlink.Handle, netlink.Link) error) {
	for _, d := range []string{"eth0", "eth1"} {
		if link, err := b.LinkByName(d); err == nil {
			_ = set(b.Handle, link)
		}
	}
}

// knows reports whether conntrackd of the box has the connections of the other one.
func (b *box) knows(clients []*client) bool {
	out, err := b.Run("conntrackd", "-C", filepath.Join(b.config.Dir, "conntrackd.conf"), "-e")
	for _, c := range clients {
		if !bytes.Contains(out, fmt.Appendf(nil, "sport=%d ", c.LocalAddr().(*net.TCPAddr).Port)) {
			return false
		}
	}
	return err == nil && bytes.Count(out, []byte("ESTABLISHED")) >= len(clients)
}

// serving waits until one box but not another has the virtual address.
func (l *lab) serving(not *box) *box {
	var found *box
	l.wait("one machine has the virtual address", func() bool {
		found = nil
		for _, b := range l.boxes {
			if b != not && b.has(virtual) {
				if found != nil {
					return false
				}
				found = b
			}
		}
		return found != nil
	})
	return found
}

func (b *box) has(address string) bool {
	addrs, err := b.AddrList(nil, netlink.FAMILY_V4)
	for _, a := range addrs {
		if a.IP.String() == address {
			return err == nil
		}
	}
	return false
}

func (l *lab) other(b *box) *box {
	if b == l.boxes[0] {
		return l.boxes[1]
	}
	return l.boxes[0]
}

// client is a connection, and the backend that it is at.
type client struct {
	net.Conn
	lines   *bufio.Reader
	backend string
}

// patience bounds what is waited for: TCP tries again after up to some seconds.
const patience = time.Minute

// connect makes a connection, and tries as long as there is patience.
func (l *lab) connect() *client {
	var c *client
	l.wait("a new connection works", func() bool {
		err := l.client.Do(func() error {
			conn, err := net.DialTimeout("tcp4", virtual+":80", 250*time.Millisecond)
			if err != nil {
				return err
			}
			c = &client{Conn: conn, lines: bufio.NewReader(conn)}
			return nil
		})
		if err != nil {
			return false
		}
		if c.backend, err = c.ask(time.Second); err != nil {
			_ = c.Close()
		}
		return err == nil
	})
	l.t.Cleanup(func() { _ = c.Close() })
	return c
}

// ask returns what the backend answers: its address.
func (c *client) ask(within time.Duration) (string, error) {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, "who\n"); err != nil {
		return "", err
	}
	return c.lines.ReadString('\n')
}

// goesOn fails the test if the connection has ended, or has another backend.
func (c *client) goesOn(t *testing.T) {
	if backend, err := c.ask(patience); err != nil || backend != c.backend {
		t.Errorf("a connection at %q: %q, %v", c.backend, backend, err)
	}
}

// echo answers every line with the address of the backend.
func (l *lab) echo(address string) {
	var listener net.Listener
	l.backend.In(func() (err error) {
		listener, err = net.Listen("tcp4", address+":8080")
		return err
	})
	l.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if _, err := io.WriteString(conn, address+"\n"); err != nil {
						return
					}
				}
			}()
		}
	}()
}

func (l *lab) wait(what string, done func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("not after %s: %s", patience, what)
		}
	}
}

// network makes a network of its own.
func network(t *testing.T, name string) *world.Host {
	h := world.NewHost(t, name)
	h.Bridge("br0")
	return h
}

// join connects a host to a network.
func join(h *world.Host, device string, network *world.Host, port string, addresses ...string) {
	h.Join(device, network, port)
	network.Port("br0", port)
	h.Address(device, addresses...)
}

func addr(format string, n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(format, n)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
