package sctp

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"log"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/pion/logging"
	"github.com/pion/sctp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

const (
	headLen = 12 // the common header: ports, tag and checksum (RFC 9260, 3.1)
	// chunkInit is the type of the chunk that opens an association.
	chunkInit = 1
	// pionPort is the port of both ends by which pion knows an association.
	pionPort = 5000
	// closeTime is how long an association may take to end, openTime to begin.
	closeTime, openTime = time.Second, 10 * time.Second
	// idleTime is how long a client may be silent: one that was killed is.
	idleTime = 30 * time.Second
	// maxPacket is more than any link carries here.
	maxPacket = 1 << 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(p []byte) uint32 {
	sum := crc32.Update(0, castagnoli, p[:8])
	sum = crc32.Update(sum, castagnoli, make([]byte, 4)) // in place of the checksum
	return crc32.Update(sum, castagnoli, p[headLen:])
}

// setPorts gives a packet its ports, and the checksum that goes with them.
func setPorts(p []byte, from, to uint16) {
	binary.BigEndian.PutUint16(p, from)
	binary.BigEndian.PutUint16(p[2:], to)
	binary.LittleEndian.PutUint32(p[8:], checksum(p))
}

// ports returns the ports of a packet, unless it is damaged.
func ports(p []byte) (from, to uint16, ok bool) {
	if len(p) <= headLen || binary.LittleEndian.Uint32(p[8:]) != checksum(p) {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]), true
}

func network(ip net.IP) string {
	if ip.To4() != nil {
		return "ip4:132"
	}
	return "ip6:132"
}

// link carries the packets of one association: the socket sees those of all ports.
type link struct {
	*net.IPConn
	local, remote uint16
	first         []byte // read before the socket was there
	closed        func()
}

func (l *link) Read(p []byte) (int, error) {
	if n := copy(p, l.first); n > 0 {
		l.first = nil
		return n, nil
	}
	for {
		n, _, err := l.ReadFromIP(p)
		if err != nil {
			if passes(err) {
				continue
			}
			return 0, err
		}
		if from, to, ok := ports(p[:n]); ok && from == l.remote && to == l.local {
			setPorts(p[:n], pionPort, pionPort)
			return n, nil
		}
	}
}

func (l *link) Write(p []byte) (int, error) {
	setPorts(p, l.local, l.remote) // nobody reads it after this
	if _, err := l.IPConn.Write(p); err != nil && !passes(err) {
		return 0, errors.Join(err, l.Close()) // Read has to end, too
	}
	return len(p), nil
}

func (l *link) Close() error {
	l.closed()
	if err := l.IPConn.Close(); !errors.Is(err, net.ErrClosed) { // pion closes it twice
		return err
	}
	return nil
}

// passes reports whether an association outlives an error of its socket: only "protocol
// unreachable" of ICMP, and "unrecognized next header" of ICMPv6, end it (RFC 9260, 10).
func passes(err error) bool {
	errno := syscall.Errno(0)
	return errors.As(err, &errno) && errno != syscall.ENOPROTOOPT && errno != syscall.EPROTO
}

// quiet has pion write nothing to agnhost's output, which tests read.
var quiet = sctp.WithLoggerFactory(&logging.DefaultLoggerFactory{DefaultLogLevel: logging.LogLevelDisabled})

// conn is stream 0 of an association.
type conn struct {
	*sctp.Stream
	link *link
	of   *sctp.Association
}

func newConn(of *sctp.Association, l *link) (*conn, error) {
	stream, err := of.OpenStream(0, sctp.PayloadTypeWebRTCBinary)
	if err != nil {
		return nil, errors.Join(err, of.Close())
	}
	return &conn{stream, l, of}, nil
}

func (c *conn) remote() *SCTPAddr {
	return &SCTPAddr{IPAddrs: []net.IPAddr{*c.RemoteAddr().(*net.IPAddr)}, Port: int(c.link.remote)}
}

func (c *conn) LocalAddr() net.Addr  { return c.link.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr { return c.link.RemoteAddr() }

// Close sends what was written and ends the association. A peer that does not answer is left.
func (c *conn) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	sent := make(chan struct{}, 1)
	c.OnBufferedAmountLow(func() { // down to the default, nothing
		select {
		case sent <- struct{}{}:
		default:
		}
	})
	if c.BufferedAmount() > 0 { // Shutdown would not wait for it
		select {
		case <-sent:
		case <-ctx.Done():
		}
	}
	if err := c.of.Shutdown(ctx); errors.Is(err, sctp.ErrShutdownNonEstablished) { // the peer ends it
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				if _, err := c.of.AcceptStream(); err != nil { // at the end
					return
				}
			}
		}()
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
	return c.of.Close()
}

// served is a server's end: Close does not wait, as the kernel's does not.
type served struct{ *conn }

func (c served) Close() error {
	go func() { _ = c.conn.Close() }() // nobody is left to be told
	return nil
}

func dialRaw(to *SCTPAddr) (*SCTPConn, error) {
	if len(to.IPAddrs) == 0 {
		return nil, errors.New("no address to connect to")
	}
	ip := to.IPAddrs[0]
	socket, err := net.DialIP(network(ip.IP), nil, &ip)
	if err != nil {
		return nil, err
	}
	l := &link{IPConn: socket, local: uint16(32768 + rand.IntN(28232)), remote: uint16(to.Port), closed: func() {}}
	of, err := sctp.ClientWithOptions(sctp.WithNetConn(l), quiet)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	c, err := newConn(of, l)
	if err != nil {
		return nil, err
	}
	return &SCTPConn{c, c.remote()}, nil
}

