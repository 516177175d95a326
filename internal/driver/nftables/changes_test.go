package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// A frontend that a client may reach before a change and after it is reached at every moment:
// a packet makes several look-ups, and finds some in the state before and the others in that after.
// First packets, of which no connection comes to be, are counted as they come and once they are
// translated.
func TestNoFirstPacketIsLost(t *testing.T) {
	t.Parallel()
	backends := func(from, n int) (all []netip.AddrPort) {
		for i := range n {
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 1, byte(from + i)}), 53))
		}
		return all
	}
	with := func(change func(*state.Frontend)) *state.Frontend {
		f := &state.Frontend{Kind: state.LoadBalancer, Service: model.Name{Namespace: "test", Name: "s"}, Backends: backends(1, 3)}
		if change != nil {
			change(f)
		}
		f.Alive, f.Serving = f.Backends, f.Backends
		return f
	}
	sticky := func(d time.Duration, b []netip.AddrPort) *state.Frontend {
		return with(func(f *state.Frontend) { f.Affinity, f.Backends = d, b })
	}
	ranges := func(cidrs ...string) *state.Frontend {
		return with(func(f *state.Frontend) { f.SourceRanges = prefixes(cidrs...) })
	}
	for _, c := range []struct {
		name  string
		turns []*state.Frontend
	}{
		{"affinity on and off", []*state.Frontend{with(nil), sticky(time.Hour, backends(1, 3))}},
		{"affinity's time-out", []*state.Frontend{sticky(time.Minute, backends(1, 3)), sticky(time.Hour, backends(1, 3))}},
		{"a backend of many with affinity", []*state.Frontend{sticky(time.Hour, backends(1, 3)), sticky(time.Hour, backends(2, 3)), sticky(time.Hour, backends(3, 3))}},
		{"all backends with affinity", []*state.Frontend{sticky(time.Hour, backends(1, 3)), sticky(time.Hour, backends(4, 3))}},
		{"all backends", []*state.Frontend{sticky(0, backends(1, 3)), sticky(0, backends(4, 3))}},
		{"one backend and many", []*state.Frontend{sticky(0, backends(1, 1)), sticky(0, backends(4, 60))}},
		{"size classes of the small and of the large", []*state.Frontend{sticky(0, backends(1, 64)), sticky(0, backends(1, 65))}},
		{"ranges come and go", []*state.Frontend{with(nil), ranges("192.0.2.0/24")}},
		{"another range", []*state.Frontend{ranges("192.0.2.0/24"), ranges("192.0.0.0/16"), ranges("192.0.2.0/28", "198.51.100.0/24")}},
		{"a Local policy", []*state.Frontend{with(nil), with(func(f *state.Frontend) { f.LocalOnly, f.Local = true, backends(1, 2) })}},
		{"a Local policy and size classes", []*state.Frontend{
			with(func(f *state.Frontend) { f.Backends, f.LocalOnly, f.Local = backends(1, 70), true, backends(4, 64) }),
			with(func(f *state.Frontend) { f.Backends, f.LocalOnly, f.Local = backends(1, 70), true, backends(4, 65) })}},
		{"a Local policy, with affinity", []*state.Frontend{
			sticky(time.Hour, backends(1, 3)),
			with(func(f *state.Frontend) { f.Affinity, f.LocalOnly, f.Local = time.Hour, true, backends(1, 2) })}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newStream(t)
			key := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: model.UDP, Port: 53}
			want := state.New()
			want.Services.Frontends[key] = c.turns[0]
			for _, b := range append(backends(1, 2), backends(4, 70)...) {
				want.Services.Hairpins[b.Addr()] = struct{}{}
			}
			adopt(t, n.driver, want)
			n.start(t)
			const changes = 200
			for i := range changes {
				f := c.turns[(i+1)%len(c.turns)]
				if i%20 == 19 {
					want.Services.Frontends[key] = f
					adopt(t, n.driver, want)
					continue
				}
				update(t, n.driver, state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{key: f}}})
			}
			n.stop(t)
			in, out, bare := n.counted(t, "in"), n.counted(t, "out"), n.counted(t, "bare")
			if in != out || in < changes {
				t.Errorf("%d of %d packets were lost in %d changes", in-out, in, changes)
			}
			if bare > 0 {
				t.Errorf("%d of %d packets went to a backend elsewhere with their client's address", bare, in)
			}
			t.Logf("%d packets", in)
		})
	}
}

