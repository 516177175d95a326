package load

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	requestClose = "GET / HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"
	requestKeep  = "GET / HTTP/1.1\r\nHost: bench\r\n\r\n"
	answerClose  = "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
	answerKeep   = "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"
)

// role of a file descriptor in the loop.
type role uint8

const (
	absent role = iota
	listener
	timer
	server
	client
)

// conn is one end of a connection; a client's has a request while due is set.
type conn struct {
	role role
	sent bool      // the request is written
	got  int       // bytes of the answer so far
	due  time.Time // when the request under way should have started; zero: none
	// began is when it did: a thread that was held up longer than the time-out begins some late.
	began time.Time
}

// loop is the state of one run; conns is indexed by file descriptor.
type loop struct {
	Config
	epoll, timer, listener int

	conns  []conn
	idle   []int // kept-alive clients without a request
	active int   // requests under way
	source int   // next of Sources
	begun  time.Time
	made   int // requests started
	buf    [4096]byte
	ask    []byte
	answer []byte
	res    *Result
}

func newLoop(c Config, listening int) (*loop, error) {
	l := &loop{Config: c, epoll: -1, timer: -1, listener: listening, res: &Result{Reasons: map[string]int{}}}
	ask, answer := requestClose, answerClose
	if c.KeepAlive {
		ask, answer = requestKeep, answerKeep
	}
	body := strings.Repeat("ok", (max(c.Body, 1)+1)/2)
	l.ask, l.answer = []byte(ask), fmt.Appendf(nil, answer, len(body), body)
	l.res.latency = make([]time.Duration, 0, 1<<18) // so that it does not grow while measuring
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	if l.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		l.close()
		return nil, fmt.Errorf("create timer: %w", err)
	}
	err = errors.Join(l.watch(listening, listener, unix.EPOLLIN), l.watch(l.timer, timer, unix.EPOLLIN))
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// close closes open connections; the listener belongs to the caller.
func (l *loop) close() {
	for fd, c := range l.conns {
		if c.role == server || c.role == client {
			unix.Close(fd)
		}
	}
	for _, fd := range []int{l.timer, l.epoll} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (l *loop) watch(fd int, r role, events uint32) error {
	for len(l.conns) <= fd {
		l.conns = append(l.conns, conn{})
	}
	l.conns[fd] = conn{role: r}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("watch file descriptor: %w", err)
	}
	return nil
}

// tick is how often a run at full speed looks for time-outs and its end.
const tick = 10 * time.Millisecond

func (l *loop) run(ctx context.Context) (*Result, error) {
	every := tick
	if l.Rate > 0 {
		every = time.Second / time.Duration(l.Rate)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return nil, fmt.Errorf("read clock: %w", err)
	}
	l.begun = time.Now()
	// At absolute times, as the thread may be held up before the timer is set.
	spec := unix.ItimerSpec{Interval: unix.NsecToTimespec(every.Nanoseconds()), Value: unix.NsecToTimespec(now.Nano() + every.Nanoseconds())}
	if err := unix.TimerfdSettime(l.timer, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return nil, fmt.Errorf("set timer: %w", err)
	}
	cpu := threadCPU()
	if l.Rate == 0 {
		for range l.Concurrency {
			l.start(time.Now())
		}
	}
	if err := l.serve(ctx); err != nil {
		return nil, err
	}
	l.res.Took = time.Since(l.begun)
	l.res.CPU = threadCPU() - cpu
	return l.res, nil
}

// serve handles events until the duration is over and no request is under way.
func (l *loop) serve(ctx context.Context) error {
	events := make([]unix.EpollEvent, 128)
	for !l.over(ctx) || l.active > 0 {
		n, err := unix.EpollWait(l.epoll, events, 1000)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for events: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			fd := int(e.Fd)
			switch l.conns[fd].role {
			case listener:
				l.accept()
			case timer:
				l.onTimer(ctx)
			case server:
				l.serveOne(fd)
			case client:
				l.advance(ctx, fd, e.Events)
			}
		}
	}
	return nil
}

func (l *loop) over(ctx context.Context) bool {
	return ctx.Err() != nil || time.Since(l.begun) >= l.Duration
}

// accept takes all connections that wait.
func (l *loop) accept() {
	for {
		fd, _, err := unix.Accept4(l.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		if l.watch(fd, server, unix.EPOLLIN) != nil {
			unix.Close(fd)
		}
	}
}

// serveOne answers one request. Requests are shorter than a segment, so one read has all of it. The
// client closes the connection.
func (l *loop) serveOne(fd int) {
	n, err := unix.Read(fd, l.buf[:])
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return
	}
	if err == nil && n > 0 {
		if _, err = unix.Write(fd, l.answer); err == nil {
			return
		}
	}
	l.drop(fd)
}

