package heartbeat

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// nodes are three, which are one machine's loopback addresses.
var nodes = map[string][]netip.Addr{"n1": {addr("127.83.0.1")}, "n2": {addr("127.83.0.2")}, "n3": {addr("127.83.0.3")}}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// start runs a node's part, and returns what stops it.
func start(t *testing.T, node string, peers map[string][]netip.Addr, change ...func(*Heartbeat)) (*Heartbeat, func()) {
	h := New(node, slog.New(slog.DiscardHandler))
	for _, f := range change {
		f(h)
	}
	h.SetPeers(peers)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { h.Run(ctx) })
	stop := func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return h, stop
}

// silentOf are the nodes of these names, of which those after a dash are heard and do not hear.
func silentOf(names []string) map[string]bool {
	all := map[string]bool{}
	for _, n := range names {
		name, deaf := strings.CutPrefix(n, "-")
		all[name] = !deaf
	}
	return all
}

// await waits until exactly these nodes are silent.
func await(t *testing.T, h *Heartbeat, want ...string) {
	t.Helper()
	all := silentOf(want)
	var got map[string]bool
	for limit := time.After(30 * time.Second); ; {
		select {
		case got = <-h.Silent():
			if maps.Equal(got, all) {
				return
			}
		case <-limit:
			t.Fatalf("%s finds %v silent, want %v", h.node, got, want)
		}
	}
}

// A node that ends is silent, and no longer once it is back.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := wire{at: map[netip.AddrPort]*end{}}
		first, _ := start(t, "n1", nodes, in.join)
		second, _ := start(t, "n2", nodes, in.join)
		third, stop := start(t, "n3", nodes, in.join)
		for _, h := range []*Heartbeat{first, second, third} {
			await(t, h)
		}
		stop()
		ended := time.Now()
		for _, h := range []*Heartbeat{first, second} {
			await(t, h, "n3")
		}
		if took := time.Since(ended); took < SilentAfter-Interval || took > SilentAfter+Interval {
			t.Errorf("a node that has ended is silent after %s", took)
		}
		if peers, silent := first.Counts(); peers != 2 || silent != 1 {
			t.Errorf("%d peers, %d silent", peers, silent)
		}
		start(t, "n3", nodes, in.join)
		for _, h := range []*Heartbeat{first, second} {
			await(t, h)
		}
	})
}

// Where packets come through in one direction alone, the one that is not heard is told by the next
// packet: it yields as soon as the other takes over.
func TestOneDirection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := wire{at: map[netip.AddrPort]*end{}}
		two := map[string][]netip.Addr{"n1": nodes["n1"], "n2": nodes["n2"]}
		first, _ := start(t, "n1", two, in.join)
		second, _ := start(t, "n2", two, in.join)
		await(t, first)
		await(t, second)
		time.Sleep(time.Minute)
		in.mu.Lock()
		in.cut = addr("127.83.0.2")
		in.mu.Unlock()
		cut := time.Now()
		await(t, first, "n2")
		over := time.Now()
		await(t, second, "n2", "-n1")
		if both := time.Since(over); both > Interval || time.Since(cut) > SilentAfter+2*Interval {
			t.Errorf("both announce for %v, until %v after the cut", both, time.Since(cut))
		}
		in.mu.Lock()
		in.cut = netip.Addr{}
		in.mu.Unlock()
		whole := time.Now()
		await(t, first)
		await(t, second)
		if took := time.Since(whole); took > 2*Interval {
			t.Errorf("they hear each other again after %v", took)
		}
	})
}

// A node that one of two others does not hear goes on, and learns when that one hears it again: it
// may have announced the same addresses meanwhile.
func TestOneOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := wire{at: map[netip.AddrPort]*end{}}
		first, _ := start(t, "n1", nodes, in.join)
		second, _ := start(t, "n2", nodes, in.join)
		third, _ := start(t, "n3", nodes, in.join)
		for _, h := range []*Heartbeat{first, second, third} {
			await(t, h)
		}
		cut := func(from, to netip.Addr) {
			in.mu.Lock()
			defer in.mu.Unlock()
			in.cut, in.cutTo = from, to
		}
		cut(addr("127.83.0.1"), addr("127.83.0.3"))
		await(t, third, "n1")
		await(t, first, "-n3")
		if peers, silent := first.Counts(); peers != 2 || silent != 0 {
			t.Errorf("%d peers, %d silent", peers, silent)
		}
		cut(netip.Addr{}, netip.Addr{})
		await(t, third)
		await(t, first)
	})
}

// A node that stood still does not find the others silent because it has read nothing meanwhile,
// nor have them yield: it comes back as one that was away.
func TestStoodStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, pause := range []time.Duration{SilentAfter - Interval/2, SilentAfter + Interval, 10 * SilentAfter} {
			in := wire{at: map[netip.AddrPort]*end{}, stopped: addr("127.83.0.1")}
			two := map[string][]netip.Addr{"n1": nodes["n1"], "n2": nodes["n2"]}
			first, stopFirst := start(t, "n1", two, in.join)
			second, stopSecond := start(t, "n2", two, in.join)
			await(t, first)
			await(t, second)
			time.Sleep(time.Minute)
			in.mu.Lock()
			in.until = time.Now().Add(pause)
			in.mu.Unlock()
			first.SetPeers(map[string][]netip.Addr{"n1": {nodes["n1"][0], addr("127.83.9.1")}, "n2": nodes["n2"]}) // it stops as it listens there
			var last [2]map[string]bool
			for limit := time.After(pause + 5*time.Second); limit != nil; {
				select {
				case last[0] = <-first.Silent():
					if last[0]["n2"] {
						t.Errorf("%v: it finds the other silent", pause)
					}
				case last[1] = <-second.Silent():
					if last[1]["n2"] {
						t.Errorf("%v: the other yields", pause)
					}
				case <-limit:
					limit = nil
				}
			}
			if len(last[0])+len(last[1]) != 0 {
				t.Errorf("%v: silent in the end: %v", pause, last)
			}
			stopFirst()
			stopSecond()
		}
	})
}