// What a packet may still be led to goes in a transaction after the one that leads no further
// packets there, once those on their way have passed.
func TestLastStep(t *testing.T) {
	t.Parallel()
	backends := func(n int) (all []netip.AddrPort) {
		for i := range n {
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 1, byte(i)}), 53))
		}
		return all
	}
	key := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: model.UDP, Port: 53}
	for _, c := range []struct {
		name          string
		before, after state.Frontend
		leads, led    string // sets: an element of the one leads to those of the other
	}{
		{"a larger map of slots", state.Frontend{Backends: backends(64)}, state.Frontend{Backends: backends(65)}, "ip-frontends", "ip-backends"},
		{"a smaller one", state.Frontend{Backends: backends(65)}, state.Frontend{Backends: backends(64)}, "ip-frontends", "ip-many-backends"},
		{"no Local policy", state.Frontend{LocalOnly: true, Local: backends(1), Backends: backends(2)}, state.Frontend{Backends: backends(2)}, "ip-outside", "ip-local"},
		{"a larger map under a Local policy", state.Frontend{LocalOnly: true, Local: backends(64), Backends: backends(2)},
			state.Frontend{LocalOnly: true, Local: backends(65), Backends: backends(2)}, "ip-outside", "ip-local"},
		{"no ranges", state.Frontend{SourceRanges: prefixes("192.0.2.0/24"), Backends: backends(2)}, state.Frontend{Backends: backends(2)}, "ip-restricted", "ip-sources"},
	} {
		for _, adopts := range []bool{false, true} {
			d := openIn(t, testNS(t), Options{})
			s := state.New()
			s.Services.Frontends[key] = &c.before
			adopt(t, d, s)
			transactions, at := 0, map[string]int{}
			d.Sock.Refuse = func(messages [][]byte, labels []string) error {
				transactions++
				nft.EachMessage(slices.Concat(messages...), func(typ uint16, seq uint32, _ []byte) {
					if set, deletes := strings.CutPrefix(labels[seq], "delete elements of "); deletes {
						at[set] = transactions
					}
				})
				return nil
			}
			if adopts {
				s.Services.Frontends[key] = &c.after
				adopt(t, d, s)
			} else {
				update(t, d, state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{key: &c.after}}})
			}
			if at[c.leads] == 0 || at[c.led] <= at[c.leads] {
				t.Errorf("%s, adopts %v: the transaction of each deletion: %v, want that of %s before that of %s", c.name, adopts, at, c.leads, c.led)
			}
		}
	}
}

// stream is a node and a client outside that sends it first packets.
type stream struct {
	driver       *Driver
	node, client *world.Host
	over         atomic.Bool
	senders      sync.WaitGroup
}

func newStream(t *testing.T) *stream {
	s := &stream{node: world.NewHost(t, "node"), client: world.NewHost(t, "client")}
	s.node.Join("eth0", s.client, "eth0")
	s.node.Forward()
	s.node.Set("net.ipv4.conf.eth0.send_redirects", "0")
	s.node.IP("address add 192.0.2.1/24 dev eth0", "route add 10.1.0.0/16 via 192.0.2.3")
	s.client.IP("address add 192.0.2.2/24 dev eth0", "route add default via 192.0.2.1")
	s.driver = openIn(t, s.node.NS, Options{Options: driver.Options{}})
	s.node.Exec("nft", `
table inet watch {
	counter in {}
	counter out {}
	counter bare {}
	chain arrival {
		type filter hook prerouting priority -310
		ip daddr 10.96.0.1 counter name in
	}
	chain sent {
		type filter hook postrouting priority 310
		ct original ip daddr 10.96.0.1 ip saddr 192.0.2.2 ip daddr 10.1.1.3 counter name bare
		ct original ip daddr 10.96.0.1 counter name out drop
	}
}`)
	return s
}

