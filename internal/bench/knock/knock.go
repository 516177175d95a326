// Package knock connects to services again and again, and tells who answers. So it is seen from when on packets follow a change,
// to a fraction of a millisecond and in the same way whatever programs the kernel.
package knock

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/bench/pin"
	"sluice.dev/sluice/internal/netns"
)

// Pause is the time between two knocks that do not bring what is waited for: what is quicker cannot be told from it.
const Pause = 200 * time.Microsecond

// patience is how long one knock is waited for.
const patience = 10 * time.Millisecond

// Door is where to knock, and which backends are to answer; any if that is the zero prefix. Both are IPv4.
type Door struct {
	Service  netip.AddrPort
	Backends netip.Prefix
}

// opened tells whether the right one answers; who is not valid if nobody does.
func (d Door) opened(who netip.Addr) bool {
	return who.IsValid() && (!d.Backends.IsValid() || d.Backends.Contains(who))
}

// Hand knocks at services from one namespace. Another one has all their endpoints' addresses. It is not safe for concurrent use.
type Hand struct {
	client   *netns.NS
	cpu      int
	listener int
}

// New returns a Hand whose work is done on one CPU, before all else there. It listens on a port of every address of the
// backend's namespace. Close it.
func New(client, backend *netns.NS, port uint16, cpu int) (*Hand, error) {
	h := &Hand{client: client, cpu: cpu, listener: -1}
	err := backend.Do(func() error {
		var err error
		h.listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = errors.Join(
			unix.SetsockoptInt(h.listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(h.listener, &unix.SockaddrInet4{Port: int(port)}),
			unix.Listen(h.listener, 128))
		if err != nil {
			return errors.Join(err, unix.Close(h.listener))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", backend.Name, err)
	}
	return h, nil
}

// Close ends the listening.
func (h *Hand) Close() error { return unix.Close(h.listener) }

// Until knocks at each door until it is answered as it is to be, one after the other, and returns the time just before the knock
// that followed the last one in vain: from then on, no door was found that did not follow. Knocks that come to nothing in some
// milliseconds are given up.
func (h *Hand) Until(ctx context.Context, doors ...Door) (time.Time, error) {
	since := time.Now()
	err := h.client.Do(func() error {
		if err := pin.Thread(h.cpu); err != nil {
			return err
		}
		for _, d := range doors {
			for {
				who, err := h.knock(d.Service)
				if err != nil {
					return fmt.Errorf("connect to %s: %w", d.Service, err)
				}
				if d.opened(who) {
					break
				}
				if ctx.Err() != nil {
					return fmt.Errorf("%s is not answered as it should be (by %s), but by %s: %w", d.Service, d.Backends, who, ctx.Err())
				}
				if err := rest(); err != nil {
					return err
				}
				since = time.Now()
			}
		}
		return nil
	})
	return since, err
}

// rest waits for the pause to be over, to a fraction of it: the runtime's own timers may be a millisecond late.
func rest() error {
	left := unix.NsecToTimespec(Pause.Nanoseconds())
	if err := unix.Nanosleep(&left, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait: %w", err)
	}
	return nil
}

// knock connects once and returns the backend that answered; not valid if none did. An error means that it could not be tried.
func (h *Hand) knock(service netip.AddrPort) (netip.Addr, error) {
	h.forget()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	if err := abrupt(fd); err != nil {
		return netip.Addr{}, err
	}
	until := time.Now().Add(patience)
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: service.Addr().As4(), Port: int(service.Port())})
	if errors.Is(err, unix.EINPROGRESS) && await(fd, unix.POLLOUT, until) {
		var refused int
		if refused, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && refused != 0 {
			err = unix.Errno(refused)
		}
	}
	if err != nil || !await(h.listener, unix.POLLIN, until) {
		return netip.Addr{}, nil
	}
	return h.accept()
}

// accept takes a connection that has come and returns where it came to.
func (h *Hand) accept() (netip.Addr, error) {
	fd, _, err := unix.Accept4(h.listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return netip.Addr{}, nil // it has gone again
	}
	defer unix.Close(fd)
	if err := abrupt(fd); err != nil {
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

// forget drops connections of earlier knocks that came too late.
func (h *Hand) forget() {
	for {
		fd, _, err := unix.Accept4(h.listener, unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		unix.Close(fd)
	}
}

// abrupt lets a connection end without anything that stays behind.
func abrupt(fd int) error {
	return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// await waits for an event, and tells whether it came.
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