// listener sees the packets that open an association. Each association then has a socket of its
// own.
type listener struct {
	port     uint16
	accepted chan *SCTPConn
	failed   chan error

	mu    sync.Mutex
	links map[[2]netip.AddrPort]bool // that are there
}

func listenRaw(at *SCTPAddr) (*SCTPListener, error) {
	ips := []net.IP{net.IPv4zero, net.IPv6unspecified}
	if len(at.IPAddrs) > 0 {
		ips = []net.IP{at.IPAddrs[0].IP}
	}
	l := &listener{port: uint16(at.Port), accepted: make(chan *SCTPConn), failed: make(chan error, len(ips)), links: map[[2]netip.AddrPort]bool{}}
	var sockets []*net.IPConn
	closeAll := func() (err error) {
		for _, s := range sockets {
			err = errors.Join(err, s.Close())
		}
		return err
	}
	for _, ip := range ips {
		s, err := net.ListenIP(network(ip), &net.IPAddr{IP: ip})
		if len(sockets) > 0 && errors.Is(err, syscall.EAFNOSUPPORT) {
			continue // no IPv6
		}
		if err != nil {
			return nil, errors.Join(err, closeAll())
		}
		sockets = append(sockets, s)
		receive, err := receiver(s)
		if err != nil {
			return nil, errors.Join(err, closeAll())
		}
		go l.run(receive)
	}
	return &SCTPListener{close: closeAll, accept: func() (*SCTPConn, error) {
		select {
		case c := <-l.accepted:
			return c, nil
		case err := <-l.failed:
			return nil, err
		}
	}}, nil
}

// receiver returns a function that returns a packet's length, and where it is from and to.
func receiver(s *net.IPConn) (func(p []byte) (n int, from, to net.IP, err error), error) {
	if network(s.LocalAddr().(*net.IPAddr).IP) == "ip4:132" {
		c := ipv4.NewPacketConn(s)
		return func(p []byte) (int, net.IP, net.IP, error) {
			n, cm, from, err := c.ReadFrom(p)
			if err != nil {
				return 0, nil, nil, err
			}
			return n, from.(*net.IPAddr).IP, cm.Dst, nil
		}, c.SetControlMessage(ipv4.FlagDst, true)
	}
	c := ipv6.NewPacketConn(s)
	return func(p []byte) (int, net.IP, net.IP, error) {
		n, cm, from, err := c.ReadFrom(p)
		if err != nil {
			return 0, nil, nil, err
		}
		return n, from.(*net.IPAddr).IP, cm.Dst, nil
	}, c.SetControlMessage(ipv6.FlagDst, true)
}

// run takes the packets of a socket until that is closed.
func (l *listener) run(receive func(p []byte) (n int, from, to net.IP, err error)) {
	buf := make([]byte, maxPacket)
	for {
		n, from, to, err := receive(buf)
		if err != nil {
			l.failed <- err
			return
		}
		fromPort, toPort, ok := ports(buf[:n])
		if !ok || toPort != l.port || buf[headLen] != chunkInit {
			continue
		}
		a, _ := netip.AddrFromSlice(from)
		b, _ := netip.AddrFromSlice(to)
		ends := [2]netip.AddrPort{netip.AddrPortFrom(a, fromPort), netip.AddrPortFrom(b, toPort)}
		if !l.add(ends) {
			continue // its own socket sees it
		}
		setPorts(buf[:n], pionPort, pionPort)
		first := append([]byte{}, buf[:n]...)
		go l.open(ends, first)
	}
}

// open answers a client whose first packet has come.
func (l *listener) open(ends [2]netip.AddrPort, first []byte) {
	ip := net.IP(ends[1].Addr().AsSlice())
	socket, err := net.DialIP(network(ip), &net.IPAddr{IP: ip}, &net.IPAddr{IP: ends[0].Addr().AsSlice()})
	if err != nil {
		log.Printf("SCTP: cannot answer %v: %v", ends[0], err)
		l.remove(ends)
		return
	}
	to := &link{IPConn: socket, local: ends[1].Port(), remote: ends[0].Port(), first: first, closed: func() { l.remove(ends) }}
	giveUp := time.AfterFunc(openTime, func() { _ = to.Close() }) // what fails then is told below
	of, err := sctp.ServerWithOptions(sctp.WithNetConn(to), quiet)
	giveUp.Stop()
	if err != nil {
		_ = to.Close() // the client has given up
		return
	}
	c, err := newConn(of, to)
	if err == nil {
		err = c.SetReadDeadline(time.Now().Add(idleTime))
	}
	if err != nil {
		log.Printf("SCTP: cannot answer %v: %v", ends[0], err)
		return
	}
	l.accepted <- &SCTPConn{served{c}, c.remote()}
}

func (l *listener) add(ends [2]netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.links[ends] {
		return false
	}
	l.links[ends] = true
	return true
}

func (l *listener) remove(ends [2]netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.links, ends)
}
