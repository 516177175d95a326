package speaker_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"sluice.dev/sluice/internal/bgp"
)

// A badMessage is one that RFC 4271 (section 6) or RFC 7606 speak of, and what becomes of the
// session, and of the route that it announces and that was announced before.
type badMessage struct {
	name string
	// at is when it is sent: as the OPEN, as the KEEPALIVE that follows it, or in a session.
	at  phase
	say []byte
	// want is "code/subcode" of the notification that ends the session, or closed; otherwise the
	// session stays, and the route is learned, or withdrawn.
	want string
}

type phase int

const (
	opening phase = iota
	confirming
	established
)

const (
	learned   = "learned"
	withdrawn = "withdrawn"
	closed    = "closed" // without a word
)

// The messages' parts, as they are on the wire.
func raw(kind byte, body ...byte) []byte { return sized(19+len(body), kind, body...) }

// sized is a message that says to have a length.
func sized(length int, kind byte, body ...byte) []byte {
	m := slices.Repeat([]byte{0xff}, 16)
	m = binary.BigEndian.AppendUint16(m, uint16(length))
	return append(append(m, kind), body...)
}

func openOf(version byte, as, hold uint16, id string, options ...byte) []byte {
	body := binary.BigEndian.AppendUint16([]byte{version}, as)
	body = binary.BigEndian.AppendUint16(body, hold)
	body = append(body, netip.MustParseAddr(id).AsSlice()...)
	return raw(gobgp.BGP_MSG_OPEN, append(append(body, byte(len(options))), options...)...)
}

// capabilities are the optional parameter with capabilities that are given as they are.
func capabilities(caps ...byte) []byte { return append([]byte{2, byte(len(caps))}, caps...) }

const (
	badAS     = 64601
	badRouter = "10.7.1.2"
)

var usual = []byte{1, 4, 0, 1, 0, 1, 65, 4, 0, 0, badAS >> 8, badAS & 0xff} // IPv4 unicast, AS of four octets

func attribute(flags, kind byte, value ...byte) []byte {
	return append([]byte{flags, kind, byte(len(value))}, value...)
}

var (
	origin  = attribute(0x40, 1, 0)
	path    = attribute(0x40, 2, 2, 1, 0, 0, badAS>>8, badAS&0xff)
	nextHop = attribute(0x40, 3, 10, 7, 1, 2)
	// The route of a bad message, and one that is announced after it.
	theRoute, nextRoute = []byte{24, 100, 64, 1}, []byte{24, 100, 65, 1}
)

func update(withdrawn, nlri []byte, attributes ...[]byte) []byte {
	all := slices.Concat(attributes...)
	body := binary.BigEndian.AppendUint16(nil, uint16(len(withdrawn)))
	body = append(body, withdrawn...)
	body = binary.BigEndian.AppendUint16(body, uint16(len(all)))
	return raw(gobgp.BGP_MSG_UPDATE, slices.Concat(body, all, nlri)...)
}

// beside announces the route with attributes beside the usual ones.
func beside(more ...[]byte) []byte {
	return announce(append([][]byte{origin, path, nextHop}, more...)...)
}

func announce(attributes ...[]byte) []byte { return update(nil, theRoute, attributes...) }

func marked(m []byte) []byte { m[3] = 0; return m }

