package policytest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/drivertest"
)

var threePods = map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]}

// TestOffload shows that packets of established connections meet no chain any more, and that their
// bytes are counted (projectcalico/calico#13804).
func TestOffload(t *testing.T) {
	t.Parallel()
	k := byNFTables.kernel(t, threePods, offloading(t))
	if err := k.mesh.Node.Sysctl("net.netfilter.nf_conntrack_acct", "1"); err != nil {
		t.Fatal(err)
	}
	k.declare(t, row{services: frontB()})
	pairs := k.pairs(t)
	k.offloaded(t, pairs)
	k.shutForward(t)
	before := k.flows(t)
	together(pairs, func(name string, p *drivertest.Pair) { goesOn(t, name, p) })
	after := k.flows(t)
	for name, p := range pairs {
		if from := clientOf(p); after[from].Bytes <= before[from].Bytes {
			t.Errorf("%s: %d bytes, and after both ends spoke %d", name, before[from].Bytes, after[from].Bytes)
		}
	}
}

// TestOffloadedLater shows that a flow of UDP is put into the flowtable only after the packets that
// DNS takes, and at once where they are not counted, as it began before.
func TestOffloadedLater(t *testing.T) {
	t.Parallel()
	k := byNFTables.kernel(t, threePods, offloading(t))
	for counted, least := range map[string]uint64{"1": 5, "0": 0} {
		t.Run("counted: "+counted, func(t *testing.T) {
			k.declare(t, row{services: frontB()})
			if err := k.mesh.Node.Sysctl("net.netfilter.nf_conntrack_acct", counted); err != nil {
				t.Fatal(err)
			}
			pairs := k.pairs(t)
			for missing := true; missing && !t.Failed(); {
				missing = false
				together(pairs, func(name string, p *drivertest.Pair) { goesOn(t, name, p) })
				for from, f := range k.flows(t) {
					if f.Protocol != udp {
						continue
					}
					if missing = missing || !f.Offloaded(); !f.Offloaded() {
						continue
					}
					if e := k.entry(t, udp, from, f.Orig.Dst); e.Forward.Packets+e.Reverse.Packets < least {
						t.Errorf("%v is in the flowtable after %d and %d packets", from, e.Forward.Packets, e.Reverse.Packets)
					}
				}
			}
		})
	}
}

// TestCutOffloaded shows that what policy comes to forbid ends also where it passes by the chains.
func TestCutOffloaded(t *testing.T) {
	t.Parallel()
	k := byNFTables.kernel(t, threePods, offloading(t))
	k.cut(t, func(pairs map[string]*drivertest.Pair) { k.offloaded(t, pairs) })
}

// TestCutOffloadedLate shows that a connection is cut that was put into the flowtable by a packet
// on its way while it was labelled, and that others go on meanwhile.
func TestCutOffloadedLate(t *testing.T) {
	t.Parallel()
	k := byNFTables.kernel(t, threePods, offloading(t))
	k.declare(t, row{services: frontB()})
	pairs := k.pairs(t)
	other, err := k.mesh.Pair(t, "c", tcp, netip.AddrPortFrom(names["a"][0], 80), netip.AddrPortFrom(names["a"][0], 80))
	if err != nil {
		t.Fatal(err)
	}
	k.offloaded(t, pairs)
	ct := k.conntrack(t)
	if _, _, err := ct.Relabel(t.Context(), nil, func(f conntrack.Flow) bool { return f.Orig.Src != clientOf(other) }); err != nil {
		t.Fatal(err)
	}
	together(pairs, func(name string, p *drivertest.Pair) { goesOn(t, name+" in the flowtable", p) })
	k.declare(t, row{services: frontB(), policies: isolated("b", "in ingress: []")})
	together(pairs, func(name string, p *drivertest.Pair) { falls(t, name, p, true) })
	goesOn(t, "the other connection", other)
}

