// Package nslock is the lock by which one agent works in a network namespace at a time: two would
// undo each other's changes.
package nslock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/peer"
)

// socketName is the name of an abstract Unix socket. A network namespace has one of that name,
// whatever files its containers see, and it goes with the process that holds it. Agents find each
// other by it, and earlier releases exclude each other by it. But any process of our user may take
// it, so it is no lock: Acquire gets a lock for that.
const socketName = "@sluice.dev/agent"

// maxRivals is how many connections of agents are kept. Any process of the host may connect, so
// there has to be a limit.
const maxRivals = 16

const (
	lockInterval = 100 * time.Millisecond // between two attempts to get the lock
	maxRefused   = 10                     // attempts to connect to the holder of the name
)

// Lock is the right to be the only agent of a network namespace. Methods of a nil Lock do nothing.
type Lock struct {
	lock     io.Closer    // nil if the kernel has none
	listener net.Listener // nil while another process has the name
	log      *slog.Logger

	mu     sync.Mutex
	rivals map[net.Conn]int32 // waiting agents by connection, with their processes, 0 if invisible from here
}

// Acquire locks the network namespace of the calling thread. While another agent has the
// namespace, it waits until that agent ends, as it may be shutting down already. If the other agent
// has not ended after patience, or when ctx ends, it returns an error. Two agents at work would
// undo each other's changes.
//
// lock takes a lock of the namespace that needs CAP_NET_ADMIN, ends with the process, and is held
// until the Lock is released. Its error wraps driver.ErrBusy while another process holds it. With
// any other error, the name has to do instead.
func Acquire(ctx context.Context, patience time.Duration, lock func() (io.Closer, error), log *slog.Logger) (_ *Lock, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	l := &Lock{log: log, rivals: make(map[net.Conn]int32)}
	defer func() {
		if err != nil {
			l.Release()
		}
	}()
	var other *holder // the holder of the name
	defer func() { other.close() }()
	said, refused := false, 0
	for {
		busy := l.takeLock(lock)
		if !busy && other == nil {
			err := l.takeName()
			if err == nil {
				return l, nil
			}
			if !errors.Is(err, syscall.EADDRINUSE) {
				return nil, fmt.Errorf("claim network namespace: %w", err)
			}
		}
		if other == nil {
			if other, err = dialHolder(ctx); err != nil {
				refused++
			}
		}
		// A process that holds the name but does not listen is not an agent, or an agent that is
		// just starting or ending.
		if !busy && (other == nil && refused > maxRefused || other != nil && other.stranger(l.lock != nil)) {
			log.Warn("a process that is no agent has the name by which agents know of each other; going on without", "holder", other.String())
			return l, nil
		}
		if !said && (busy || other != nil) {
			log.Warn("another agent is at work in this network namespace; waiting for it to end", "agent", other.String(), "patience", patience)
			said = true
		}
		if other.gone() {
			other.close()
			other = nil
		}
		switch {
		case ctx.Err() == nil:
		case !busy && l.lock != nil && other != nil && other.process == 0 && errors.Is(ctx.Err(), context.DeadlineExceeded):
			log.Warn("a process of another container has the name by which agents know of each other, and not the lock that they hold; going on without")
			return l, nil
		default:
			return nil, fmt.Errorf("claim network namespace: %s is at work in it already, and two would undo each other's work: stop it, or whatever starts one of the two", other)
		}
	}
}

// takeLock takes the lock, if the kernel has one, and reports whether another process holds it.
func (l *Lock) takeLock(lock func() (io.Closer, error)) (busy bool) {
	if l.lock != nil {
		return false
	}
	got, err := lock()
	if err == nil {
		l.lock = got
	}
	return errors.Is(err, driver.ErrBusy)
}

// takeName lets agents that start later find this one.
func (l *Lock) takeName() error {
	listener, err := net.Listen("unix", socketName)
	if err != nil {
		return err
	}
	l.listener = listener
	go l.serve()
	return nil
}

// holder is the process that has the Lock.
type holder struct {
	conn    net.Conn
	user    uint32
	process int32 // 0 if it is invisible from here
}

func dialHolder(ctx context.Context) (*holder, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socketName)
	if err != nil {
		return nil, err
	}
	who, err := peer.Of(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &holder{conn, who.Uid, who.Pid}, nil
}

// stranger reports whether the holder cannot be an agent: it is another user's process, or it lacks
// the capabilities of an agent although agents hold a lock that we now have.
func (h *holder) stranger(locked bool) bool {
	if int(h.user) != os.Geteuid() {
		return true
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.process))
	if !locked || h.process == 0 || err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(status), "\nCapEff:")
	effective, err := strconv.ParseUint(strings.TrimSpace(rest[:min(len(rest), 17)]), 16, 64)
	return err == nil && effective&(1<<unix.CAP_NET_ADMIN) == 0
}

// String names the agent; nil is an agent that cannot be found.
func (h *holder) String() string {
	switch {
	case h == nil:
		return "an agent"
	case h.process == 0:
		return "an agent of another container"
	}
	return fmt.Sprintf("the agent of process %d", h.process)
}

// gone waits briefly until the holder ends, and reports whether it has. There may be no holder.
func (h *holder) gone() bool {
	if h == nil {
		time.Sleep(lockInterval)
		return true
	}
	_ = h.conn.SetReadDeadline(time.Now().Add(lockInterval))
	_, err := h.conn.Read(make([]byte, 1))
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

func (h *holder) close() {
	if h != nil {
		_ = h.conn.Close()
	}
}

// serve keeps the connections of waiting agents, and logs that there are some. Connections of other
// users, which are no agents, are closed at once.
func (l *Lock) serve() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return
		}
		who, err := peer.Of(conn)
		if err != nil || int(who.Uid) != os.Geteuid() || !l.admit(conn, who.Pid) {
			_ = conn.Close()
			continue
		}
		go func() {
			_, _ = io.Copy(io.Discard, conn) // ends when the other one does
			l.forget(conn)
		}()
	}
}

// admit records a waiting process, unless there are too many. A process is logged once, however
// many connections it has.
func (l *Lock) admit(conn net.Conn, process int32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rivals) >= maxRivals {
		return false
	}
	if known := slices.Contains(slices.Collect(maps.Values(l.rivals)), process); !known {
		l.log.Warn("another agent has been started in this network namespace; it only waits while this one works", "process", process)
	}
	l.rivals[conn] = process
	return true
}

func (l *Lock) forget(conn net.Conn) {
	_ = conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.rivals, conn)
}

// Waiting returns how many other agents wait until this one ends.
func (l *Lock) Waiting() int {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.rivals)
}

// Release gives the Lock to whichever agent waits.
func (l *Lock) Release() {
	if l == nil {
		return
	}
	if l.listener != nil {
		_ = l.listener.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.rivals {
		_ = conn.Close()
	}
	if l.lock != nil {
		_ = l.lock.Close()
	}
}
