package speaker_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/test/world"
)

// Both ends connect at the same time, and the peer, whose identifier is higher, keeps the
// connection that it opened, as RFC 4271 (section 6.8) has it. As FRR does, it closes all others as
// long as that one is open. There is a session all the same.
func TestCollision(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	ns := w.neighbor(1)
	l := listen(t, ns)
	s := w.speaker()
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"tor": peer(1)}})

	theirs, ours := &talk{t: t}, &talk{t: t}
	var err error
	if theirs.Conn, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	theirs.hears(gobgp.BGP_MSG_OPEN)
	if err := ns.Do(func() (err error) { ours.Conn, err = net.Dial("tcp4", node4(1)+":179"); return err }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ours.Close() }()
	ours.hears(gobgp.BGP_MSG_OPEN)
	theirs.says(open())
	theirs.hears(gobgp.BGP_MSG_KEEPALIVE)
	ours.says(open())
	theirs.cease()

	var stays atomic.Bool // our connection
	stays.Store(true)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go (&talk{t, c}).answer(&stays)
		}
	}()
	_ = ours.SetDeadline(time.Now().Add(patience))
	if _, err := ours.next(); err == nil {
		t.Fatal("the speaker goes on with the connection that stays: this test does not meet the case any more")
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the speaker has forgotten the connection that stays")
	}
	stays.Store(false)
	s.up("tor")
}

// talk is a connection of a peer.
type talk struct {
	t *testing.T
	net.Conn
}

// answer has a connection become a session, unless another one is there. The speaker may close it.
func (c *talk) answer(another *atomic.Bool) {
	if _, err := c.next(); err != nil {
		return
	}
	c.says(open())
	if another.Load() {
		c.cease()
		return
	}
	c.says(gobgp.NewBGPKeepAliveMessage())
	_, _ = io.Copy(io.Discard, c)
	_ = c.Close()
}

func (c *talk) says(m *gobgp.BGPMessage) {
	b, _ := m.Serialize()
	_, _ = c.Write(b)
}

// cease closes the connection, as there is another one.
func (c *talk) cease() {
	c.says(gobgp.NewBGPNotificationMessage(gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_CONNECTION_COLLISION_RESOLUTION, nil))
	_ = c.Close()
}

func (c *talk) hears(kind uint8) {
	c.t.Helper()
	_ = c.SetDeadline(time.Now().Add(patience))
	if got, err := c.next(); err != nil || got != kind {
		c.t.Fatalf("message %d is wanted: %d, %v", kind, got, err)
	}
}

// listen takes connections as the first peer does.
func listen(t *testing.T, on *world.Host) (l net.Listener) {
	t.Helper()
	if err := on.Do(func() (err error) { l, err = net.Listen("tcp4", peer4(1)+":179"); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// next is the type of the next message.
func (c *talk) next() (kind uint8, err error) {
	header := make([]byte, gobgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(c, header); err != nil {
		return 0, err
	}
	_, err = io.CopyN(io.Discard, c, int64(header[16])<<8+int64(header[17])-gobgp.BGP_HEADER_LENGTH)
	return header[18], err
}

func open() *gobgp.BGPMessage {
	caps := gobgp.NewOptionParameterCapability([]gobgp.ParameterCapabilityInterface{
		gobgp.NewCapMultiProtocol(gobgp.RF_IPv4_UC), gobgp.NewCapFourOctetASNumber(64601),
	})
	m, _ := gobgp.NewBGPOpenMessage(64601, 90, netip.MustParseAddr(peer4(1)), []gobgp.OptionParameterInterface{caps})
	return m
}

// A peer announces too much, and has withdrawn it all before the server is asked to end the
// session: the server finds nothing to end it for. It ends all the same, and is named.
func TestTooManyForAMoment(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	ns := w.neighbor(1)
	l := listen(t, ns)
	s := w.speaker()
	flood := peer(1)
	flood.MaxRoutes = 1
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"flood": flood}})
	c := &talk{t: t}
	var err error
	if c.Conn, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	c.hears(gobgp.BGP_MSG_OPEN)
	c.says(open())
	c.hears(gobgp.BGP_MSG_KEEPALIVE)
	c.says(gobgp.NewBGPKeepAliveMessage())
	s.up("flood")
	var all []gobgp.PathNLRI
	for _, p := range []string{"40.0.0.0/8", "41.0.0.0/8"} {
		n, _ := gobgp.NewIPAddrPrefix(prefix(p))
		all = append(all, gobgp.PathNLRI{NLRI: n})
	}
	hop, _ := gobgp.NewPathAttributeNextHop(addr(peer4(1)))
	announced, _ := gobgp.NewBGPUpdateMessage(nil, []gobgp.PathAttributeInterface{
		gobgp.NewPathAttributeOrigin(0), gobgp.NewPathAttributeAsPath([]gobgp.AsPathParamInterface{gobgp.NewAs4PathParam(2, []uint32{64601})}), hop,
	}, all).Serialize()
	withdrawn, _ := gobgp.NewBGPUpdateMessage(all, nil, nil).Serialize()
	if _, err := c.Write(append(announced, withdrawn...)); err != nil {
		t.Fatal(err)
	}
	s.says("peer flood (10.7.1.2): it announces more than 1 routes")
	_ = c.SetDeadline(time.Now().Add(patience))
	for kind := uint8(0); kind != gobgp.BGP_MSG_NOTIFICATION; {
		if kind, err = c.next(); err != nil {
			t.Fatal("the peer is not told: ", err)
		}
	}
	s.await("no session", func(x *said) bool { return x.peers["flood"].State == "idle" })
}
