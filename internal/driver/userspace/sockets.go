package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/netns"
)

// sockets opens sockets in the network namespace that the driver serves.
type sockets struct {
	ns *netns.NS // nil: it is the process's own
}

// openSockets returns those of the calling thread's namespace.
func openSockets() (sockets, error) {
	const here = "/proc/thread-self/ns/net"
	mine, is := netns.IDOf(here)
	if own, _ := netns.IDOf("/proc/self/ns/net"); !is || own == mine {
		return sockets{}, nil
	}
	ns, err := netns.OpenPath(here)
	return sockets{ns}, err
}

func (s sockets) close() error {
	if s.ns == nil {
		return nil
	}
	return s.ns.Close()
}

// in runs f where sockets belong to the namespace.
func (s sockets) in(f func() error) error {
	if s.ns == nil {
		return f()
	}
	return s.ns.Do(f)
}

// Clients that are gone without a word are noticed after some minutes.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Minute, Interval: 30 * time.Second, Count: 4}

// listen listens for connections; foreign: to any address, and at one that others may have.
func (s sockets) listen(at netip.AddrPort, foreign bool) (l *net.TCPListener, err error) {
	c := net.ListenConfig{Control: options(at.Addr(), foreign, false), KeepAliveConfig: keepAlive}
	c.SetMultipathTCP(false) // splice does not know it
	err = s.in(func() error {
		of, err := c.Listen(context.Background(), "tcp", at.String())
		if err == nil {
			l = of.(*net.TCPListener)
		}
		return err
	})
	return l, err
}

// packets opens a socket for datagrams.
func (s sockets) packets(at netip.AddrPort, foreign bool) (u *net.UDPConn, err error) {
	c := net.ListenConfig{Control: options(at.Addr(), foreign, false)}
	err = s.in(func() error {
		of, err := c.ListenPacket(context.Background(), "udp", at.String())
		if err == nil {
			u = of.(*net.UDPConn)
		}
		return err
	})
	return u, err
}

// dial connects, from another's address if that is valid; what a marked socket sends is not led to
// the proxy again.
func (s sockets) dial(ctx context.Context, network string, as netip.Addr, to netip.AddrPort, marked bool) (c net.Conn, err error) {
	d := net.Dialer{Control: options(to.Addr(), as.IsValid(), marked), KeepAliveConfig: keepAlive}
	switch {
	case as.IsValid() && network == "udp":
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(as, 0))
	case as.IsValid():
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(as, 0))
	}
	err = s.in(func() error {
		c, err = d.DialContext(ctx, network, to.String())
		return err
	})
	return c, err
}

// isOwn reports whether the address is one of this machine's.
func (s sockets) isOwn(a netip.Addr) bool {
	u, err := s.packets(netip.AddrPortFrom(a, 0), false)
	if err != nil {
		return false
	}
	return u.Close() == nil
}

// options sets those of a socket before it has an address.
func options(of netip.Addr, foreign, marked bool) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		failed := c.Control(func(fd uintptr) {
			set := func(level, option, value int) {
				if e := unix.SetsockoptInt(int(fd), level, option, value); e != nil && err == nil {
					err = fmt.Errorf("set socket option %d: %w", option, e)
				}
			}
			switch {
			case foreign && of.Is4():
				set(unix.SOL_IP, unix.IP_TRANSPARENT, 1)
			case foreign:
				set(unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
			}
			if foreign { // the port is chosen when it connects: it has to differ only there
				set(unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
			}
			if marked {
				set(unix.SOL_SOCKET, unix.SO_MARK, ownMark)
			}
		})
		return errors.Join(failed, err)
	}
}