var badMessages = []badMessage{
	// RFC 4271, section 6.1: the header.
	{"the marker is wrong", established, marked(raw(4)), "1/1"},
	{"the marker of the first message is wrong", opening, marked(openOf(4, badAS, 90, badRouter)), "1/1"},
	{"shorter than a header", established, sized(18, 4), "1/2"},
	{"longer than any message", established, sized(4097, 2), "1/2"},
	{"a KEEPALIVE with a body", established, raw(4, 0), learned}, // 1/2 is what RFC 4271 has; BIRD lets it pass, too
	{"an UPDATE that is too short", established, raw(2, 0, 0, 0), "3/1"},
	{"an OPEN that is too short", opening, raw(1, 4, 0xfc, 0x59, 0, 90, 1, 2, 3, 4), "1/2"},
	{"a NOTIFICATION that is too short", established, raw(3, 6), "1/2"},
	{"a ROUTE-REFRESH that is too short", established, raw(5, 0, 1, 0), "7/1"},
	{"type 0", established, raw(0), "1/3"},
	{"type 99", established, raw(99, 1, 2, 3), "1/3"},
	{"a type that does not exist, at first", opening, raw(7), "1/3"},

	// Section 6.2: OPEN.
	{"version 3", opening, openOf(3, badAS, 90, badRouter, capabilities(usual...)...), "2/1"},
	{"version 5", opening, openOf(5, badAS, 90, badRouter, capabilities(usual...)...), "2/1"},
	{"another AS", opening, openOf(4, 64999, 90, badRouter, capabilities(1, 4, 0, 1, 0, 1)...), "2/2"},
	{"AS 0", opening, openOf(4, 0, 90, badRouter, capabilities(1, 4, 0, 1, 0, 1)...), "2/2"},
	{"another AS of four octets", opening, openOf(4, badAS, 90, badRouter, capabilities(65, 4, 0, 1, 0, 0)...), "2/2"},
	{"identifier 0", opening, openOf(4, badAS, 90, "0.0.0.0", capabilities(usual...)...), "2/3"},
	{"hold time 1", opening, openOf(4, badAS, 1, badRouter, capabilities(usual...)...), "2/6"},
	{"hold time 2", opening, openOf(4, badAS, 2, badRouter, capabilities(usual...)...), "2/6"},
	{"hold time 0", opening, openOf(4, badAS, 0, badRouter, capabilities(usual...)...), learned},
	{"hold time 3", opening, openOf(4, badAS, 3, badRouter, capabilities(usual...)...), learned},
	{"a capability that is not known", opening, openOf(4, badAS, 90, badRouter, capabilities(append(slices.Clone(usual), 222, 3, 1, 2, 3)...)...), learned},
	{"a capability that is given twice", opening, openOf(4, badAS, 90, badRouter, capabilities(append(slices.Clone(usual), usual...)...)...), learned},
	{"an optional parameter that is not known", opening, openOf(4, badAS, 90, badRouter, append([]byte{99, 1, 0}, capabilities(usual...)...)...), learned}, // 2/4 is what RFC 4271 has
	{"an optional parameter that is too long", opening, openOf(4, badAS, 90, badRouter, 2, 200, 1, 4), "1/2"},
	{"a capability that is too long", opening, openOf(4, badAS, 90, badRouter, capabilities(1, 200, 0, 1)...), "2/7"},
	{"a capability of a wrong length", opening, openOf(4, badAS, 90, badRouter, capabilities(65, 2, 0, 1)...), "2/7"},

	// Section 6.6: what does not belong there.
	{"an UPDATE at first", opening, beside(), "5/1"},
	{"a KEEPALIVE at first", opening, raw(4), "5/1"},
	{"an UPDATE before the KEEPALIVE", confirming, beside(), closed}, // 5/2 is what RFC 6608 has
	{"a second OPEN before the KEEPALIVE", confirming, openOf(4, badAS, 90, badRouter, capabilities(usual...)...), closed},
	{"an OPEN in a session", established, openOf(4, badAS, 90, badRouter, capabilities(usual...)...), learned}, // it is passed over

	// Section 6.3, as RFC 7606 has it: what leaves no doubt which routes are meant withdraws them.
	{"withdrawn routes that are too long", established, raw(2, 0xff, 0xff, 0, 0), "3/1"},
	{"attributes that are too long", established, raw(2, 0, 0, 0xff, 0xff, 1, 2, 3), "3/1"},
	{"an attribute that is too long", established, beside([]byte{0xc0, 8, 200, 1}), "6/4"}, // which routes it is of is not known: they are told anew
	{"an attribute without a length", established, beside([]byte{0xc0, 8}), withdrawn},
	{"an ORIGIN that is not known", established, announce(attribute(0x40, 1, 3), path, nextHop), withdrawn},
	{"a long ORIGIN", established, announce(attribute(0x40, 1, 0, 0), path, nextHop), withdrawn},
	{"an ORIGIN with wrong flags", established, announce(attribute(0xc0, 1, 0), path, nextHop), withdrawn},
	{"no ORIGIN", established, announce(path, nextHop), withdrawn},
	{"no AS_PATH", established, announce(origin, nextHop), withdrawn},
	{"no NEXT_HOP", established, announce(origin, path), withdrawn},
	{"no attributes", established, announce(), withdrawn},
	{"an AS_PATH segment that is too long", established, announce(origin, attribute(0x40, 2, 2, 9, 0, 0, 1, 2), nextHop), withdrawn},
	{"an AS_PATH segment of no kind", established, announce(origin, attribute(0x40, 2, 9, 1, 0, 0, 1, 2), nextHop), withdrawn},
	{"an AS_PATH segment without an AS", established, announce(origin, attribute(0x40, 2, 2, 0), nextHop), withdrawn},
	{"half an AS_PATH segment", established, announce(origin, attribute(0x40, 2, 2), nextHop), withdrawn},
	{"the own AS in a set of the AS_PATH", established, announce(origin, attribute(0x40, 2, 2, 1, 0, 0, badAS>>8, badAS&0xff, 1, 2, 0, 0, 0, 9, 0, 0, 0xfc, 0), nextHop), withdrawn},
	{"an AS that ends as the own one", established, announce(origin, attribute(0x40, 2, 2, 2, 0, 0, badAS>>8, badAS&0xff, 0, 9, 0xd0, 0), nextHop), learned},
	{"the own AS in the AS_PATH", established, announce(origin, attribute(0x40, 2, 2, 2, 0, 0, badAS>>8, badAS&0xff, 0, 0, 0xfc, 0), nextHop), withdrawn},
	{"a long NEXT_HOP", established, announce(origin, path, attribute(0x40, 3, 10, 7, 1, 2, 0)), withdrawn},
	{"NEXT_HOP 0.0.0.0", established, announce(origin, path, attribute(0x40, 3, 0, 0, 0, 0)), withdrawn},
	{"a multicast NEXT_HOP", established, announce(origin, path, attribute(0x40, 3, 224, 0, 0, 1)), withdrawn},
	{"a short MULTI_EXIT_DISC", established, beside(attribute(0x80, 4, 0, 0, 1)), withdrawn},
	{"LOCAL_PREF of another AS", established, beside(attribute(0x40, 5, 0, 0, 1, 0)), learned},
	{"a short LOCAL_PREF of another AS", established, beside(attribute(0x40, 5, 0, 1)), withdrawn}, // RFC 7606 would have the attribute alone discarded, here and below
	{"ATOMIC_AGGREGATE with a value", established, beside(attribute(0x40, 6, 1)), learned},
	{"a short AGGREGATOR", established, beside(attribute(0xc0, 7, 1, 2, 3)), learned},
	{"COMMUNITIES of a wrong length", established, beside(attribute(0xc0, 8, 1, 2, 3, 4, 5)), withdrawn},
	{"no COMMUNITIES", established, beside(attribute(0xc0, 8)), learned},
	{"a short ORIGINATOR_ID of another AS", established, beside(attribute(0x80, 9, 1, 2, 3)), withdrawn},
	{"a short CLUSTER_LIST of another AS", established, beside(attribute(0x80, 10, 1, 2, 3)), withdrawn},
	{"EXTENDED COMMUNITIES of a wrong length", established, beside(attribute(0xc0, 16, 1, 2, 3, 4, 5)), withdrawn},
	{"LARGE COMMUNITIES of a wrong length", established, beside(attribute(0xc0, 32, 1, 2, 3, 4, 5)), withdrawn},
	{"AS4_PATH of a peer that has AS of four octets", established, beside(attribute(0xc0, 17, 2, 1, 0, 0, 1, 2)), learned},
	{"a malformed AS4_PATH", established, beside(attribute(0xc0, 17, 2, 9, 0, 0, 1, 2)), withdrawn},
	{"an attribute that is given twice", established, beside(attribute(0x80, 4, 0, 0, 0, 1), attribute(0x80, 4, 0, 0, 0, 2)), learned},
	{"a well-known attribute that is not known", established, beside(attribute(0x40, 200, 1)), "3/2"},
	{"an optional attribute that is not known", established, beside(attribute(0x80, 200, 1, 2, 3)), learned},
	{"a transitive attribute that is not known", established, beside(attribute(0xc0, 200, 1, 2, 3)), learned},
	{"a prefix that is too long", established, update(nil, []byte{33, 100, 64, 1, 0, 1}, origin, path, nextHop), "3/10"},
	{"half a prefix", established, update(nil, []byte{24, 100}, origin, path, nextHop), "3/10"},
	{"half a withdrawn prefix", established, update([]byte{24, 100}, nil), "3/1"},
	{"MP_REACH_NLRI of a family that was not agreed on", established, beside(attribute(0x80, 14, 0, 25, 65, 4, 1, 2, 3, 4, 0, 0)), "3/10"},
	{"MP_REACH_NLRI twice", established, beside(attribute(0x80, 14, 0, 1, 1, 4, 10, 7, 1, 2, 0, 24, 100, 64, 2), attribute(0x80, 14, 0, 1, 1, 4, 10, 7, 1, 2, 0, 24, 100, 64, 3)), "3/1"},
	{"MP_REACH_NLRI that is too short", established, beside(attribute(0x80, 14, 0, 1, 1)), "3/5"},
	{"MP_REACH_NLRI with a next hop of a wrong length", established, beside(attribute(0x80, 14, 0, 1, 1, 9, 1, 2)), "3/5"},
	{"MP_UNREACH_NLRI that is too short", established, beside(attribute(0x80, 15, 0, 1)), "3/5"},
}