// TestRecall shows that no packet gets lost when connections are taken out of the flowtable.
func TestRecall(t *testing.T) {
	t.Parallel()
	k := byNFTables.kernel(t, threePods, offloading(t))
	k.declare(t, row{services: frontB()})
	pairs := k.pairs(t)
	k.offloaded(t, pairs)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 20 {
			if err := k.driver.Capabilities().Offloader.Recall(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}()
	for recalling := true; recalling; {
		select {
		case <-done:
			recalling = false
		default:
		}
		together(pairs, func(name string, p *drivertest.Pair) { goesOn(t, name, p) })
	}
	k.offloaded(t, pairs)
	k.settled(t)
}

// TestDenyListOffloaded shows that a deny list ends connections that pass by the chains.
func TestDenyListOffloaded(t *testing.T) {
	t.Parallel()
	k := byNFTables.kernel(t, threePods, offloading(t))
	k.declare(t, row{})
	pairs := map[string]*drivertest.Pair{}
	for _, proto := range []model.Protocol{tcp, udp} {
		for family := range Families {
			server := netip.AddrPortFrom(names["b"][family], 80)
			p, err := k.mesh.Pair(t, "outside", proto, server, server)
			if err != nil {
				t.Fatal(err)
			}
			pairs[fmt.Sprint(proto, " ", server)] = p
		}
	}
	k.offloaded(t, pairs)
	k.declare(t, row{denied: []string{names["outside"][0].String(), names["outside"][1].String()}})
	together(pairs, func(name string, p *drivertest.Pair) {
		if p.Speak(true, drivertest.Silent) {
			t.Errorf("%s: it goes on from an address that a list denies", name)
		}
	})
}

// TestForgedOffloaded shows that a pod cannot use the way of another one's connection that passes
// by the chains.
func TestForgedOffloaded(t *testing.T) {
	t.Parallel()
	k := byNFTables.kernel(t, threePods, offloading(t))
	k.declare(t, row{})
	for family := range Families {
		server := netip.AddrPortFrom(names["b"][family], 81)
		p, err := k.mesh.Pair(t, "a", udp, server, server)
		if err != nil {
			t.Fatal(err)
		}
		k.offloaded(t, map[string]*drivertest.Pair{"a": p})
		for host, want := range map[string]bool{"c": false, "a": true} {
			before := k.dropped(t, state.DropSpoofed)
			arrived, err := k.mesh.Forge(server.Addr(), "of "+host, drivertest.ForgedDatagram(host, clientOf(p), server, "of "+host))
			if err != nil {
				t.Fatal(err)
			}
			if spoofed := k.dropped(t, state.DropSpoofed) > before; arrived != want || spoofed == want {
				t.Errorf("%v: a datagram of a's connection that %s sends arrives: %v, is dropped as spoofed: %v", server, host, arrived, spoofed)
			}
		}
	}
}

// TestBackendGoneOffloaded shows that a UDP flow which passes by the chains leaves a backend that
// is gone as soon as others do.
func TestBackendGoneOffloaded(t *testing.T) {
	t.Parallel()
	k := byNFTables.kernel(t, threePods, offloading(t))
	k.declare(t, row{services: frontB()})
	pairs := map[string]*drivertest.Pair{}
	for family := range Families {
		via := netip.AddrPortFrom(names["vip"][family], 80)
		p, err := k.mesh.Pair(t, "a", udp, netip.AddrPortFrom(names["b"][family], 80), via)
		if err != nil {
			t.Fatal(err)
		}
		pairs[via.String()] = p
	}
	k.offloaded(t, pairs)
	k.declare(t, row{services: []svc{lbService(model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}}, "c")}})
	together(pairs, func(name string, p *drivertest.Pair) {
		for begun := time.Now(); p.Speak(true, drivertest.Silent); {
			if time.Since(begun) > 2*drivertest.Patient { // the pass before may have been a second ago
				t.Errorf("%s: it still goes to the backend that is gone", name)
				return
			}
		}
	})
}

// BenchmarkForward has a pod send datagrams to another one through a service, one after the other.
// Beside the way through the node each takes what two sockets take. Under test/vm -icount, a
// nanosecond is an instruction.
func BenchmarkForward(b *testing.B) {
	b.Run("no table", func(b *testing.B) {
		k := byNFTables.kernel(b, threePods)
		p := k.datagrams(b, "b")
		if err := k.driver.Purge(b.Context()); err != nil {
			b.Fatal(err)
		}
		forward(b, p)
	})
	b.Run("chains", func(b *testing.B) {
		forward(b, byNFTables.kernel(b, threePods).datagrams(b, "vip"))
	})
	b.Run("flowtable", func(b *testing.B) {
		k := byNFTables.kernel(b, threePods, offloading(b))
		p := k.datagrams(b, "vip")
		k.offloaded(b, map[string]*drivertest.Pair{"the flow": p})
		forward(b, p)
	})
}

// BenchmarkShort has a pod ask another one through a service and be answered, each time over a
// connection of its own, one after the other. What both sockets take is part of it.
func BenchmarkShort(b *testing.B) {
	for _, proto := range []model.Protocol{tcp, udp} {
		b.Run(proto.String()+", chains", func(b *testing.B) { byNFTables.kernel(b, threePods).short(b, proto) })
		b.Run(proto.String()+", flowtable", func(b *testing.B) { byNFTables.kernel(b, threePods, offloading(b)).short(b, proto) })
	}
}

