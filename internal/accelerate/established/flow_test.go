package established_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/internal/accelerate/established"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// node is a node with two pods, and a machine outside, which reaches it by a wire and by a tunnel
// on that. Each address of a service leads to the server.
type node struct {
	*testing.T
	host, client, server, outside *world.Host
	driver                        driver.Driver
	fast                          *established.Driver // nil: there is none
	want                          *state.State
}

// services are the addresses at which the server is asked.
var (
	services = []string{"198.51.100.1:80", "[2001:db8:1::1]:80"}
	bulk     = []string{"198.51.100.1:81", "[2001:db8:1::1]:81"}
)

func newNode(t *testing.T) *node {
	t.Helper()
	t.Parallel()
	world.MountBPF(t)
	n := &node{T: t, host: world.NewHost(t, "node"), outside: world.NewHost(t, "outside"), want: state.New()}
	n.host.Forward()
	n.client = world.NewPod(n.host, "client", "10.1.0.1", "fd00:1::1")
	n.server = world.NewPod(n.host, "server", "10.1.0.2", "fd00:1::2")
	n.host.Join("eth0", n.outside, "eth0")
	n.host.Address("eth0", "192.0.2.1/24", "2001:db8::1/64")
	n.outside.Address("eth0", "192.0.2.9/24", "2001:db8::9/64")
	n.outside.Gateway("192.0.2.1", "2001:db8::1")
	n.server.Serve("server", "10.1.0.2:80", "[fd00:1::2]:80")
	for i, at := range append(services, bulk...) {
		to := netip.MustParseAddrPort(at)
		server := netip.AddrPortFrom(netip.MustParseAddr([]string{"10.1.0.2", "fd00:1::2"}[i%2]), to.Port())
		for _, p := range []model.Protocol{model.TCP, model.UDP} {
			all := []netip.AddrPort{server}
			n.want.Services.Frontends[state.FrontendKey{Addr: to.Addr(), Protocol: p, Port: to.Port()}] = &state.Frontend{Backends: all, Alive: all, Serving: all}
		}
	}
	n.want.Policy = nil
	n.host.In(func() error { // for all of the test
		_, err := sysctl.Set(filepath.Join(t.TempDir(), "sysctls"), established.Sysctls)
		return err
	})
	t.Cleanup(func() {
		if n.driver != nil {
			_ = n.driver.Close()
		}
		n.host.In(established.Withdraw)
	})
	return n
}

// open has a process go on in the place of the one before, with the program or without.
func (n *node) open(accelerated bool) {
	n.Helper()
	if n.driver != nil {
		if err := n.driver.Close(); err != nil {
			n.Fatal(err)
		}
	}
	n.host.In(func() error {
		base, err := nftables.Open(nftables.Options{})
		n.driver, n.fast = base, nil
		if err != nil || !accelerated {
			return errors.Join(err, established.Withdraw())
		}
		n.fast = established.Open(base, slog.New(slog.DiscardHandler))
		n.driver = n.fast
		return nil
	})
	// The kernel may take a moment until a table has no owner any more.
	for end := time.Now().Add(world.Patience); ; time.Sleep(time.Millisecond) {
		p, err := n.driver.Adopt(n.Context(), n.want.Clone(), driver.Keep{})
		if err == nil {
			err = p.Apply(n.Context())
		}
		if err == nil {
			break
		}
		if !errors.Is(err, driver.ErrBusy) || time.Now().After(end) {
			n.Fatal(err)
		}
	}
	if n.fast != nil {
		if s := n.fast.Status(); s.Off != "" {
			n.Fatal(s.Off)
		}
	}
}