// start sends until stop.
func (s *stream) start(t *testing.T) {
	for range 2 {
		s.senders.Go(func() {
			for !s.over.Load() {
				s.send(t, 100)
			}
		})
	}
}

// send sends n packets.
func (s *stream) send(t *testing.T, n int) {
	err := s.client.Do(func() error {
		sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(sock) }()
		for range n {
			if err := unix.Sendto(sock, []byte("x"), 0, &unix.SockaddrInet4{Addr: [4]byte{10, 96, 0, 1}, Port: 53}); err != nil && err != unix.ENOBUFS {
				return fmt.Errorf("send: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func (s *stream) stop(t *testing.T) {
	t.Helper()
	s.over.Store(true)
	s.senders.Wait()
	time.Sleep(100 * time.Millisecond) // the last are under way
}

// counted is how many packets were, by the name of a counter.
func (s *stream) counted(t *testing.T, counter string) (packets int) {
	t.Helper()
	out := s.node.Exec("nft", "list", "counter", "inet", "watch", counter)
	if _, err := fmt.Sscanf(out[strings.Index(out, "packets"):], "packets %d", &packets); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return packets
}

// A client whose backend has gone reaches another one with its next packet, whether or not anyone
// has made the node forget; and so does one whose packet finds that clients of the frontend are to
// be remembered, and none of the backends any more, as affinity ends at this moment.
func TestFirstPacketOfForgottenClient(t *testing.T) {
	t.Parallel()
	n := newStream(t)
	key := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: model.UDP, Port: 53}
	sticky := func(b ...string) *state.Frontend {
		all := addrPorts(b...)
		return &state.Frontend{Service: model.Name{Namespace: "test", Name: "s"}, Affinity: time.Hour, Backends: all, Alive: all, Serving: all}
	}
	want := state.New()
	want.Services.Frontends[key] = sticky("10.1.1.1:53", "10.1.1.2:53")
	adopt(t, n.driver, want)
	forgetting := n.driver.forget.Passes
	n.driver.forget.Passes = nil
	defer func() { n.driver.forget.Passes = forgetting }()
	send := func(when, to string, remembered int) {
		t.Helper()
		before := n.counted(t, "out")
		n.send(t, 1)
		if n.counted(t, "out") != before+1 {
			t.Errorf("%s: the packet is lost", when)
		}
		if out := n.node.Exec("nft", "list", "map", "inet", ruleset.TableName, "ip-affinity"); strings.Count(out, to) != remembered {
			t.Errorf("%s: remembered is not %s\n%s", when, to, out)
		}
	}
	send("at first", "10.1.1.", 1)
	for _, b := range []string{"10.1.1.3:53", "10.1.1.4:53"} {
		update(t, n.driver, state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{key: sticky(b)}}})
		send("another backend", b[:8]+" . 53", 1)
	}
	local := sticky("10.1.1.5:53")
	local.Kind, local.LocalOnly, local.Local = state.LoadBalancer, true, local.Backends
	remote := sticky("10.1.1.3:53")
	remote.Kind, local.Backends = state.LoadBalancer, addrPorts("10.1.1.3:53", "10.1.1.5:53")
	bare := n.counted(t, "bare")
	for _, f := range []*state.Frontend{remote, local} {
		update(t, n.driver, state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{key: f}, Hairpins: map[netip.Addr]bool{local.Local[0].Addr(): true}}})
		send("a Local policy", "10.1.1.3 . 53", 1)
	}
	if n.counted(t, "bare") > bare {
		t.Error("a Local policy: a backend elsewhere is asked by the client's address")
	}

	var backends []nft.Element
	n.driver.ruleset.EachElement(&state.State{Services: n.driver.state.Services}, func(e *nft.Element) {
		if e.Set.Name == "ip-affine-to" {
			backends = append(backends, *e)
		}
	})
	if err := n.driver.deleteElements(backends); err != nil || len(backends) == 0 {
		t.Fatal(err, backends)
	}
	send("none that affinity may keep to", "10.1.1.", 1)
}
