package nftables_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

func stateless(virtual string, is4 bool, ports ...model.PortSpan) *model.Farm {
	return &model.Farm{Name: "web", Mode: model.StatelessDNAT, Addresses: []model.FarmAddress{at(virtual, ports...)}, Backends: backends(3, is4, 8080)}
}

// TestStateless has all backends serve, with and without another port, and connection tracking see
// nothing of it.
func TestStateless(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, client string) {
		other := stateless(virtual, is4, model.PortSpan{First: 81, Last: 90})
		other.Name, other.Scheduler, other.Backends = "range", model.SymHash, backends(3, is4, 0)
		w.set(stateless(virtual, is4, port(80)), other)
		for _, network := range []string{"tcp", "udp"} {
			for at, want := range map[string]uint16{"80": 8080, "81": 81} {
				if n := w.answers(40, network, hostPort(virtual, at)); len(n) != 3 {
					t.Errorf("%s, port %s: %v", network, at, n)
				}
				g, err := w.ask(network, hostPort(virtual, at))
				if err != nil || g.Client.Addr().String() != client || g.Port != want {
					t.Errorf("%s, port %s: %+v, %v", network, at, g, err)
				}
			}
		}
		if all := w.tracked(); len(all) > 0 {
			t.Errorf("connections are tracked: %s", all)
		}
		w.set()
		if strings.Contains(w.list(), "vmap") {
			t.Errorf("rules stay that nothing needs:\n%s", w.list())
		}
	})
}

// tracked are the connections with ports that the balancer tracks.
func (w *site) tracked() (all []string) {
	w.t.Helper()
	out, err := w.balancer.Run("cat", "/proc/net/nf_conntrack")
	w.must(err)
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "dport=") {
			all = append(all, line)
		}
	}
	return all
}

// TestStatelessStaysPut has a connection go on while backends come, go and return, other than its
// own, and others take over what is gone.
func TestStatelessStaysPut(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, _ string) {
		for _, s := range []model.FarmScheduler{model.RoundRobin, model.Hash, model.Maglev} {
			f := func(down int) *model.Farm {
				f := stateless(virtual, is4, port(80))
				f.Scheduler, f.HashBy, f.Refuse = s, model.SrcIP|model.SrcPort, true
				for i := range f.Backends {
					if i == down || down == 3 {
						f.Backends[i].State = model.BackendDown
					}
				}
				return f
			}
			w.set(f(-1))
			c, err := w.client.Dial("tcp", "", hostPort(virtual, "80"), world.Patience)
			w.must(err)
			defer func() { _ = c.Close() }()
			first, err := exchange(c)
			w.must(err)
			for down := range 3 {
				if string('1'+rune(down)) == first.Server[1:] {
					continue
				}
				for _, d := range []int{down, -1} {
					w.set(f(d))
					if g, err := exchange(c); err != nil || g.Server != first.Server {
						t.Fatalf("%s, %d down: %+v, %v", s, d, g, err)
					}
				}
				w.set(f(down))
				if n := w.answers(40, "tcp", hostPort(virtual, "80")); len(n) != 2 || n[f(0).Backends[down].Name] != 0 {
					t.Errorf("%s, %d down: %v", s, down, n)
				}
			}
			w.set(f(3))
			if _, err := w.ask("tcp", hostPort(virtual, "80")); !strings.Contains(err.Error(), syscall.ECONNREFUSED.Error()) {
				t.Errorf("%s, nobody serves: %v", s, err)
			}
		}
	})
}

// TestStatelessClaims has two farms share a backend: the first gets its answers, and the other one
// once that is gone.
func TestStatelessClaims(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	farms := map[string]*model.Farm{}
	for name, at := range map[string]uint16{"a": 80, "b": 81} {
		farms[name] = stateless(virtual4, true, port(at))
		farms[name].Name, farms[name].Backends = name, backends(1, true, 8080)
	}
	ask := func(port string, want bool) {
		t.Helper()
		if !want {
			w.silent("udp", virtual4+":"+port, "the backend's answers are another farm's")
		} else if _, err := w.ask("udp", virtual4+":"+port); err != nil {
			t.Errorf("port %s: %v\n%s", port, err, w.list())
		}
	}
	w.set(farms["b"])
	ask("81", true)
	w.set(farms["b"], farms["a"])
	ask("80", true)
	ask("81", false)
	w.set(farms["b"])
	ask("81", true)
	two := *farms["b"]
	two.Addresses = []model.FarmAddress{at(virtual4, port(80), port(81))}
	w.set(&two)
	ask("80", true)
}

// TestStatelessUnsummed has a packet of UDP without a checksum stay one.
func TestStatelessUnsummed(t *testing.T) {
	t.Parallel()
	w := newSite(t, 3)
	w.set(stateless(virtual4, true, port(80)))
	c, err := w.client.Dial("udp", "", virtual4+":80", world.Patience)
	w.must(err)
	defer func() { _ = c.Close() }()
	raw, err := c.(syscall.Conn).SyscallConn()
	w.must(err)
	w.must(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) }))
	w.must(err)
	_, err = exchange(c)
	w.must(err)
}

// TestStatelessSCTP sends a packet and its answer, and looks at their checksums: the kernel has no
// SCTP of its own here.
func TestStatelessSCTP(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, _ string) {
		f := stateless(virtual, is4, port(80))
		f.Addresses[0].Protocols, f.Backends = []model.Protocol{model.SCTP}, backends(1, is4, 8080)
		w.set(f)
		server, client := w.sctp(w.servers[0], is4), w.sctp(w.client, is4)
		_, err := client.WriteTo(sctpPacket(4000, 80), &net.IPAddr{IP: net.ParseIP(virtual)})
		w.must(err)
		from := w.received(server, 4000, 8080)
		_, err = server.WriteTo(sctpPacket(8080, 4000), from)
		w.must(err)
		if from := w.received(client, 80, 4000); from.String() != virtual {
			t.Errorf("the answer is from %s", from)
		}
	})
}

func (w *site) sctp(ns *world.Host, is4 bool) (c net.PacketConn) {
	w.t.Helper()
	network := map[bool]string{true: "ip4:132", false: "ip6:132"}[is4]
	ns.In(func() (err error) { c, err = net.ListenPacket(network, ""); return err })
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// sctpPacket is a header and some bytes, RFC 9260.
func sctpPacket(from, to uint16) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, 11, 0, 0, 4) // COOKIE ACK
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// received reads one packet, and returns who sent it.
func (w *site) received(c net.PacketConn, from, to uint16) net.Addr {
	w.t.Helper()
	b := make([]byte, 2000)
	w.must(c.SetReadDeadline(time.Now().Add(5 * time.Second)))
	n, sender, err := c.ReadFrom(b)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, w.list())
	}
	if want := sctpPacket(from, to); !bytes.Equal(b[:n], want) {
		w.t.Errorf("got %x, want %x", b[:n], want)
	}
	return sender
}