// TestToggled has the program come and go while clients ask, over connections that stay open and by
// new ones.
func TestToggled(t *testing.T) {
	n := newNode(t)
	n.open(true)
	var over atomic.Bool
	var asked atomic.Int64
	var clients sync.WaitGroup
	defer clients.Wait()
	defer over.Store(true)
	for _, from := range []*world.Host{n.client, n.outside} {
		for _, network := range []string{"tcp", "udp"} {
			for _, at := range append([]string{"10.1.0.2:80", "[fd00:1::2]:80"}, services...) {
				clients.Go(func() {
					c, err := from.Dial(network, "", at, world.Patience)
					if err != nil {
						t.Error(err)
						return
					}
					defer func() { _ = c.Close() }()
					for !over.Load() {
						if _, err := world.Exchange(c, world.Patience); err != nil {
							t.Errorf("%s, %s, over a connection that was open: %v", network, at, err)
							return
						}
						asked.Add(1)
					}
				})
				clients.Go(func() {
					for !over.Load() {
						if _, err := from.Ask(network, "", at, world.Patience); err != nil {
							t.Errorf("%s, %s: %v", network, at, err)
							return
						}
					}
				})
			}
		}
	}
	var taken uint64
	for i := range 9 {
		n.open(i%2 == 0)
		last, end := asked.Load(), time.Now().Add(world.Patience)
		for enough := last + 1000; last < enough; time.Sleep(time.Millisecond) {
			if now := asked.Load(); now > last {
				last, end = now, time.Now().Add(world.Patience)
			}
			if time.Now().After(end) || t.Failed() {
				t.Fatalf("%d requests were not answered", enough-last)
			}
		}
		if n.fast != nil {
			taken += n.fast.Taken()
		}
	}
	if taken < 2500 {
		t.Errorf("the program took %d packets", taken)
	}
}

// TestBulk has both ends send as much as they can, and nothing of it be wrong: segments that are
// to be cut yet, checksums that are complete, left to a device, or summed up by one, as behind a
// tunnel.
func TestBulk(t *testing.T) {
	n := newNode(t)
	for host, other := range map[*world.Host]string{n.host: "192.0.2.9", n.outside: "192.0.2.1"} {
		host.IP("link add vx type vxlan id 7 dstport 4789 remote "+other+" udpcsum dev eth0", "link set vx up mtu 1450")
	}
	n.host.Address("vx", "203.0.113.1/24", "2001:db8:2::1/64")
	n.outside.Address("vx", "203.0.113.9/24", "2001:db8:2::9/64")
	n.open(true)
	for _, offload := range []bool{true, false} {
		n.outside.Feature("eth0", "tx-checksum-ip-generic", offload)
		n.outside.Feature("vx", "tx-checksum-ip-generic", offload)
		for name, from := range map[string]struct {
			host    *world.Host
			sources []string
		}{
			"a pod": {n.client, []string{"", ""}}, "a wire": {n.outside, []string{"192.0.2.9", "2001:db8::9"}}, "a tunnel": {n.outside, []string{"203.0.113.9", "2001:db8:2::9"}},
		} {
			for i, at := range append([]string{"10.1.0.2:81", "[fd00:1::2]:81"}, bulk...) {
				t.Run(fmt.Sprintf("from %s to %s, checksums left to devices: %v", name, at, offload), func(t *testing.T) {
					if source := from.sources[i%2]; name == "a tunnel" {
						n.host.IP(fmt.Sprintf("route replace %s dev vx", source))
						n.outside.IP(fmt.Sprintf("route replace %s via %s", netip.MustParseAddrPort(at).Addr(), []string{"203.0.113.1", "2001:db8:2::1"}[i%2]))
					}
					before := n.fast.Taken()
					n.copies(t, from.host, from.sources[i%2], at)
					if taken := n.fast.Taken() - before; taken < 100 {
						t.Errorf("the program took %d packets; %+v", taken, n.fast.Status())
					}
				})
			}
		}
	}
}

