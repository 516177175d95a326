package drivertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

// A Pair is an established connection between two hosts, over which both ends can send.
type Pair struct {
	Client, Server net.Conn
}

// Pair connects a host, by its name, to an address and port of another, over TCP or UDP. via is the
// address that the client connects to: the server's own, or one of a service in front of it. Both
// ends have sent when it returns.
func (m *Mesh) Pair(t testing.TB, from string, proto model.Protocol, server, via netip.AddrPort) (*Pair, error) {
	t.Helper()
	s, err := m.listen(proto, server)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = s.Close() })
	p := &Pair{}
	err = m.topology.hosts[from].ns.Do(func() (err error) {
		d := net.Dialer{Timeout: patience}
		p.Client, err = d.DialContext(t.Context(), map[model.Protocol]string{model.TCP: "tcp", model.UDP: "udp"}[proto], via.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect %s to %v: %w", from, via, err)
	}
	t.Cleanup(func() { _ = p.Client.Close() })
	if err := p.meet(s); err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = p.Server.Close() })
	if !p.Speak(true, patience) || !p.Speak(false, patience) {
		return nil, fmt.Errorf("%s and %v are connected, but do not hear each other", from, via)
	}
	return p, nil
}

// It is a server's socket: a listener, or the only socket of UDP.
type serverSocket interface{ Close() error }

// listen waits for the end of an earlier server: a process that another test starts right now may
// have its socket for a moment.
func (m *Mesh) listen(proto model.Protocol, at netip.AddrPort) (s serverSocket, err error) {
	host := m.topology.owner[at.Addr()]
	open := func() (err error) {
		var lc net.ListenConfig
		if proto == model.UDP {
			s, err = lc.ListenPacket(context.Background(), "udp", at.String())
		} else {
			s, err = lc.Listen(context.Background(), "tcp", at.String())
		}
		return err
	}
	end := time.Now().Add(patience)
	for err = host.ns.Do(open); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); err = host.ns.Do(open) {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %v on %s: %w", at, host.name, err)
	}
	return s, nil
}

// meet makes the server's end of the connection.
func (p *Pair) meet(s serverSocket) error {
	switch s := s.(type) {
	case *net.TCPListener:
		if err := s.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		c, err := s.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		p.Server = c
		return errors.Join(c.(*net.TCPConn).SetLinger(0), p.Client.(*net.TCPConn).SetLinger(0))
	case *net.UDPConn:
		if _, err := p.Client.Write([]byte("hello")); err != nil {
			return err
		}
		if err := s.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		_, from, err := s.ReadFromUDPAddrPort(make([]byte, 16))
		if err != nil {
			return fmt.Errorf("hear from the client: %w", err)
		}
		p.Server = &answering{s, from}
	}
	return nil
}

// answering is a UDP server's end of its connection to one client.
type answering struct {
	*net.UDPConn
	client netip.AddrPort
}

func (a *answering) Write(b []byte) (int, error) { return a.WriteToUDPAddrPort(b, a.client) }

// Speak reports whether what one end sends now reaches the other in time.
func (p *Pair) Speak(client bool, timeout time.Duration) bool {
	from, to := p.Server, p.Client
	if client {
		from, to = p.Client, p.Server
	}
	buf := make([]byte, 64)
	for { // what was sent earlier and arrived late does not count
		_ = to.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := to.Read(buf); err != nil {
			break
		}
	}
	if _, err := from.Write([]byte("speak")); err != nil {
		return false
	}
	_ = to.SetReadDeadline(time.Now().Add(timeout))
	_, err := to.Read(buf)
	return err == nil
}

// Silent is how long to wait before concluding that nothing comes; Patient is the longest wait for
// an expected packet.
const (
	Silent  = silence
	Patient = patience
)
