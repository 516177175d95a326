package drivertest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
)

// These are the time-outs of a client. An answer normally comes quickly, but a busy machine may
// delay it, and who waits for one goes on as soon as it is there. Silence is accepted after a short
// while, as all links are a few microseconds long.
const (
	patience = 20 * time.Second
	silence  = 80 * time.Millisecond
)

// A client opens connections from one address of a host.
type client struct {
	host *host
	from netip.Addr
	bind bool // from is not the host's usual address
	next uint16
}

// A conn is a TCP or UDP connection that lasts over several exchanges.
type conn struct {
	net.Conn
	proto  model.Protocol
	reader *bufio.Reader
	answer answer // TCP: the greeting
	barred bool   // UDP: nothing of it may arrive, and its datagrams say so
}

// A result is the outcome of one try.
type result struct {
	answer
	local netip.AddrPort
	err   error
}

func (c *client) dial(proto model.Protocol, port uint16, to netip.AddrPort, timeout time.Duration) (*conn, error) {
	network := "tcp"
	if proto == model.UDP {
		network = "udp"
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	d := net.Dialer{Control: reuse}
	var ip net.IP
	if c.bind {
		ip = c.from.AsSlice()
	}
	if proto == model.UDP {
		from := &net.UDPAddr{IP: ip, Port: int(port)}
		if port == 0 {
			from.Port = freshPort()
		}
		d.LocalAddr = from
	} else if c.bind || port != 0 {
		d.LocalAddr = &net.TCPAddr{IP: ip, Port: int(port)}
	}
	nc, err := d.DialContext(ctx, network, to.String())
	if err != nil {
		return nil, err
	}
	if tc, ok := nc.(*net.TCPConn); ok {
		_ = tc.SetLinger(0) // so that no connection remains in TIME_WAIT
	}
	return &conn{Conn: nc, proto: proto, reader: bufio.NewReader(nc)}, nil
}

// reuse has a socket take a port that others have, too, whose connections go elsewhere.
func reuse(_, _ string, raw syscall.RawConn) (err error) {
	control := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	return errors.Join(control, err)
}

var ports atomic.Uint32

// freshPort returns a source port that no flow used lately: an earlier flow's port would still go
// where that flow went. These ports are below those that the system chooses from.
func freshPort() int { return 10_000 + int(ports.Add(1)%20_000) }

// local is the address that the client sees as its own.
func (c *conn) local() netip.AddrPort {
	p, _ := netip.ParseAddrPort(c.LocalAddr().String())
	return p
}

// exchange asks the server who it is; a first exchange over TCP reads the greeting. It sends size
// bytes beyond that and expects them back.
func (c *conn) exchange(size int, timeout time.Duration) (answer, error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return answer{}, err
	}
	if c.proto == model.UDP {
		return c.exchangeUDP(size)
	}
	if !c.answer.server.IsValid() {
		line, err := c.reader.ReadString('\n')
		if err != nil {
			return answer{}, err
		}
		if c.answer, err = parseAnswer(line); err != nil {
			return answer{}, err
		}
	}
	return c.answer, c.echo(max(size, 1))
}

func (c *conn) echo(size int) error {
	sent := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		failed <- err
	}()
	got := make([]byte, size)
	_, err := io.ReadFull(c.reader, got)
	if err := errors.Join(err, <-failed); err != nil {
		return err
	}
	if !bytes.Equal(sent, got) {
		return errors.New("the echo differs from what was sent")
	}
	return nil
}

func (c *conn) exchangeUDP(size int) (answer, error) {
	// If the node's kernel rejects what the node itself sends, sending fails here with EPERM; the
	// reason can be read as for any other client.
	sent := make([]byte, max(size, 1))
	if c.barred {
		sent[0] = isBarred
	}
	if _, err := c.Write(sent); err != nil && !errors.Is(err, syscall.EPERM) {
		return answer{}, err
	}
	buf := make([]byte, 65536)
	n, err := c.Read(buf)
	if err != nil {
		return answer{}, err
	}
	if n < size {
		return answer{}, fmt.Errorf("%d bytes came back of %d", n, size)
	}
	line, _, _ := bytes.Cut(buf[:n], []byte("\n"))
	return parseAnswer(string(line))
}

// once opens a connection, makes one exchange and closes the connection. It runs inside the host's
// namespace.
func (c *client) once(s send, to netip.AddrPort, timeout time.Duration) (r result) {
	switch s.proto {
	case model.SCTP:
		c.next++
		r.local = netip.AddrPortFrom(c.from, 40000+c.next%20000)
		r.answer, r.err = initSCTP(r.local, to, uint32(c.next)<<8|1, timeout)
	case echoRequest:
		c.next++
		r.local = netip.AddrPortFrom(c.from, 0)
		r.answer = answer{netip.AddrPortFrom(to.Addr(), 0), r.local}
		r.err = ping(c.from, to.Addr(), c.next, timeout)
	default:
		conn, err := c.dial(s.proto, s.port, to, timeout)
		if err != nil {
			r.err = err
			return r
		}
		defer conn.Close()
		conn.barred = s.fate.outcome == dropped
		r.local = conn.local()
		r.answer, r.err = conn.exchange(s.size, timeout)
	}
	return r
}

// silent reports whether an error means that nothing came back.
func silent(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, unix.EAGAIN) || errors.Is(err, syscall.ETIMEDOUT)
}

// refused reports whether an error means a TCP reset to a SYN, or an ICMP port unreachable.
func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