func (l *loop) drop(fd int) {
	l.conns[fd] = conn{}
	unix.Close(fd)
}

// onTimer starts requests that are due and fails those that take too long.
func (l *loop) onTimer(ctx context.Context) {
	if _, err := unix.Read(l.timer, l.buf[:8]); err != nil {
		return
	}
	expired := int(binary.NativeEndian.Uint64(l.buf[:8]))
	if l.Rate > 0 && !l.over(ctx) {
		for range expired {
			l.made++
			l.start(l.begun.Add(time.Duration(l.made) * time.Second / time.Duration(l.Rate)))
		}
	}
	if l.Rate == 0 || l.made%10 == 0 || l.over(ctx) {
		l.expire(ctx)
	}
}

func (l *loop) expire(ctx context.Context) {
	now := time.Now()
	for fd := range l.conns {
		if c := &l.conns[fd]; c.role == client && !c.due.IsZero() && now.Sub(c.began) > l.Timeout {
			l.finish(ctx, fd, "timed out")
		}
	}
}

// mostActive bounds the requests under way: on a machine that is too busy to keep up with the rate
// they would take all file descriptors, two each.
const mostActive = 4096

// start begins a request that was due at the given time.
func (l *loop) start(due time.Time) {
	if l.active++; l.active > mostActive {
		l.fail(-1, "too many are under way")
		return
	}
	if n := len(l.idle); n > 0 {
		fd := l.idle[0] // the one longest idle, so that all are used
		l.idle = l.idle[1:]
		l.conns[fd].due, l.conns[fd].began, l.conns[fd].got, l.conns[fd].sent = due, time.Now(), 0, true
		if _, err := unix.Write(fd, l.ask); err != nil {
			l.fail(fd, err.Error())
		}
		return
	}
	fd, err := l.dial()
	if err != nil {
		l.fail(fd, err.Error())
		return
	}
	l.conns[fd].due, l.conns[fd].began = due, time.Now()
}

// dial begins to connect from the next source address; a negative descriptor with an error.
// Connections end with a reset, which leaves neither end in TIME-WAIT: at this rate new ones would
// soon meet the remains of old ones, and wait a second to try again.
func (l *loop) dial() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	src := l.Sources[l.source%len(l.Sources)]
	to := l.Target
	if n := len(l.Targets); n > 0 {
		to = l.Targets[l.source%n]
	}
	l.source++
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: src.As4()}))
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
		if errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
	}
	if err == nil {
		err = l.watch(fd, client, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLET)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// advance continues a client: it writes the request once connected, then reads the answer.
func (l *loop) advance(ctx context.Context, fd int, events uint32) {
	c := &l.conns[fd]
	if !c.sent && events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		c.sent = true
		if _, err := unix.Write(fd, l.ask); err != nil {
			l.finish(ctx, fd, err.Error())
			return
		}
	}
	if events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) == 0 {
		return
	}
	n, err := unix.Read(fd, l.buf[:])
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
	case err != nil:
		l.finish(ctx, fd, err.Error())
	case n == 0:
		l.finish(ctx, fd, "closed before the answer")
	case !bytes.HasPrefix(l.answer[min(c.got, len(l.answer)):], l.buf[:n]):
		l.finish(ctx, fd, "wrong answer")
	default:
		if c.got += n; c.got == len(l.answer) {
			l.finish(ctx, fd, "")
		}
	}
}

// finish ends a client's request, failed if there is a reason, and at full speed starts the next.
func (l *loop) finish(ctx context.Context, fd int, reason string) {
	c := &l.conns[fd]
	switch {
	case c.due.IsZero(): // a kept connection that ended while idle
		l.idle = remove(l.idle, fd)
		l.drop(fd)
		return
	case reason != "":
		l.fail(fd, reason)
	default:
		l.res.Requests++
		l.res.latency = append(l.res.latency, time.Since(c.due))
		l.active--
		c.due = time.Time{}
		if l.KeepAlive {
			l.idle = append(l.idle, fd)
		} else {
			l.drop(fd)
		}
	}
	if l.Rate == 0 && !l.over(ctx) {
		l.start(time.Now())
	}
}

// fail counts a request as failed and closes its connection, if there is one.
func (l *loop) fail(fd int, reason string) {
	l.active--
	l.res.Failed++
	l.res.Reasons[reason]++
	if fd >= 0 {
		l.drop(fd)
	}
}

func remove(fds []int, fd int) []int {
	for i, x := range fds {
		if x == fd {
			return append(fds[:i], fds[i+1:]...)
		}
	}
	return fds
}
