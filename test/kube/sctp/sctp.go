// Package sctp is what Kubernetes' agnhost uses of github.com/ishidawataru/sctp, by its names. With
// a kernel that has sockets of SCTP it is that package. With one that has none, this process speaks
// SCTP itself (RFC 9260, by pion), over raw sockets: to connection tracking, to NAT and to policies
// its packets are SCTP packets like any other. Raw sockets need CAP_NET_RAW, which containers have
// by default.
//
// What the kernel would do and this does not: a port that nobody serves is silent where another is
// served (the kernel sends ABORT); a client that is killed sends nothing; tags of what arrives are
// not checked; ports of clients are random, and no check says that they are free.
package sctp

import (
	"errors"
	"net"
	"syscall"

	kernel "kernel.example/sctp"
)

// SCTPAddr is the address of an endpoint.
type SCTPAddr = kernel.SCTPAddr

// SCTPConn is stream 0 of an association.
type SCTPConn struct {
	net.Conn
	remote *SCTPAddr
}

// SCTPRemoteAddr returns the address of the other end.
func (c *SCTPConn) SCTPRemoteAddr(int) (*SCTPAddr, error) { return c.remote, nil }

// SCTPListener accepts associations.
type SCTPListener struct {
	accept func() (*SCTPConn, error)
	close  func() error
}

// AcceptSCTP waits for an association.
func (l *SCTPListener) AcceptSCTP() (*SCTPConn, error) { return l.accept() }

// Close ends the listener, not its associations.
func (l *SCTPListener) Close() error { return l.close() }

// ResolveSCTPAddr returns the address that a text means, as 192.0.2.1:80.
func ResolveSCTPAddr(network, addr string) (*SCTPAddr, error) {
	return kernel.ResolveSCTPAddr(network, addr)
}

// DialSCTP opens an association with the first address of to.
func DialSCTP(network string, from, to *SCTPAddr) (*SCTPConn, error) {
	c, err := kernel.DialSCTP(network, from, to)
	if errors.Is(err, syscall.EPROTONOSUPPORT) {
		return dialRaw(to)
	}
	if err != nil {
		return nil, err
	}
	return &SCTPConn{c, to}, nil
}

// ListenSCTP accepts associations with the first address of at, or all of the machine.
func ListenSCTP(network string, at *SCTPAddr) (*SCTPListener, error) {
	l, err := kernel.ListenSCTP(network, at)
	if errors.Is(err, syscall.EPROTONOSUPPORT) {
		return listenRaw(at)
	}
	if err != nil {
		return nil, err
	}
	return &SCTPListener{close: l.Close, accept: func() (*SCTPConn, error) {
		c, err := l.AcceptSCTP()
		if err != nil {
			return nil, err
		}
		remote, err := c.SCTPRemoteAddr(0)
		return &SCTPConn{c, remote}, err
	}}, nil
}
