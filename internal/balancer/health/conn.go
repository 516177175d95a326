package health

import (
	"bytes"
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/ping"
)

// maxIdle is how many sockets of each family are kept for checks to come.
const maxIdle = 128

// conn is the socket of a TCP, UDP or HTTP check. A TCP socket may serve one check after the other,
// each with a connection of its own: that costs the kernel less than a new one.
type conn struct {
	*target   // nil: idle
	fd        int
	family    int
	release   func() // ends the check under way
	connected bool
	over      bool   // the backend has ended its side of the connection
	got       []byte // of a connection: what has come of the answer
}

func (t *target) stream() bool { return t.check.Type != UDP }

// question is what to send.
func (t *target) question() []byte {
	if t.check.Type == HTTP {
		return t.request
	}
	return []byte(t.check.Send)
}

// plain is a check that has nothing to say.
func (t *target) plain() bool {
	return t.check.Type == TCP && t.check.Send == "" && t.check.Expect == ""
}

// prompt reports whether the check has something for the backend as soon as it is there: what it
// sends, or the reset of a plain check.
func (t *target) prompt() bool { return t.stream() && (t.plain() || len(t.question()) > 0) }

// dial begins a TCP, UDP or HTTP check.
func (s *sockets) dial(t *target) {
	if o, ended := s.open(t); ended {
		s.end(t, o)
	}
}

// open has a socket connect. It reports whether the check has ended already.
func (s *sockets) open(t *target) (o outcome, ended bool) {
	if t.check.Type == HTTP && t.request == nil {
		var err error
		if t.request, err = (&probe{t.Key, t.check, t.at}).request(); err != nil {
			return down(line(err.Error())), true
		}
	}
	to, family := ping.Sockaddr(t.at)
	c, err := s.socket(t, family)
	if err != nil {
		return outcome{err: err}, true
	}
	c.target, t.cancel = t, c.release
	s.conns[int32(c.fd)] = c
	if err := unix.Connect(c.fd, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return failed(err), true
	}
	if !c.stream() {
		return s.say(c)
	}
	return outcome{}, false
}

// socket returns a socket that is not connected, an idle one if there is any.
func (s *sockets) socket(t *target, family int) (*conn, error) {
	if idle := s.idle[family]; t.reusable() && len(idle) > 0 {
		last := len(idle) - 1
		s.idle[family] = idle[:last]
		return idle[last], nil
	}
	kind, events := unix.SOCK_STREAM, uint32(unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET)
	if !t.stream() {
		kind, events = unix.SOCK_DGRAM, unix.EPOLLIN|unix.EPOLLET
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(configure(fd, family, t), s.watch(fd, events)); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	c := &conn{fd: fd, family: family}
	c.release = func() { s.release(c) }
	return c, nil
}

// configure has the handshake's last packet wait for what there is to send, which goes with it or,
// in a plain check, takes its place. A UDP socket hears of hosts that cannot be reached, and not of
// closed ports alone.
func configure(fd, family int, t *target) error {
	switch {
	case t.prompt():
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 1)
	case !t.stream() && family == unix.AF_INET:
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	case !t.stream():
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	}
	return nil
}

// reusable reports whether another check can have the socket of this one: a link-local address has
// bound it to an interface.
func (t *target) reusable() bool { return t.prompt() && t.at.Addr().Zone() == "" }

// release ends a check. A connection is reset if nobody misses the rest of it: a plain check's, and
// one whose other side has ended. Then neither machine has a TIME-WAIT entry.
func (s *sockets) release(c *conn) {
	delete(s.conns, int32(c.fd))
	t := c.target
	reset := (t.plain() || c.over) && disconnect(c.fd) == nil
	if idle := s.idle[c.family]; reset && c.connected && t.reusable() && len(idle) < maxIdle {
		c.target, c.connected, c.over, c.got = nil, false, false, nil
		s.idle[c.family] = append(idle, c)
		return
	}
	_ = unix.Close(c.fd)
}

// disconnect resets a connection. The socket can then make another one.
func disconnect(fd int) error {
	nowhere := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&nowhere)), unsafe.Sizeof(nowhere))
	if errno != 0 {
		return errno
	}
	return nil
}

// advance goes on with a check whose socket is ready.
func (s *sockets) advance(c *conn, events uint32) {
	var o outcome
	var ended bool
	c.over = events&unix.EPOLLRDHUP != 0
	if c.stream() && !c.connected {
		o, ended = s.greet(c, events)
	}
	if !ended && (c.connected || !c.stream()) && events&^unix.EPOLLOUT != 0 {
		o, ended = s.listen(c)
	}
	if ended {
		s.end(c.target, o)
	}
}

// greet goes on with a connection when it is known whether the backend is there.
func (s *sockets) greet(c *conn, events uint32) (o outcome, ended bool) {
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			return failed(unix.Errno(code)), true
		}
	}
	if events&unix.EPOLLOUT == 0 {
		return outcome{}, false
	}
	c.connected = true
	if len(c.question()) > 0 {
		if o, ended := s.say(c); ended {
			return o, true
		}
	}
	if c.check.Type == TCP && c.check.Expect == "" {
		return up("connected"), true
	}
	return outcome{}, false
}

// say sends what is to be sent. As it is less than any socket's buffer, it is sent at once.
func (s *sockets) say(c *conn) (o outcome, ended bool) {
	if _, err := unix.Write(c.fd, c.question()); err != nil {
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
		}
		c.over = c.over || n == 0 && c.stream()
		answer, whole := s.buffer[:n], n == 0 || !c.stream()
		if len(c.got) > 0 {
			answer = append(c.got, answer...)
		}
		if o, ended = c.judge(answer, whole); ended {
			return o, true
		}
		if len(c.got) == 0 {
			answer = bytes.Clone(answer)
		}
		c.got = answer
	}
}

// judge compares an answer, or what has come of it, with what was expected. It reports whether that
// decides the check.
func (c *conn) judge(answer []byte, whole bool) (o outcome, ended bool) {
	switch {
	case len(answer) == 0 && c.stream():
		return down("connection closed without an answer"), true
	case c.check.Type == HTTP:
		return c.check.compare(answer, whole)
	case bytes.Contains(answer, []byte(c.check.Expect)):
		return up("answered"), true
	}
	c.late = lacks("answer", c.check.Expect)
	return down(c.late), whole || len(answer) >= maxAnswer
}
