package speaker_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/bgp/speaker"
)

// says waits for a fault.
func (s *speaking) says(text string) {
	s.t.Helper()
	s.await("it says "+text, func(x *said) bool { return strings.Contains(x.fault, text) })
}

func (s *speaking) well() {
	s.t.Helper()
	s.await("no fault", func(x *said) bool { return x.fault == "" })
}

// A taken port is named, and waited for.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.frr(1, frrConf(1, nil))
	var other net.Listener
	if err := w.ns.Do(func() (err error) {
		other, err = net.Listen("tcp4", "0.0.0.0:179")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	s := w.speaker()
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"tor": peer(1)}, Routes: routes("198.51.100.0/24")})
	s.says("0.0.0.0:179: bind: address already in use: another BGP speaker runs on this node")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	s.up("tor")
	s.well()
}

// An address to listen on that the node does not have is named; once it has it, peers can connect.
func TestAddressAbsent(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.frr(1, frrConf(1, nil))
	s := w.speaker()
	set := settings()
	set.Listen = []netip.Addr{addr(node4(1)), addr("10.7.1.50")}
	s.order(&bgp.Order{Settings: set, Peers: map[string]*bgp.Peer{"tor": peer(1)}})
	s.says("peers cannot connect to 10.7.1.50: this node has no such address")
	s.up("tor")
	w.ns.Address("eth1", "10.7.1.50/24")
	s.well()
	s.up("tor")
}

// What cannot be done about a peer is named, and the others do not suffer.
func TestBadPeers(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	f := w.frr(1, frrConf(1, nil))
	s := w.speaker()
	twin, mute, keyed, crossed, nameless := peer(1), peer(2), peer(3), peer(4), peer(5)
	twin.Export = []bgp.Rule{{}} // which is not to hold for the other one
	mute.IPv4, mute.IPv6 = false, false
	keyed.Password = strings.Repeat("x", 81)
	crossed.Source = addr(node6(4))
	nameless.Address = netip.Addr{}
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"tor": peer(1)}, Routes: routes("198.51.100.0/24")})
	s.says("the first order has no settings")
	s.order(&bgp.Order{Settings: settings()})
	s.up("tor")
	s.well()
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"twin": twin, "mute": mute, "keyed": keyed, "crossed": crossed, "nameless": nameless}})
	for _, text := range []string{"peer twin (10.7.1.2): peer tor has the same address", "peer mute (10.7.2.2): routes of neither", "peer keyed (10.7.3.2): its password has 81 bytes",
		"peer crossed (10.7.4.2): its source, fd07:4::1, is of another family", "peer nameless (invalid IP): it has no address"} {
		s.says(text)
	}
	s.order(&bgp.Order{Routes: routes("198.51.101.0/24")})
	eventually(t, "announced all the same", func() (string, error) { return f.Run("show bgp ipv4 unicast") }, func(out string) bool {
		return strings.Contains(out, "198.51.100.0/24") && strings.Contains(out, "198.51.101.0/24")
	})
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"twin": nil, "mute": nil, "keyed": nil, "crossed": nil, "nameless": nil}})
	s.well()
	s.await("the peer is as before", func(x *said) bool {
		return len(x.peers) == 1 && x.peers["tor"].State == bgp.Established && x.peers["tor"].Why == ""
	})

	// The name of a peer is free to change, its address to go to another one.
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"tor": nil, "leaf": peer(1)}})
	s.up("leaf")
	eventually(t, "announced", func() (string, error) { return f.Run("show bgp ipv4 unicast") }, contains("198.51.100.0/24"))
	s.await("one peer", func(x *said) bool { return len(x.peers) == 1 })

	// With bad settings there is nothing to begin with.
	bad := settings()
	bad.RouterID = addr("fd07::1")
	s.order(&bgp.Order{Settings: bad})
	s.says("the router ID fd07::1 is no IPv4 address")
	s.order(&bgp.Order{Settings: settings()})
	s.well()
	s.up("leaf")
}

// A line that is no order ends the speaker with an error, the end of its input does not.
func TestInput(t *testing.T) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	for input, want := range map[string]string{"": "", "{\n": "read order: unexpected EOF", "no\n": "read order: invalid character"} {
		err := speaker.New(log).Run(t.Context(), strings.NewReader(input), &bytes.Buffer{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", input, err)
		}
	}
}
