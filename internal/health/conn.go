package health

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"
)

// conn is the socket of a TCP or UDP check.
type conn struct {
	*target
	fd        int
	connected bool
	got       []byte // of a TCP connection: what has come of the answer
}

func (c *conn) stream() bool { return c.check.Type == TCP }

// plain is a check that has nothing to say.
func (c *conn) plain() bool { return c.stream() && c.check.Send == "" && c.check.Expect == "" }

// dial begins a TCP or UDP check.
func (s *sockets) dial(t *target) {
	c := &conn{target: t, fd: -1}
	if o, ended := s.open(c); ended {
		if c.fd >= 0 && t.cancel == nil {
			_ = unix.Close(c.fd)
		}
		s.end(t, o)
	}
}

// open makes the socket and has it connect. It reports whether the check has ended already.
func (s *sockets) open(c *conn) (o outcome, ended bool) {
	to, family := sockaddr(c.at)
	kind, events := unix.SOCK_STREAM, uint32(unix.EPOLLOUT)
	if !c.stream() {
		kind, events = unix.SOCK_DGRAM, unix.EPOLLIN
	}
	var err error
	if c.fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return outcome{err: err}, true
	}
	if err := c.configure(family); err != nil {
		return outcome{err: err}, true
	}
	if err := unix.Connect(c.fd, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return failed(err), true
	}
	if err := s.watch(c.fd, events, unix.EPOLL_CTL_ADD); err != nil {
		return outcome{err: err}, true
	}
	s.conns[int32(c.fd)] = c
	c.cancel = func() {
		delete(s.conns, int32(c.fd))
		_ = unix.Close(c.fd)
	}
	if !c.stream() {
		return s.say(c)
	}
	return outcome{}, false
}

// configure has a plain check end with a reset in place of the handshake's last packet: closing
// with a time of zero resets, and without quick acknowledgement that packet waits for data to go
// with it. A UDP socket hears of hosts that cannot be reached, and not of closed ports alone.
func (c *conn) configure(family int) error {
	switch {
	case c.plain():
		if err := unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0); err != nil {
			return err
		}
		return unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	case !c.stream() && family == unix.AF_INET:
		return unix.SetsockoptInt(c.fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	case !c.stream():
		return unix.SetsockoptInt(c.fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	}
	return nil
}

// advance goes on with a check whose socket is ready.
func (s *sockets) advance(c *conn, events uint32) {
	var o outcome
	var ended bool
	if c.connected || !c.stream() {
		o, ended = s.listen(c)
	} else {
		o, ended = s.greet(c, events)
	}
	if ended {
		s.end(c.target, o)
	}
}

// greet goes on with a TCP check when it is known whether the backend is there.
func (s *sockets) greet(c *conn, events uint32) (o outcome, ended bool) {
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			return failed(unix.Errno(code)), true
		}
	}
	c.connected = true
	if c.check.Send != "" {
		if o, ended := s.say(c); ended {
			return o, true
		}
	}
	if c.check.Expect == "" {
		return up("connected"), true
	}
	if err := s.watch(c.fd, unix.EPOLLIN, unix.EPOLL_CTL_MOD); err != nil {
		return outcome{err: err}, true
	}
	return outcome{}, false
}

// say sends what is to be sent. As maxText is less than any socket's buffer, it is sent at once.
func (s *sockets) say(c *conn) (o outcome, ended bool) {
	if _, err := unix.Write(c.fd, []byte(c.check.Send)); err != nil {
		return failed(err), true
	}
	return outcome{}, false
}

// listen reads what there is of the answer.
func (s *sockets) listen(c *conn) (o outcome, ended bool) {
	for {
		n, err := unix.Read(c.fd, s.buffer[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			return outcome{}, false
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return failed(err), true
		case n == 0 && c.stream():
			return down(c.closed()), true
		}
		answer := s.buffer[:n]
		if c.stream() {
			c.got = append(c.got, answer...)
			answer = c.got
		}
		if bytes.Contains(answer, []byte(c.check.Expect)) {
			return up("answered"), true
		}
		c.late = lacks("answer", c.check.Expect)
		if !c.stream() || len(c.got) >= maxAnswer {
			return down(c.late), true
		}
	}
}

// closed says what is wrong with an answer that has ended.
func (c *conn) closed() string {
	if len(c.got) == 0 {
		return "connection closed without an answer"
	}
	return c.late
}