// TestBig has packets of more than 64 kB, which the kernel makes of a stream of IPv4 for interfaces
// that take them, go the short way, and by the rules.
func TestBig(t *testing.T) {
	n := newNode(t)
	const size = 192 << 10
	for host, devices := range map[*world.Host][]string{n.host: {"client", "server", "eth0"}, n.client: {"eth0"}, n.server: {"eth0"}, n.outside: {"eth0"}} {
		for _, device := range devices {
			if err := host.LinkSetGSOIPv4MaxSize(host.Device(device), size); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, accelerated := range []bool{true, false} {
		n.open(accelerated)
		for from, source := range map[*world.Host]string{n.client: "", n.outside: "192.0.2.9"} {
			for _, at := range []string{"10.1.0.2:81", bulk[0]} {
				const rule = "meta length > 65535 counter; "
				n.server.Exec("nft", "add table inet big; delete table inet big; table inet big { chain in { type filter hook input priority 0; "+rule+"}; chain out { type filter hook output priority 0; "+rule+"}; }")
				n.host.Exec("nft", "add table inet big; delete table inet big; table inet big { chain by { type filter hook forward priority 0; "+rule+"}; }")
				n.copies(t, from, source, at)
				all, byRules := large(n.server), large(n.host)
				if all == 0 || accelerated && byRules >= all {
					t.Errorf("from %s to %s, accelerated: %v: %d large packets, %d of them by the rules", from.Name, at, accelerated, all, byRules)
				}
			}
		}
		if n.fast != nil && n.fast.Taken() < 1000 {
			t.Errorf("%+v", n.fast.Status())
		}
	}
}

// large is how many large packets the rules of a host have seen.
func large(host *world.Host) (sum int) {
	for _, rest := range strings.Split(host.Exec("nft", "list", "table", "inet", "big"), "packets ")[1:] {
		n, _, _ := strings.Cut(rest, " ")
		packets, _ := strconv.Atoi(n)
		sum += packets
	}
	return sum
}

// copies sends bytes to the server that sends them back.
func (n *node) copies(t *testing.T, from *world.Host, source, at string) {
	t.Helper()
	to := netip.MustParseAddrPort(at)
	listen := "10.1.0.2:81"
	if to.Addr().Is6() {
		listen = "[fd00:1::2]:81"
	}
	var l net.Listener
	n.server.In(func() (err error) { l, err = net.Listen("tcp", listen); return err })
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	c, err := from.Dial("tcp", source, at, world.Patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := make([]byte, 4<<20)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(sent)
	go func() {
		_, _ = c.Write(sent)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	var got bytes.Buffer
	for err == nil {
		_ = c.SetReadDeadline(time.Now().Add(world.Patience))
		_, err = io.CopyN(&got, c, 1<<16)
	}
	if !errors.Is(err, io.EOF) || !bytes.Equal(got.Bytes(), sent) {
		t.Errorf("%d bytes of %d came back, the same: %v; %v", got.Len(), len(sent), bytes.Equal(got.Bytes(), sent), err)
	}
}

// TestGivenBack shows that a connection goes on that has gone the short way, when connection
// tracking asks for the numbers of segments again.
func TestGivenBack(t *testing.T) {
	n := newNode(t)
	n.open(true)
	for i, at := range bulk {
		var l net.Listener
		n.server.In(func() (err error) {
			l, err = net.Listen("tcp", []string{"10.1.0.2:81", "[fd00:1::2]:81"}[i])
			return err
		})
		defer func() { _ = l.Close() }()
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}
		}()
		c, err := n.client.Dial("tcp", "", at, world.Patience)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		echo := func(bytes int) error {
			sent := make(chan error, 1)
			go func() {
				_, err := c.Write(make([]byte, bytes))
				sent <- err
			}()
			var err error
			for piece := 1 << 16; bytes > 0 && err == nil; bytes -= piece {
				_ = c.SetDeadline(time.Now().Add(world.Patience))
				_, err = io.CopyN(io.Discard, c, int64(min(piece, bytes)))
			}
			return errors.Join(err, <-sent)
		}
		if err := echo(32 << 20); err != nil {
			t.Fatal(err)
		}
		n.open(false)
		n.host.In(func() error {
			tracking, err := conntrack.Open()
			if err != nil {
				return err
			}
			return errors.Join(tracking.Tolerate(t.Context()), tracking.Close())
		})
		for key := range established.Sysctls {
			n.host.Set(key, "0")
		}
		if err := echo(1 << 20); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		for key := range established.Sysctls {
			n.host.Set(key, "1")
		}
		n.open(true)
	}
}
