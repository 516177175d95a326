package established_test

import (
	"net"
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// TestReset has a client that has reset a connection begin another from the same port: it meets
// what has changed since.
func TestReset(t *testing.T) {
	n := newNode(t)
	other := world.NewPod(n.host, "other", "10.1.0.3", "fd00:1::3")
	other.Serve("other", "10.1.0.3:80", "[fd00:1::3]:80")
	n.open(true)
	for i, at := range services {
		from := net.TCPAddrFromAddrPort(netip.MustParseAddrPort([]string{"192.0.2.9:4001", "[2001:db8::9]:4001"}[i]))
		dial := func() (c net.Conn) {
			d := net.Dialer{LocalAddr: from, Timeout: world.Patience}
			n.outside.In(func() (err error) { c, err = d.Dial("tcp", at); return err })
			return c
		}
		c := dial()
		before := n.fast.Taken()
		for range 10 {
			if _, err := world.Exchange(c, world.Patience); err != nil {
				t.Fatal(err)
			}
		}
		if n.fast.Taken() == before {
			t.Fatal("nothing went the short way")
		}
		_ = c.(*net.TCPConn).SetLinger(0) // with a reset
		_ = c.Close()
		to := netip.MustParseAddrPort(at)
		moved := []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr([]string{"10.1.0.3", "fd00:1::3"}[i]), 80)}
		n.want.Services.Frontends[state.FrontendKey{Addr: to.Addr(), Protocol: model.TCP, Port: to.Port()}] = &state.Frontend{Backends: moved, Alive: moved, Serving: moved}
		n.open(true)
		c = dial()
		if a, err := world.Exchange(c, world.Patience); err != nil || a.Server != "other" {
			t.Errorf("%s: %+v, %v", at, a, err)
		}
		_ = c.Close()
	}
}
