// Package lock keeps two commands from the same work at once.
package lock

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// ErrHeld is returned where somebody else holds a lock.
var ErrHeld = errors.New("somebody else holds the lock")

// giveBack is how long a lock is waited for. One that has been given back may still be held for a
// moment by a child of its holder that has not run its program yet, and has a copy of the socket.
const giveBack = 300 * time.Millisecond

// Take takes the lock of a name in the network namespace of the calling thread, which must be
// locked to the goroutine if it is not the process's. The lock is a Unix socket in the abstract
// namespace: it goes with its holder, however that ends, and leaves no file.
func Take(name string) (release func(), err error) {
	for end := time.Now().Add(giveBack); ; time.Sleep(giveBack / 100) {
		switch l, err := net.Listen("unix", "@"+name); {
		case err == nil:
			return func() { _ = l.Close() }, nil
		case !errors.Is(err, syscall.EADDRINUSE):
			return nil, err
		case time.Now().After(end):
			return nil, ErrHeld
		}
	}
}

// File takes the lock of a file, which it makes where there is none, whatever the network
// namespace. The lock goes with its holder, however that ends, and release removes the file.
func File(path string) (release func(), err error) {
	for end := time.Now().Add(giveBack); ; time.Sleep(giveBack / 100) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			return nil, err
		}
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case err == nil && is(f, path):
			return func() { _, _ = os.Remove(path), f.Close() }, nil
		case err != nil && !errors.Is(err, syscall.EWOULDBLOCK):
			return nil, errors.Join(err, f.Close())
		}
		if err := f.Close(); time.Now().After(end) {
			return nil, errors.Join(ErrHeld, err)
		}
	}
}

// is reports whether a path is still that of an open file, and not of one that took its place.
func is(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(opened, there)
}
