package announce

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/ping"
	"sluice.dev/sluice/test/world"
)

// fixture is a node and a client of a subnet, in namespaces.
type fixture struct {
	t            *testing.T
	node, client *world.Host
	*Responder
	mac string // of the node
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, node: world.NewHost(t, "node"), client: world.NewHost(t, "client")}
	f.node.Join("eth0", f.client, "eth0")
	f.node.Address("eth0", "192.0.2.1/24", "2001:db8::1/64")
	f.client.Address("eth0", "192.0.2.100/24", "2001:db8::100/64")
	f.mac = f.node.Device("eth0").Attrs().HardwareAddr.String()
	ctx, cancel := context.WithCancel(t.Context())
	f.node.In(func() error {
		segments, err := link.WatchSegments(ctx, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		f.Responder, err = Open(segments, slog.New(slog.DiscardHandler))
		return err
	})
	var running sync.WaitGroup
	running.Go(func() { f.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return f
}

// neighbour is the MAC that the client has for an address; "": none.
func (f *fixture) neighbour(a netip.Addr) string {
	f.t.Helper()
	list, err := f.client.NeighList(0, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, n := range list {
		if n.IP.Equal(net.IP(a.AsSlice())) && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0 {
			return n.HardwareAddr.String()
		}
	}
	return ""
}

// ask has the client send something to an address, so that it asks where that is.
func (f *fixture) ask(a netip.Addr) {
	f.t.Helper()
	if err := f.client.Do(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(a, 9).String())
		if err != nil {
			return err
		}
		_, err = c.Write([]byte("x"))
		_ = c.Close()
		return err
	}); err != nil {
		f.t.Logf("send to %s: %v", a, err) // an earlier question had no answer
	}
}

// await waits for a condition.
func (f *fixture) await(what string, so func() bool) {
	f.t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("%s: not so after 30 s", what)
		}
	}
}

func ip(text string) netip.Addr { return netip.MustParseAddr(text) }

// A client finds an address of either family at the node that answers for it, and no other.
func TestAnswer(t *testing.T) {
	f := newFixture(t)
	for _, a := range []netip.Addr{ip("192.0.2.7"), ip("2001:db8::7")} {
		f.Answer(a, nil)
		f.await("neighbours are told of "+a.String(), func() bool { return f.Counts().Unasked > 0 })
		f.await("the client finds "+a.String(), func() bool { f.ask(a); return f.neighbour(a) == f.mac })
		answers := f.Counts().Answers
		if answers == 0 {
			t.Errorf("%s: nobody was answered", a)
		}
		f.client.IP("neigh flush all")
		f.Stop(a)
		f.await("it has stopped", func() bool { return f.Counts().Addresses == 0 })
		f.ask(a)
		// The question for another address comes after it, and gets its answer.
		other := a.Next()
		f.Answer(other, nil)
		f.await("the client finds "+other.String(), func() bool { f.ask(other); return f.neighbour(other) == f.mac })
		if got := f.neighbour(a); got != "" {
			t.Errorf("%s is at %s still", a, got)
		}
		f.Stop(other)
	}
}

// A client that knows another MAC for an address learns the node's unasked.
func TestUnasked(t *testing.T) {
	f := newFixture(t)
	for _, a := range []netip.Addr{ip("192.0.2.7"), ip("2001:db8::7")} {
		f.client.IP(fmt.Sprintf("neigh replace %s lladdr 02:00:00:00:00:01 dev eth0 nud stale", a))
		f.Answer(a, nil)
		f.await("the client learns "+a.String(), func() bool { return f.neighbour(a) == f.mac })
	}
	f.await("it is repeated", func() bool { return f.Counts().Unasked >= uint64(3*len(repeats)) })
	if n := f.Counts().Answers; n != 0 {
		t.Errorf("%d questions were answered, and none was asked", n)
	}
}

// However fast an address comes and goes, neighbours are told of it once a second at most; and once
// it has stayed, as often as ever.
func TestSpacing(t *testing.T) {
	f := newFixture(t)
	for _, a := range []netip.Addr{ip("192.0.2.7"), ip("2001:db8::7")} {
		each := uint64(len(unasked(mac{}, a)))
		before, begun := f.Counts().Unasked, time.Now()
		for time.Since(begun) < 2500*time.Millisecond {
			f.Answer(a, nil)
			time.Sleep(7 * time.Millisecond)
			f.Stop(a)
		}
		if n, most := (f.Counts().Unasked-before)/each, uint64(time.Since(begun)/spacing)+1; n == 0 || n > most {
			t.Errorf("neighbours were told of %s %d times within %v", a, n, time.Since(begun))
		}
		before = f.Counts().Unasked
		f.Answer(a, nil)
		f.await("it is repeated", func() bool { return f.Counts().Unasked >= before+each*uint64(len(repeats)) })
		f.Stop(a)
	}
}

