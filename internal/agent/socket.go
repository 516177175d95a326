package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/agent/nslock"
	"sluice.dev/sluice/internal/kernel/peer"
)

// DefaultSocket is the agent's socket unless another is given.
const DefaultSocket = "/run/sluice/sluice.sock"

// ErrInUse is wrapped when another agent already answers on the socket.
var ErrInUse = errors.New("another agent answers there")

// Listen opens the agent's Unix socket so that only its owner can connect, and creates its folder.
// It replaces the socket of a dead agent, and returns ErrInUse for a live one.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("create folder of socket: %w", err)
	}
	// One agent at a time: of two that both find a dead socket, the later would mistake the other's
	// new socket for it.
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	l, err := bind(path)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if Alive(path) {
		return nil, fmt.Errorf("listen on %s: %w: stop it, or give this one a --socket of its own", path, ErrInUse)
	}
	if err := removeSocket(path); err != nil {
		return nil, err
	}
	return bind(path)
}

// lock waits until no other process holds the folder's lock. The lock ends with its process.
func lock(folder string) (unlock func(), err error) {
	f, err := os.Open(folder)
	if err != nil {
		return nil, fmt.Errorf("lock folder of socket: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock folder of socket: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// Alive reports whether a process has the socket open, even if it does not answer at the moment or
// we may not connect.
func Alive(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist)
	}
	_ = c.Close()
	return true
}

// bind sets the socket's mode before it has a name: at no moment could others connect.
func bind(path string) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		ctlErr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(ctlErr, err)
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on socket: %w", err)
	}
	return l, nil
}

// RemoveSocket removes the socket of an agent that was killed, and reports whether there was one.
// That of an agent at work stays.
func RemoveSocket(path string) (removed bool, err error) {
	if fi, err := os.Lstat(path); err != nil || fi.Mode().Type() != os.ModeSocket {
		return false, nil
	}
	unlock, err := lock(filepath.Dir(path)) // or an agent that starts meanwhile would lose its own
	if err != nil {
		return false, err
	}
	defer unlock()
	if Alive(path) {
		return false, nil
	}
	err = removeSocket(path)
	return err == nil, err
}

// removeSocket removes a dead socket, and never a file of another type.
func removeSocket(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	if fi.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("listen on %s: this file is not a socket: move it away, or choose another --socket", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}

// Elsewhere returns the process of the agent that has the socket open, if it works in another
// network namespace than the calling thread's: a path is the same in all of them. 0: it does not,
// or that cannot be told, as of a process in another container.
func Elsewhere(socket string) (process int32) {
	who, err := peer.At(socket)
	if err != nil {
		return 0
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", who.Pid))
	if err != nil {
		return 0
	}
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil || here == theirs {
		return 0
	}
	if held, err := nslock.Held(); err != nil || held { // a process may have threads in several
		return 0
	}
	return who.Pid
}
