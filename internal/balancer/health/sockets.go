package health

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxAnswer = 64 << 10 // bytes of an answer that are looked at
	few       = 4        // connections whose news are not kept waiting for those of others
)

// sockets are those of all checks that do not block. Checks end by a call of end.
type sockets struct {
	end    func(*target, outcome)
	epoll  int // 0: not open yet
	conns  map[int32]*conn
	idle   map[int][]*conn // by family: sockets for checks to come
	pings  [2]*pinger      // of IPv4 and IPv6; nil: not open yet
	events [256]unix.EpollEvent
	buffer [maxAnswer]byte
}

// busy reports whether there is anything to wait for.
func (s *sockets) busy() bool {
	return len(s.conns) > 0 || s.pings[0].busy() || s.pings[1].busy()
}

// wait returns after a slot: what has happened on all sockets is read together, which is cheaper
// than to wake up for each. Where few connections are under way, it returns as soon as there is
// something to read.
//
// It sleeps in a system call, less than the 10 ms after which Go's scheduler finds something else
// to do for the thread: timers cost more, and so does a scheduler that has gone idle and wakes up.
func (s *sockets) wait(slot time.Duration) {
	var ready []unix.PollFd
	if n := len(s.conns); n > 0 && n <= few {
		ready = []unix.PollFd{{Fd: int32(s.epoll), Events: unix.POLLIN}}
	}
	_, _ = unix.Poll(ready, int(min(slot, 9*time.Millisecond)/time.Millisecond))
}

// read sees to all sockets on which something has happened. It does not wait.
func (s *sockets) read() {
	for s.busy() {
		n, err := unix.EpollWait(s.epoll, s.events[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		for _, e := range s.events[:max(n, 0)] {
			if c := s.conns[e.Fd]; c != nil {
				s.advance(c, e.Events)
			}
			for _, p := range s.pings {
				if p != nil && int32(p.FD()) == e.Fd {
					s.hear(p)
				}
			}
		}
		if n < len(s.events) {
			return
		}
	}
}

// watch has read see to a socket when any of the events has come.
func (s *sockets) watch(fd int, events uint32) error {
	if s.epoll == 0 {
		epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return fmt.Errorf("open epoll: %w", err)
		}
		s.epoll, s.conns, s.idle = epoll, map[int32]*conn{}, map[int][]*conn{}
	}
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("watch socket: %w", err)
	}
	return nil
}

// close closes the sockets that are not those of a check.
func (s *sockets) close() {
	for _, p := range s.pings {
		if p != nil {
			p.Close()
		}
	}
	for _, idle := range s.idle {
		for _, c := range idle {
			_ = unix.Close(c.fd)
		}
	}
	if s.epoll != 0 {
		_ = unix.Close(s.epoll)
	}
}
