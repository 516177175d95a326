package conntrack

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/netns"
)

// TestTraffic has a real rule translate real flows, moves the rule to another backend, and
// sees the flows follow once they were cut, and not before.
func TestTraffic(t *testing.T) {
	for _, tt := range []struct{ name, frontend, old, new, other string }{
		{"v4", "10.96.0.1:53", "10.2.0.1:5353", "10.2.0.2:5353", "10.96.0.2:53"},
		{"v6", "[fd96::1]:53", "[fd02::1]:5353", "[fd02::2]:5353", "[fd96::2]:53"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := testNS(t)
			c := testConn(t, ns)
			frontend, other, old, next := ap(tt.frontend), ap(tt.other), ap(tt.old), ap(tt.new)
			for _, a := range []netip.AddrPort{frontend, other, old, next} {
				if err := ns.Address("lo", netip.PrefixFrom(a.Addr(), a.Addr().BitLen())); err != nil {
					t.Fatal(err)
				}
			}
			servers := map[netip.AddrPort]*net.UDPConn{}
			for _, a := range []netip.AddrPort{old, next} {
				servers[a] = listen(t, ns, a)
			}
			translate(t, ns, map[netip.AddrPort]netip.AddrPort{frontend: old, other: old})
			client, bystander := dial(t, ns, frontend), dial(t, ns, other)
			expect(t, client, servers[old])
			expect(t, bystander, servers[old])

			translate(t, ns, map[netip.AddrPort]netip.AddrPort{frontend: next, other: next})
			expect(t, client, servers[old]) // the table remembers
			n, err := c.Delete(t.Context(), []Filter{{Protocol: model.UDP, Frontend: frontend, Backend: old}}, nil)
			if n != 1 || err != nil {
				t.Fatalf("deleted %d, %v; want 1", n, err)
			}
			expect(t, client, servers[next])
			expect(t, bystander, servers[old])
		})
	}
}

// listen opens a server; expect reads from it.
func listen(t *testing.T, ns *netns.NS, a netip.AddrPort) (s *net.UDPConn) {
	t.Helper()
	err := ns.Do(func() (err error) {
		s, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(a))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func dial(t *testing.T, ns *netns.NS, a netip.AddrPort) (c *net.UDPConn) {
	t.Helper()
	err := ns.Do(func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(a))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// expect sends a datagram, has the server answer it, and waits for the answer.
func expect(t *testing.T, client, server *net.UDPConn) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	b := make([]byte, 16)
	if _, err := client.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	_ = server.SetReadDeadline(deadline)
	_, from, err := server.ReadFromUDPAddrPort(b)
	if err != nil {
		t.Fatalf("server %v: %v", server.LocalAddr(), err)
	}
	if _, err := server.WriteToUDPAddrPort([]byte("pong"), from); err != nil {
		t.Fatal(err)
	}
	_ = client.SetReadDeadline(deadline)
	if _, err := client.Read(b); err != nil {
		t.Fatalf("client of %v: %v", client.RemoteAddr(), err)
	}
}

// translate replaces the namespace's rules: UDP to a key goes to its value.
func translate(t *testing.T, ns *netns.NS, rules map[netip.AddrPort]netip.AddrPort) {
	t.Helper()
	err := ns.Do(func() error {
		nft, err := nftables.New()
		if err != nil {
			return err
		}
		nft.FlushRuleset()
		table := nft.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "test"})
		chain := nft.AddChain(&nftables.Chain{
			Table: table, Name: "output", Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
		})
		for from, to := range rules {
			nft.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: dnat(from, to)})
		}
		return nft.Flush()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func dnat(from, to netip.AddrPort) []expr.Any {
	family, offset, length := uint32(unix.NFPROTO_IPV4), uint32(16), uint32(4)
	if from.Addr().Is6() {
		family, offset, length = unix.NFPROTO_IPV6, 24, 16
	}
	equal := func(b []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: b} }
	return slices.Concat([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{byte(family)}),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{byte(model.UDP)}),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}, equal(from.Addr().AsSlice()),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, equal(binaryutil.BigEndian.PutUint16(from.Port())),
	}, []expr.Any{
		&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(to.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: 1, RegProtoMin: 2},
	})
}