// TestMalformed sends each message in a session of its own with the same speaker, and sees how the
// session and the route fare. The session with another peer goes on.
func TestMalformed(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	ns := w.neighbor(1)
	s := w.speaker()
	w.frr(2, frrConf(2, []string{"192.0.2.0/24"}))
	peers := map[string]*bgp.Peer{"good": peer(2)}
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 7, 1, byte(10 + i)}) }
	for i := range badMessages {
		ns.Address("eth0", address(i).String()+"/24")
		peers[address(i).String()] = &bgp.Peer{Address: address(i), Port: 179, AS: badAS, Passive: true, IPv4: true}
	}
	s.order(&bgp.Order{Settings: settings(), Peers: peers})
	s.up("good")
	var since time.Time
	s.await("the good peer's route", func(x *said) bool { since = x.peers["good"].Since; return len(x.learned) == 1 })
	t.Run("each", func(t *testing.T) {
		for i, m := range badMessages {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				c := &badPeer{talk: talk{t: t}, s: s, i: byte(i)}
				if err := ns.Do(func() error { return c.connect(address(i)) }); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				if got := c.send(m); got != m.want {
					t.Errorf("%s; want %s", got, m.want)
				}
			})
		}
	})
	s.await("the session with the good peer goes on", func(x *said) bool {
		return x.peers["good"].State == bgp.Established && x.peers["good"].Since.Equal(since) && x.learned[prefix("192.0.2.0/24")] != nil
	})
}

