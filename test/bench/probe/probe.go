// Package probe connects to services repeatedly and reports which backend answers. So the time from
// a change until packets follow it is measured to a fraction of a millisecond, in the same way for
// every data plane.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/cpuaffinity"
	"sluice.dev/sluice/test/netns"
)

// Interval is the time between two probes; shorter times cannot be measured.
const Interval = 200 * time.Microsecond

// timeout is how long one probe waits for its answer.
const timeout = 10 * time.Millisecond

// Target is a service to probe and the backends that are to answer; the zero prefix means any
// backend. Both are IPv4.
type Target struct {
	Service  netip.AddrPort
	Backends netip.Prefix
}

// reached reports whether one of the target's backends answered. The address is not valid if no
// backend answered.
func (t Target) reached(backend netip.Addr) bool {
	return backend.IsValid() && (!t.Backends.IsValid() || t.Backends.Contains(backend))
}

// Prober probes services from one namespace; another one has all their endpoints' addresses. It is
// not safe for concurrent use.
type Prober struct {
	client   *netns.NS
	cpu      int
	listener int
}

// New returns a Prober that works on one CPU with the highest priority there. It listens on a port
// of every address of the backend's namespace. Close it.
func New(client, backend *netns.NS, port uint16, cpu int) (*Prober, error) {
	p := &Prober{client: client, cpu: cpu, listener: -1}
	err := backend.Do(func() error {
		var err error
		p.listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = errors.Join(
			unix.SetsockoptInt(p.listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(p.listener, &unix.SockaddrInet4{Port: int(port)}),
			unix.Listen(p.listener, 128))
		if err != nil {
			return errors.Join(err, unix.Close(p.listener))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", backend.Name, err)
	}
	return p, nil
}

// Close stops listening.
func (p *Prober) Close() error { return unix.Close(p.listener) }

// Until probes one target after the other, each until one of its backends answers. It returns the
// start of the first probe after the last one that failed: from then on, every probe succeeded.
func (p *Prober) Until(ctx context.Context, targets ...Target) (time.Time, error) {
	since := time.Now()
	err := p.client.Do(func() error {
		if err := cpuaffinity.BindThread(p.cpu); err != nil {
			return err
		}
		for _, t := range targets {
			for {
				backend, err := p.connect(t.Service)
				if err != nil {
					return fmt.Errorf("connect to %s: %w", t.Service, err)
				}
				if t.reached(backend) {
					break
				}
				if ctx.Err() != nil {
					return fmt.Errorf("%s is answered by %s, not by %s: %w", t.Service, backend, t.Backends, ctx.Err())
				}
				if err := pause(); err != nil {
					return err
				}
				since = time.Now()
			}
		}
		return nil
	})
	return since, err
}

// pause waits for an interval, to a fraction of it: the runtime's own timers may be a millisecond
// late.
func pause() error {
	left := unix.NsecToTimespec(Interval.Nanoseconds())
	if err := unix.Nanosleep(&left, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait: %w", err)
	}
	return nil
}

// connect connects once and returns the backend that answered, or the zero address if none did. An
// error means that the probe could not be made.
func (p *Prober) connect(service netip.AddrPort) (netip.Addr, error) {
	p.drain()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	if err := resetOnClose(fd); err != nil {
		return netip.Addr{}, err
	}
	until := time.Now().Add(timeout)
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: service.Addr().As4(), Port: int(service.Port())})
	if errors.Is(err, unix.EINPROGRESS) && await(fd, unix.POLLOUT, until) {
		var refused int
		if refused, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && refused != 0 {
			err = unix.Errno(refused)
		}
	}
	if err != nil || !await(p.listener, unix.POLLIN, until) {
		return netip.Addr{}, nil
	}
	return p.accept()
}

// accept takes a waiting connection and returns the address that it came to.
func (p *Prober) accept() (netip.Addr, error) {
	fd, _, err := unix.Accept4(p.listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return netip.Addr{}, nil // it has gone again
	}
	defer unix.Close(fd)
	if err := resetOnClose(fd); err != nil {
		return netip.Addr{}, err
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, err
	}
	v4, ok := at.(*unix.SockaddrInet4)
	if !ok {
		return netip.Addr{}, fmt.Errorf("a connection came to an address of another family: %v", at)
	}
	return netip.AddrFrom4(v4.Addr), nil
}

// drain drops connections of earlier probes that came too late.
func (p *Prober) drain() {
	for {
		fd, _, err := unix.Accept4(p.listener, unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		unix.Close(fd)
	}
}

// resetOnClose makes a connection end with a reset, which leaves no TIME_WAIT state behind.
func resetOnClose(fd int) error {
	return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// await waits for an event and reports whether it came.
func await(fd int, event int16, until time.Time) bool {
	for {
		left := time.Until(until)
		if left < 0 {
			return false
		}
		limit := unix.NsecToTimespec(left.Nanoseconds())
		n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: event}}, &limit, nil)
		if n > 0 {
			return true
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
	}
}