// An address is answered for on the interfaces that are named, or those with a subnet of its
// family; on one that comes later, too.
func TestInterfaces(t *testing.T) {
	f := newFixture(t)
	on, off := ip("192.0.2.7"), ip("192.0.2.8")
	f.Answer(off, []string{"eth1"})
	f.Answer(on, []string{"eth0", "eth1"})
	f.await("the client finds it", func() bool { f.ask(off); f.ask(on); return f.neighbour(on) == f.mac })
	if got := f.neighbour(off); got != "" {
		t.Errorf("an address of another interface is at %s", got)
	}
	f.node.Join("eth1", f.client, "eth1")
	f.client.Address("eth1", "198.51.100.100/24")
	f.client.Behind("eth1", "192.0.2.8/32")
	f.await("the client finds it at the new interface", func() bool { f.ask(off); return f.neighbour(off) != "" })
	without := ip("198.51.100.7")
	f.Answer(without, nil)
	f.await("neighbours are told", func() bool { return f.Counts().Unasked > 0 })
	f.ask(without)
	f.node.Address("eth1", "198.51.100.1/24")
	f.await("the client finds it once there is a subnet", func() bool { f.ask(without); return f.neighbour(without) != "" })
}

// As many addresses of IPv6 can be answered for as there are, though the kernel limits how many
// groups a socket can join.
func TestManyGroups(t *testing.T) {
	f := newFixture(t)
	a := ip("2001:db8::1:0")
	for range 3000 {
		a = a.Next()
		f.Answer(a, nil)
	}
	f.await("the client finds the last", func() bool { f.ask(a); return f.neighbour(a) == f.mac })
}

// Frames say what they should, and what is no question is none.
func TestFrames(t *testing.T) {
	own, other := mac{2, 0, 0, 0, 0, 1}, mac{2, 0, 0, 0, 0, 2}
	request := arp(arpRequest, other, ip("192.0.2.100"), broadcast, ip("192.0.2.7"))
	q, ok := readARP(request)
	if want := (question{ip("192.0.2.7"), ip("192.0.2.100"), other}); !ok || q != want {
		t.Errorf("got %+v, %v, want %+v", q, ok, want)
	}
	if got, want := q.answer(own), arp(arpReply, own, ip("192.0.2.7"), other, ip("192.0.2.100")); string(got) != string(want) {
		t.Errorf("got %x, want %x", got, want)
	}
	for n := range request {
		if _, ok := readARP(request[:n]); ok {
			t.Errorf("%d bytes are a question", n)
		}
	}
	if _, ok := readARP(q.answer(own)); ok {
		t.Error("a reply is a question")
	}
	na := advertisement(own, ip("2001:db8::7"), multicastMAC(allNodes), allNodes, override)
	if _, ok := readSolicitation(na); ok {
		t.Error("an advertisement is a question")
	}
	if sum := ping.Checksum6(ip("2001:db8::7"), allNodes, na[ipv6Size:]); sum != 0 {
		t.Errorf("the checksum does not fit: %x", sum)
	}
	if got, want := solicitedNode(ip("2001:db8::12:3456")), ip("ff02::1:ff12:3456"); got != want {
		t.Errorf("questions go to %s, want %s", got, want)
	}
}

// FuzzQuestion reads anything.
func FuzzQuestion(f *testing.F) {
	f.Add(arp(arpRequest, mac{2}, ip("192.0.2.100"), broadcast, ip("192.0.2.7")))
	f.Add(advertisement(mac{2}, ip("2001:db8::7"), broadcast, allNodes, override))
	f.Fuzz(func(t *testing.T, frame []byte) {
		for _, read := range []func([]byte) (question, bool){readARP, readSolicitation} {
			if q, ok := read(frame); ok && len(q.answer(mac{2})) < arpSize {
				t.Errorf("a short answer to %+v", q)
			}
		}
	})
}