// badPeer sends a bad message.
type badPeer struct {
	talk
	s *speaking
	i byte // of the message: its routes have it as their third byte
}

// connect connects, and waits for the OPEN: a peer that is just being set up is not let in.
func (c *badPeer) connect(from netip.Addr) (err error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Timeout: patience}
	for begin := time.Now(); time.Since(begin) < patience; _ = c.Close() {
		if c.Conn, err = d.Dial("tcp4", node4(1)+":179"); err != nil {
			return err
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err = c.next(); err == nil {
			return nil
		}
	}
	return err
}

// write sends a message, with routes of this peer.
func (c *badPeer) write(m []byte) {
	for _, r := range [][]byte{theRoute, nextRoute} {
		own := append(slices.Clone(r[:3]), c.i)
		m = bytes.ReplaceAll(m, r, own)
	}
	_, _ = c.Write(m) // a connection that is closed is seen when it is read from
}

// send sends a message after what comes before it, and says what became of it.
func (c *badPeer) send(m badMessage) string {
	if m.at == opening {
		c.write(m.say)
	} else {
		c.write(openOf(4, badAS, 90, badRouter, capabilities(usual...)...))
	}
	if end := c.until(gobgp.BGP_MSG_KEEPALIVE); end != "" {
		return end
	}
	if m.at == confirming {
		c.write(m.say)
		return c.until(0)
	}
	c.write(raw(gobgp.BGP_MSG_KEEPALIVE))
	c.write(beside())
	if m.at == established {
		c.s.await("learned", c.has(theRoute))
		c.write(m.say)
	}
	if m.want != learned && m.want != withdrawn {
		return c.until(0)
	}
	c.write(update(nil, nextRoute, origin, path, nextHop))
	c.s.await("the next route", c.has(nextRoute))
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.has(theRoute)(&c.s.said) {
		return learned
	}
	return withdrawn
}

// until reads until a message of some kind comes, and says how the session ended before it; kind 0
// never comes.
func (c *badPeer) until(kind byte) string {
	for {
		m, err := message(c)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return "nothing"
		case err != nil:
			return closed
		case m[18] == gobgp.BGP_MSG_NOTIFICATION:
			return fmt.Sprintf("%d/%d", m[19], m[20])
		case m[18] == kind:
			return ""
		}
	}
}

func (c *badPeer) has(route []byte) func(*said) bool {
	p := netip.PrefixFrom(netip.AddrFrom4([4]byte{route[1], route[2], c.i, 0}), 24)
	return func(x *said) bool { return x.learned[p] != nil }
}

// message reads a message.
func message(c net.Conn) ([]byte, error) {
	m := make([]byte, gobgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(c, m); err != nil {
		return nil, err
	}
	m = append(m, make([]byte, int(binary.BigEndian.Uint16(m[16:]))-len(m))...)
	_, err := io.ReadFull(c, m[gobgp.BGP_HEADER_LENGTH:])
	return m, err
}