// Nodes hear each other by the kernel's sockets. One that comes later counts once it is heard.
func TestSockets(t *testing.T) {
	two := map[string][]netip.Addr{"n1": nodes["n1"], "n2": nodes["n2"]}
	first, _ := start(t, "n1", two)
	second, _ := start(t, "n2", two)
	for _, h := range []*Heartbeat{first, second} {
		await(t, h)
		h.SetPeers(nodes)
		await(t, h, "n3")
	}
	third, _ := start(t, "n3", nodes)
	for _, h := range []*Heartbeat{first, second, third} {
		await(t, h)
	}
}

// wire carries packets within this process, where the clock of a synctest goes on.
type wire struct {
	mu  sync.Mutex
	at  map[netip.AddrPort]*end
	cut netip.Addr // whose packets are dropped

	cutTo netip.Addr // those to there alone; the zero Addr: all

	stopped netip.Addr // whose machine stands still
	until   time.Time
}

// stand has a machine that stands still do so.
func (w *wire) stand(addr netip.Addr) {
	w.mu.Lock()
	until := w.until
	w.mu.Unlock()
	if w.stopped == addr {
		time.Sleep(time.Until(until))
	}
}

// end is a socket on a wire.
type end struct {
	wire   *wire
	at     netip.AddrPort
	come   chan came
	closed chan struct{}
}

// came is a packet, and where it is from.
type came struct {
	packet []byte
	from   netip.AddrPort
}

func (w *wire) join(h *Heartbeat) {
	var own netip.Addr // the first
	h.listen = func(at netip.AddrPort) (socket, error) {
		if !own.IsValid() {
			own = at.Addr()
		}
		w.stand(own)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.at[at] = &end{w, at, make(chan came, 10), make(chan struct{})}
		return w.at[at], nil
	}
}

func (e *end) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	select {
	case c := <-e.come:
		e.wire.stand(e.at.Addr())
		time.Sleep(time.Millisecond) // others come first
		return copy(b, c.packet), c.from, nil
	case <-e.closed:
		return 0, netip.AddrPort{}, net.ErrClosed
	}
}

func (e *end) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	e.wire.mu.Lock()
	defer e.wire.mu.Unlock()
	if other := e.wire.at[to]; other != nil && (e.at.Addr() != e.wire.cut || e.wire.cutTo.IsValid() && to.Addr() != e.wire.cutTo) {
		select {
		case other.come <- came{bytes.Clone(b), e.at}:
		default: // it is lost, as one is when nobody reads
		}
	}
	return len(b), nil
}

func (e *end) Close() error {
	e.wire.mu.Lock()
	defer e.wire.mu.Unlock()
	delete(e.wire.at, e.at)
	close(e.closed)
	return nil
}

// packet is what a node sends.
func packet(node string, hears byte) []byte {
	return append(append([]byte(magic), hears), node...)
}

// Who counts as silent follows from what came when.
func TestSilent(t *testing.T) {
	h := New("n1", slog.New(slog.DiscardHandler))
	h.SetPeers(nodes)
	now := time.Now()
	check := func(what string, at time.Time, want ...string) {
		t.Helper()
		if got, all := h.silentAt(at), silentOf(want); !maps.Equal(got, all) {
			t.Errorf("%s: %v are silent, want %v", what, got, all)
		}
	}
	check("at first", now)
	later := now.Add(2 * SilentAfter)
	check("nothing came", later, "n2", "n3")
	h.take(packet("n2", 1), addr("127.83.0.3"), later)
	h.take(packet("n9", 1), addr("127.83.0.2"), later)
	h.take(packet("n2", 1)[:5], addr("127.83.0.2"), later)
	h.take(packet("", 1), addr("127.83.0.2"), later)
	h.take([]byte("no packet of ours"), addr("127.83.0.2"), later)
	check("what is not from a node's own address is nothing", later, "n2", "n3")
	h.take(packet("n2", 1), addr("127.83.0.2"), later)
	check("one is heard, and hears", later, "n3")
	latest := later.Add(SilentAfter)
	h.take(packet("n2", 0), addr("127.83.0.2"), latest)
	check("one is heard, and does not hear", latest, "n1", "-n2", "n3")
	more := maps.Clone(nodes)
	more["n4"] = []netip.Addr{addr("127.83.0.4")}
	h.SetPeers(more)
	h.take(packet("n2", 1), addr("127.83.0.2"), latest)
	check("a node that came later", latest, "n3", "n4")
	h.take(packet("n4", 1), addr("127.83.0.4"), latest)
	check("it is heard", latest, "n3")
	last := latest.Add(time.Hour)
	h.take(packet("n2", 0), addr("127.83.0.2"), last)
	h.take(packet("n4", 0), addr("127.83.0.4"), last)
	h.take(packet("n3", 1), addr("127.83.0.3"), last)
	check("another does", last, "-n2", "-n4")
	check("that has fallen silent", last.Add(SilentAfter), "n2", "n3", "n4")
	h.take(packet("n2", 0), addr("127.83.0.2"), last.Add(SilentAfter))
	check("and the one still does not hear", last.Add(SilentAfter), "n1", "-n2", "n3", "n4")
	h.SetPeers(nil)
	check("no others", latest)
}
