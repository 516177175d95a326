package drivertest

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Datagram is an IP packet of any protocol, with the bytes after its header. The kernel sets its
// hop limit, 64, and the checksum of ICMPv6.
type Datagram struct {
	From, To netip.Addr // of hosts of the mesh
	Protocol uint8
	Payload  []byte
}

// Carry sends a datagram and reports whether it arrived.
func (m *Mesh) Carry(d Datagram) (arrived bool, err error) {
	err = onOneCPU(func() error {
		arrived, err = m.carry(d)
		return err
	})
	return arrived, err
}

func (m *Mesh) carry(d Datagram) (arrived bool, err error) {
	from, err := m.raw(d.From, d.Protocol)
	if err != nil {
		return false, err
	}
	defer unix.Close(from)
	to, err := m.raw(d.To, d.Protocol)
	if err != nil {
		return false, err
	}
	defer unix.Close(to)
	if err := unix.Sendto(from, d.Payload, 0, sockaddr(d.To)); err != nil && !errors.Is(err, unix.EPERM) {
		return false, fmt.Errorf("send %+v: %w", d, err)
	}
	if err := m.sentinel.flush(); err != nil {
		return false, err
	}
	for buf := make([]byte, 2048); ; {
		_, sender, err := receive(to, buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("receive at %v: %w", d.To, err)
		case sender == d.From:
			return true, nil
		}
	}
}

// raw opens a socket for a protocol at an address of one of the hosts.
func (m *Mesh) raw(at netip.Addr, protocol uint8) (fd int, err error) {
	h := m.topology.owner[at]
	if h == nil {
		return -1, fmt.Errorf("no host has the address %v", at)
	}
	err = h.ns.Do(func() error {
		fd, err = openRaw(int(protocol), at)
		return err
	})
	return fd, err
}
