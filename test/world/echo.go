package world

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// An Answer is what a server says: who it is, whom it sees, and the port at which it was asked.
type Answer struct {
	Server string
	Client netip.AddrPort
	Port   uint16
}

func (a Answer) line() string { return fmt.Sprintln(a.Server, a.Client, a.Port) }

func parse(line string) (a Answer, err error) {
	var client string
	if _, err := fmt.Sscan(line, &a.Server, &client, &a.Port); err != nil {
		return a, fmt.Errorf("answer %q: %w", line, err)
	}
	a.Client, err = netip.ParseAddrPort(client)
	return a, err
}

// answer is what a server of a name says to a client.
func answer(name string, client, at net.Addr) string {
	c, server := netip.MustParseAddrPort(client.String()), netip.MustParseAddrPort(at.String())
	return Answer{name, netip.AddrPortFrom(c.Addr().Unmap(), c.Port()), server.Port()}.line()
}

// Serve has the host answer each line by TCP and each datagram by UDP, at addresses such as ":80"
// and "10.0.0.1:53", until the test ends. Each answer is an Answer of a server of that name.
func (h *Host) Serve(name string, at ...string) {
	h.t.Helper()
	for _, a := range at {
		h.ServeTCP(name, a)
		h.ServeUDP(name, a)
	}
}

// ServeTCP is Serve by TCP alone.
func (h *Host) ServeTCP(name, at string) {
	h.t.Helper()
	var l net.Listener
	h.In(func() (err error) { l, err = net.Listen("tcp", at); return err })
	h.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go answerLines(c, name)
		}
	}()
}

func answerLines(c net.Conn, name string) {
	defer func() { _ = c.Close() }()
	for r := bufio.NewReader(c); ; {
		if _, err := r.ReadString('\n'); err != nil {
			return
		}
		if _, err := io.WriteString(c, answer(name, c.RemoteAddr(), c.LocalAddr())); err != nil {
			return
		}
	}
}

// ServeUDP is Serve by UDP alone.
func (h *Host) ServeUDP(name, at string) {
	h.t.Helper()
	var u net.PacketConn
	h.In(func() (err error) { u, err = net.ListenPacket("udp", at); return err })
	h.t.Cleanup(func() { _ = u.Close() })
	go func() {
		for b := make([]byte, 2000); ; {
			_, from, err := u.ReadFrom(b)
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err == nil: // the error of an earlier answer is its client's
				_, _ = u.WriteTo([]byte(answer(name, from, u.LocalAddr())), from)
			}
		}
	}()
}

// Patience is how long a client waits until it is connected, and for an answer: a busy machine
// delays both.
const Patience = 10 * time.Second

// Dial opens a connection by "tcp" or "udp" from an address of the host, "" for any. The limit is
// for TCP's handshake.
func (h *Host) Dial(network, from, to string, limit time.Duration) (c net.Conn, err error) {
	d := net.Dialer{Timeout: limit}
	if from != "" {
		ip := net.ParseIP(from)
		d.LocalAddr = &net.TCPAddr{IP: ip}
		if network == "udp" {
			d.LocalAddr = &net.UDPAddr{IP: ip}
		}
	}
	// A device takes a moment after it is up until it has routes of IPv6.
	for end := time.Now().Add(Patience); ; time.Sleep(10 * time.Millisecond) {
		err = h.Do(func() (err error) { c, err = d.Dial(network, to); return err })
		if !errors.Is(err, unix.ENETUNREACH) || time.Now().After(end) {
			return c, err
		}
	}
}

// Exchange asks a server by a connection and returns its answer. A datagram may get lost while a
// neighbour is looked for, so it is sent again within the limit.
func Exchange(c net.Conn, limit time.Duration) (Answer, error) {
	again := limit
	if _, datagrams := c.(*net.UDPConn); datagrams {
		again = limit / 4
	}
	for end := time.Now().Add(limit); ; {
		_ = c.SetDeadline(time.Now().Add(again))
		if _, err := io.WriteString(c, "hello\n"); err != nil {
			return Answer{}, err
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		switch {
		case err == nil:
			return parse(line)
		case !TimedOut(err) || time.Until(end) < again/2:
			return Answer{}, err
		}
	}
}

// TimedOut reports whether an error of Dial, Exchange or Ask says that nothing came back.
func TimedOut(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// Ask opens a connection, asks once and closes it.
func (h *Host) Ask(network, from, to string, limit time.Duration) (Answer, error) {
	c, err := h.Dial(network, from, to, limit)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = c.Close() }()
	return Exchange(c, limit)
}