// short opens connections from a to the service of b's, each for one question and answer. A flow
// that has ended leaves the flowtable within two seconds.
func (k *kernel) short(b *testing.B, proto model.Protocol) {
	k.declare(b, row{services: frontB(), policies: isolated("b", onlyFromA)})
	_ = k.mesh.Node.Sysctl("net.netfilter.nf_flowtable_udp_timeout", "1") // not where there are no flowtables
	network := strings.ToLower(proto.String())
	at := func(name string) string { return netip.AddrPortFrom(names[name][0], 80).String() }
	var server io.Closer
	err := k.mesh.In("b", func() (err error) {
		if proto == udp {
			server, err = net.ListenPacket(network, at("b"))
		} else {
			server, err = net.Listen(network, at("b"))
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	go echo(server)
	if err := k.mesh.In("a", func() error {
		for buf := make([]byte, 64); b.Loop(); {
			c, err := net.Dial(network, at("vip"))
			if err != nil {
				return err
			}
			_, err = c.Write(buf)
			if err == nil {
				_, err = c.Read(buf)
			}
			if err = errors.Join(err, c.Close()); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

// echo answers with what it is asked, until the server is closed.
func echo(server io.Closer) {
	switch s := server.(type) {
	case net.PacketConn:
		for buf := make([]byte, 64); ; {
			n, from, err := s.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = s.WriteTo(buf[:n], from)
		}
	case net.Listener:
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}
}

const onlyFromA = "in ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]"

// datagrams opens a flow of datagrams from a to b, which a policy allows.
func (k *kernel) datagrams(b *testing.B, via string) *drivertest.Pair {
	b.Helper()
	k.declare(b, row{services: frontB(), policies: isolated("b", onlyFromA)})
	p, err := k.mesh.Pair(b, "a", udp, netip.AddrPortFrom(names["b"][0], 80), netip.AddrPortFrom(names[via][0], 80))
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func forward(b *testing.B, p *drivertest.Pair) {
	_ = p.Server.SetReadDeadline(time.Time{})
	for buf := make([]byte, 64); b.Loop(); {
		if _, err := p.Client.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := p.Server.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
}

func frontB() []svc {
	return []svc{lbService(model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}}, "b")}
}

func clientOf(p *drivertest.Pair) netip.AddrPort {
	return netip.MustParseAddrPort(p.Client.LocalAddr().String())
}

func goesOn(t testing.TB, name string, p *drivertest.Pair) {
	t.Helper()
	if !p.Speak(true, drivertest.Patient) || !p.Speak(false, drivertest.Patient) {
		t.Errorf("%s does not go on", name)
	}
}

// conntrack reads and changes the node's connection tracking.
func (k *kernel) conntrack(t testing.TB) *conntrack.Conn {
	t.Helper()
	var ct *conntrack.Conn
	if err := k.mesh.Node.Do(func() (err error) {
		ct, err = conntrack.Open()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ct.Close() })
	return ct
}

// flows are the node's connections, by their clients.
func (k *kernel) flows(t testing.TB) map[netip.AddrPort]conntrack.Flow {
	t.Helper()
	all := map[netip.AddrPort]conntrack.Flow{}
	if err := k.conntrack(t).All(t.Context(), func(f *conntrack.Flow) { all[f.Orig.Src] = *f }); err != nil {
		t.Fatal(err)
	}
	return all
}

// offloaded has both ends speak until all connections are in the flowtable.
func (k *kernel) offloaded(t testing.TB, pairs map[string]*drivertest.Pair) {
	t.Helper()
	for begun := time.Now(); ; {
		together(pairs, func(name string, p *drivertest.Pair) { goesOn(t, name, p) })
		flows, missing := k.flows(t), ""
		for name, p := range pairs {
			if f := flows[clientOf(p)]; !f.Offloaded() {
				missing = name
			}
		}
		if missing == "" || t.Failed() {
			return
		}
		if time.Since(begun) > drivertest.Patient {
			t.Fatalf("%s does not get into the flowtable", missing)
		}
	}
}

// shutForward has a table of somebody else drop all that meets its chain.
func (k *kernel) shutForward(t *testing.T) {
	t.Helper()
	if err := k.mesh.Node.Do(func() error {
		s, err := nft.Dial()
		if err != nil {
			return err
		}
		defer s.Close()
		b := nft.NewBatch("shut")
		b.AddTable(0, "")
		c := nft.Chain{Name: "forward", Hook: nft.FilterHook(unix.NF_INET_FORWARD, -10), Rules: []nft.Rule{nft.NewRule().Drop()}}
		b.AddChain(c)
		b.AddRules(c)
		_, err = b.Send(s)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
