package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

const (
	tries    = 3               // backends that are tried for a connection
	dialTime = 3 * time.Second // for each: room for a SYN that is lost
	acceptIn = 50 * time.Millisecond
)

// accept takes connections until the listener is closed. The address that a connection was accepted
// at is its frontend's.
func (d *Driver) accept(l *net.TCPListener) {
	for {
		c, err := l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // there are no files left, or no memory
			d.log.Warn("cannot accept connections to services", "error", err)
			time.Sleep(acceptIn)
		default:
			d.start(func() { d.serveTCP(c) })
		}
	}
}

// serveTCP carries a connection to a backend.
func (d *Driver) serveTCP(front *net.TCPConn) {
	s, back := d.connect(front)
	if s == nil {
		_ = front.SetLinger(0)
		_ = front.Close()
		return
	}
	defer d.now.Add(-1)
	defer s.end()
	s.own(front)
	if err := d.introduce(back, front); err != nil {
		s.cut()
		return
	}
	carry := func(to, from *net.TCPConn) {
		if err := d.pipes.copy(to, from); err != nil {
			s.cut()
		}
	}
	var other sync.WaitGroup
	other.Go(func() { carry(back, front) })
	carry(front, back)
	other.Wait()
}

// connect finds a backend that answers. It returns nil if there is none, or too many connections.
func (d *Driver) connect(front *net.TCPConn) (*session, *net.TCPConn) {
	from, to := addrPort(front.RemoteAddr()), addrPort(front.LocalAddr())
	fe := d.frontend(state.FrontendKey{Addr: to.Addr(), Protocol: model.TCP, Port: to.Port()})
	if fe == nil || !d.admit() {
		return nil, nil
	}
	var tried []netip.AddrPort
	for range tries {
		s := fe.begin(from.Addr(), tried)
		if s == nil {
			break
		}
		back, err := s.dial("tcp", from.Addr())
		if err == nil {
			return s, back.(*net.TCPConn)
		}
		s.end()
		tried = append(tried, s.backend)
	}
	d.now.Add(-1)
	return nil, nil
}

// admit reports whether one more connection may go through the proxy, and counts it.
func (d *Driver) admit() bool {
	if d.now.Add(1) <= d.most {
		return true
	}
	d.now.Add(-1)
	return false
}

// dial opens a socket to the session's backend, as from the client where that is asked for.
func (s *session) dial(network string, from netip.Addr) (net.Conn, error) {
	d := s.of.d
	as := netip.Addr{}
	if d.options.ClientAddress == Transparent && s.keeps(from) {
		as = from
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	c, err := d.sockets.dial(ctx, network, as, s.backend, d.redirect != nil)
	if err != nil {
		return nil, err
	}
	s.own(socket{c})
	return c, nil
}

// socket is a closer, whatever its protocol.
type socket struct{ net.Conn }

// SetLinger implements closer.
func (s socket) SetLinger(sec int) error {
	if t, is := s.Conn.(*net.TCPConn); is {
		return t.SetLinger(sec)
	}
	return nil
}

// addrPort is a socket's address as states have it.
func addrPort(a net.Addr) netip.AddrPort {
	p, err := netip.ParseAddrPort(a.String())
	if t, is := a.(*net.TCPAddr); is {
		p, err = t.AddrPort(), nil
	}
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
}
