package conntrack

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/netns"
)

// router is a node between a client and a server, each in a namespace of its own.
type router struct {
	client, node, server *netns.NS
	conn                 *Conn
}

const (
	natRules = `table inet nat {
		chain pre { type nat hook prerouting priority -100
			ip daddr 10.96.0.1 meta l4proto { tcp, udp } dnat ip to 10.9.2.2:8080
			ip6 daddr fd96::1 meta l4proto { tcp, udp } dnat ip6 to [fd09:2::2]:8080
		}
		chain post { type nat hook postrouting priority 100
			meta l4proto tcp ct original proto-dst 81 masquerade
			meta l4proto udp ct original proto-dst 81 masquerade
		}
		chain track { type filter hook forward priority 0
			ct state invalid counter drop
		}
	}`
	labelRules = `table inet labels {
		counter cut {
		}
		chain forward { type filter hook forward priority -1
			ct label 127 counter name cut drop
		}
		chain never {
			ct label set 127
		}
	}`
)

func newRouter(t *testing.T) *router {
	t.Helper()
	r := &router{client: testNS(t), node: testNS(t), server: testNS(t)}
	for i, end := range []*netns.NS{r.client, r.server} {
		dev := fmt.Sprintf("e%d", i+1)
		if err := netns.Veth(r.node, dev, end, "eth0"); err != nil {
			t.Fatal(err)
		}
		for _, net := range []string{"10.9.%d.%d/24", "fd09:%d::%d/64"} {
			first, second := netip.MustParsePrefix(fmt.Sprintf(net, i+1, 1)), netip.MustParsePrefix(fmt.Sprintf(net, i+1, 2))
			all := netip.PrefixFrom(first.Addr(), 0).Masked()
			err := errors.Join(r.node.Address(dev, first), end.Address("eth0", second), end.Route(all, first.Addr(), "eth0"))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		if err := r.node.Sysctl(key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	r.conn = testConn(t, r.node)
	return r
}

func run(t *testing.T, ns *netns.NS, name string, args ...string) string {
	t.Helper()
	out, err := ns.Run(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// cutPackets is the number of packets that were dropped for the label.
func (r *router) cutPackets(t *testing.T) (n uint64) {
	t.Helper()
	err := r.node.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		cut, err := c.GetObject(&nftables.NamedObj{Table: &nftables.Table{Family: nftables.TableFamilyINet, Name: "labels"}, Name: "cut", Type: nftables.ObjTypeCounter})
		if err == nil {
			n = cut.(*nftables.NamedObj).Obj.(*expr.Counter).Packets
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// talk is a flow between two ends, each of which can read and write.
type talk struct{ client, server net.Conn }

// open begins a flow to an address and has both ends speak once.
func (r *router) open(t *testing.T, network, server, at string) talk {
	t.Helper()
	var k talk
	accept := func() net.Conn { return nil }
	do := func(ns *netns.NS, f func() error) {
		t.Helper()
		if err := ns.Do(f); err != nil {
			t.Fatal(err)
		}
	}
	do(r.server, func() error {
		if network == "udp" {
			p, err := net.ListenPacket(network, server)
			if err == nil {
				t.Cleanup(func() { _ = p.Close() })
				accept = func() net.Conn { return answering(t, p) }
			}
			return err
		}
		l, err := net.Listen(network, server)
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
			accept = func() net.Conn {
				c, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
		}
		return err
	})
	do(r.client, func() (err error) {
		k.client, err = net.DialTimeout(network, at, 5*time.Second)
		return err
	})
	t.Cleanup(func() { _ = k.client.Close() })
	if _, err := k.client.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	k.server = accept()
	t.Cleanup(func() { _ = k.server.Close() })
	if network == "tcp" {
		hear(t, k.server, "first")
	}
	k.works(t, "at first")
	return k
}

// answering receives the first datagram and returns the way back to its sender.
func answering(t *testing.T, p net.PacketConn) net.Conn {
	t.Helper()
	_ = p.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, from, err := p.ReadFrom(make([]byte, 64))
	if err != nil {
		t.Fatal(err)
	}
	return peer{p.(*net.UDPConn), from}
}

// peer is an unconnected socket that speaks to one address.
type peer struct {
	*net.UDPConn
	to net.Addr
}

func (p peer) Write(b []byte) (int, error) { return p.WriteTo(b, p.to) }

func say(t *testing.T, c net.Conn, what string) {
	t.Helper()
	if _, err := c.Write([]byte(what)); err != nil {
		t.Fatal(err)
	}
}

// hear reads until it has heard what is expected, possibly after what was held up before.
func hear(t *testing.T, c net.Conn, what string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	var heard []byte
	b := make([]byte, 64)
	for !bytes.Contains(heard, []byte(what)) {
		n, err := c.Read(b)
		if err != nil {
			t.Fatalf("heard %q, want %q: %v", heard, what, err)
		}
		heard = append(heard, b[:n]...)
	}
}

func (k talk) works(t *testing.T, when string) {
	t.Helper()
	say(t, k.client, "question "+when)
	hear(t, k.server, "question "+when)
	say(t, k.server, "answer "+when)
	hear(t, k.client, "answer "+when)
}

// silent says something in both directions and sees the packets dropped.
func (r *router) silent(t *testing.T, k talk) {
	t.Helper()
	for _, way := range []struct{ from, to net.Conn }{{k.client, k.server}, {k.server, k.client}} {
		before := r.cutPackets(t)
		say(t, way.from, "held up")
		deadline := time.Now().Add(5 * time.Second)
		for r.cutPackets(t) == before {
			if time.Now().After(deadline) {
				t.Fatal("no packet was dropped")
			}
			time.Sleep(time.Millisecond)
		}
		_ = way.to.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if n, err := way.to.Read(make([]byte, 64)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read %d, %v through a flow that was cut", n, err)
		}
	}
}

// one is the entry of a protocol in the router's table.
func (r *router) one(t *testing.T) Flow {
	t.Helper()
	var all []Flow
	if _, err := r.conn.Sweep(t.Context(), func(f Flow) bool { all = append(all, f); return false }); err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 {
		t.Fatalf("%d entries, want one: %+v", len(all), all)
	}
	return all[0]
}

func TestRelabel(t *testing.T) {
	server := map[string]string{"v4": "10.9.2.2:8080", "v6": "[fd09:2::2]:8080"}
	paths := map[string]map[string]string{
		"direct":                     server,
		"translated":                 {"v4": "10.96.0.1:80", "v6": "[fd96::1]:80"},
		"translated and masqueraded": {"v4": "10.96.0.1:81", "v6": "[fd96::1]:81"},
	}
	for _, network := range []string{"tcp", "udp"} {
		for family, server := range server {
			for path, at := range paths {
				for _, old := range []bool{false, true} {
					if !old && path != "translated" {
						continue // no different from that, once there is room for labels
					}
					t.Run(fmt.Sprintf("%s/%s/%s/old=%v", network, family, path, old), func(t *testing.T) {
						t.Parallel()
						r := newRouter(t)
						run(t, r.node, "nft", natRules)
						if !old {
							run(t, r.node, "nft", labelRules)
						}
						testRelabel(t, r, network, server, at[family], old)
					})
				}
			}
		}
	}
}

func testRelabel(t *testing.T, r *router, network, server, at string, old bool) {
	k := r.open(t, network, server, at)
	if old {
		run(t, r.node, "nft", labelRules)
	}
	before := r.one(t)
	relabel := func(addrs []netip.Addr, cut bool, want int) {
		t.Helper()
		n, _, err := r.conn.Relabel(t.Context(), addrs, func(f Flow) bool {
			if f.Orig != before.Orig || f.Reply != before.Reply || f.Status&StatusSeenReply == 0 {
				t.Errorf("asked about %+v, want %+v", f, before)
			}
			return cut
		})
		if n != want || err != nil {
			t.Fatalf("changed %d, %v; want %d", n, err, want)
		}
		if after := r.one(t); after.Orig != before.Orig || after.Reply != before.Reply || after.Cut() != (cut && want > 0) ||
			before.Status&^after.Status&(StatusSNAT|StatusDNAT|StatusSeenReply|StatusAssured) != 0 {
			t.Fatalf("entry %+v, want %+v with cut=%v", after, before, cut)
		}
	}
	client := []netip.Addr{before.Orig.Src.Addr()}
	backend := []netip.Addr{before.Reply.Src.Addr()}
	relabel([]netip.Addr{netip.MustParseAddr("10.9.9.9"), netip.MustParseAddr("fd09:9::9")}, true, 0)
	relabel([]netip.Addr{}, true, 0)
	relabel(client, false, 0)
	relabel(client, true, 1)
	r.silent(t, k)
	if n, _, err := r.conn.Relabel(t.Context(), backend, func(Flow) bool { return true }); n != 0 || err != nil {
		t.Fatalf("cut what is cut: changed %d, %v", n, err)
	}
	relabel(backend, false, 1)
	k.works(t, "after it was released")
	relabel(nil, true, 1)
	r.silent(t, k)
	relabel(append(client, backend...), false, 1)
	k.works(t, "at last")
	if network == "udp" {
		gone := before.Orig
		gone.Src = netip.AddrPortFrom(gone.Src.Addr(), 9)
		for i, tuple := range []Tuple{before.Orig, before.Reply} {
			cut := i == 0
			n, err := r.conn.RelabelEach(t.Context(), []Tuple{gone, tuple, gone}, func(f Flow) bool { return f.Reply == before.Reply && cut })
			if after := r.one(t); n != 1 || err != nil || after.Cut() != cut {
				t.Fatalf("one by one: changed %d, %v; entry %+v, want cut=%v", n, err, after, cut)
			}
		}
		k.works(t, "one by one")
	}
}

// TestRelabelICMP has a flow without ports labelled, and made anew.
func TestRelabelICMP(t *testing.T) {
	for _, server := range []string{"10.9.2.2", "fd09:2::2"} {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/old=%v", server, old), func(t *testing.T) {
				r := newRouter(t)
				run(t, r.node, "nft", natRules)
				if !old {
					run(t, r.node, "nft", labelRules)
				}
				c := r.ping(t, server)
				_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
				if _, err := c.Read(make([]byte, 64)); err != nil {
					t.Fatal(err)
				}
				if old {
					run(t, r.node, "nft", labelRules)
				}
				isPing := func(f Flow) bool { return f.Orig.ICMP.ID == 77 }
				if n, _, err := r.conn.Relabel(t.Context(), nil, isPing); n != 1 || err != nil {
					t.Fatalf("changed %d, %v; want 1", n, err)
				}
				c = r.ping(t, server)
				for deadline := time.Now().Add(5 * time.Second); r.cutPackets(t) == 0; time.Sleep(time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatal("no packet was dropped")
					}
				}
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
				if n, err := c.Read(make([]byte, 64)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("read %d, %v through a flow that was cut", n, err)
				}
			})
		}
	}
}

// ping sends an echo request with the identifier 77.
func (r *router) ping(t *testing.T, server string) (c net.Conn) {
	t.Helper()
	network, request := "ip4:icmp", []byte{8, 0, 0xf7, 0xb1, 0, 77, 0, 1}
	if strings.Contains(server, ":") {
		network, request = "ip6:ipv6-icmp", []byte{128, 0, 0, 0, 0, 77, 0, 1} // the kernel fills in this checksum
	}
	err := r.client.Do(func() (err error) {
		c, err = net.Dial(network, server)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	say(t, c, string(request))
	return c
}

// TestRelabelWithoutRoom has no rule set labels: there is nothing to be done, and it is said.
func TestRelabelWithoutRoom(t *testing.T) {
	c := testConn(t, testNS(t))
	create(t, c, table...)
	n, _, err := c.Relabel(t.Context(), nil, func(f Flow) bool { return f.Protocol == model.SCTP })
	if n != 0 || err == nil || !strings.Contains(err.Error(), "no labels") {
		t.Errorf("changed %d, %v", n, err)
	}
	if got := flows(t, c); len(got) != len(table) {
		t.Errorf("left %q", got)
	}
}

// TestRelabelMany labels some of more flows than fit into one batch, among them such as end
// meanwhile.
func TestRelabelMany(t *testing.T) {
	for _, room := range []bool{true, false} {
		t.Run(fmt.Sprintf("room=%v", room), func(t *testing.T) {
			t.Parallel()
			ns := testNS(t)
			c := testConn(t, ns)
			if room {
				run(t, ns, "nft", labelRules)
			}
			var entries []entry
			for i := range uint16(1000) {
				entries = append(entries, entry{model.UDP, fmt.Sprintf("10.1.0.1:%d", 1000+i), "10.96.0.1:53", "10.2.0.1:5353"})
			}
			create(t, c, entries...)
			run(t, ns, "nft", labelRules)
			odd := func(f Flow) bool { return f.Orig.Src.Port()%2 == 1 }
			var all []Flow
			if _, err := c.Sweep(t.Context(), func(f Flow) bool {
				if odd(f) {
					f.cut = true
					all = append(all, f)
				}
				return f.Orig.Src.Port() < 1100
			}); err != nil {
				t.Fatal(err)
			}
			if n, err := c.labelAll(t.Context(), all); n != 450 || err != nil {
				t.Fatalf("labelled %d, %v; want 450", n, err)
			}
			n, _, err := c.Relabel(t.Context(), nil, func(f Flow) bool {
				if f.Cut() != odd(f) {
					t.Errorf("%+v is cut: %v", f, f.Cut())
				}
				return false
			})
			if n != 450 || err != nil {
				t.Errorf("released %d, %v; want 450", n, err)
			}
		})
	}
}

// TestRestoreInItsPlace has packets of a flow, from either end, make an entry before the old one is
// back.
func TestRestoreInItsPlace(t *testing.T) {
	for name, meanwhile := range map[string]entry{
		"by the client":    {model.UDP, "10.1.0.1:1000", "10.96.0.1:53", "10.2.0.2:5353"},
		"by the other end": {model.UDP, "10.2.0.1:5353", "10.1.0.1:1000", ""},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testNS(t)
			run(t, ns, "nft", labelRules)
			c := testConn(t, ns)
			create(t, c, table[0])
			var old Flow
			if _, err := c.Sweep(t.Context(), func(f Flow) bool { old = f; return true }); err != nil {
				t.Fatal(err)
			}
			create(t, c, meanwhile)
			old.cut = true
			if made, err := c.restore(&old); !made || err != nil {
				t.Fatal(made, err)
			}
			n := 0
			if _, err := c.Sweep(t.Context(), func(f Flow) bool {
				if f.Orig == old.Orig && f.Reply == old.Reply && f.Cut() {
					n++
				}
				return false
			}); err != nil || n != 1 {
				t.Errorf("%d entries like the old one, %v; all: %q", n, err, flows(t, c))
			}
		})
	}
}
