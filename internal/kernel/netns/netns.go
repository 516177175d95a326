// Package netns opens and enters network namespaces, and tells them apart.
package netns

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NS is an open network namespace with a netlink handle into it.
type NS struct {
	Name string // the path of its file
	fd   netns.NsHandle
	*netlink.Handle
}

// OpenPath opens the namespace that a file stands for: one under /proc/PID/ns or /run/netns, or one
// that a container runtime has bound somewhere. It fails with an error that wraps os.ErrNotExist if
// there is no such file, or only that, as while the namespace is being made or deleted.
func OpenPath(path string) (*NS, error) {
	raw, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0) // a FIFO would have it wait
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	fd := netns.NsHandle(raw)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(fd), &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		_ = fd.Close()
		return nil, fmt.Errorf("open network namespace %s: %w", path, cmp.Or(err, os.ErrNotExist))
	}
	h, err := handle(fd)
	if err != nil {
		_ = fd.Close()
		return nil, fmt.Errorf("open netlink in %s: %w", path, err)
	}
	return &NS{Name: path, fd: fd, Handle: h}, nil
}

// handle opens a netlink handle into a namespace.
func handle(fd netns.NsHandle) (*netlink.Handle, error) {
	if Here(int(fd)) {
		return netlink.NewHandle(nl.SupportedNlFamilies...)
	}
	return netlink.NewHandleAt(fd)
}

// Here reports whether the calling thread is in the namespace of an open file. To enter it takes
// CAP_SYS_ADMIN all the same, which an agent in a container does not have.
func Here(fd int) bool {
	var now, want unix.Stat_t
	err := errors.Join(unix.Stat("/proc/thread-self/ns/net", &now), unix.Fstat(fd, &want))
	return err == nil && now.Dev == want.Dev && now.Ino == want.Ino
}

// Fd is the open file descriptor of the namespace.
func (ns *NS) Fd() int { return int(ns.fd) }

// Is reports whether both are the same namespace.
func (ns *NS) Is(other *NS) bool { return ns.fd.Equal(other.fd) }

// Do runs f on a thread inside the namespace. Sockets that f opens stay in the namespace;
// goroutines that f starts do not run in it. The thread works for other goroutines afterwards: an f
// that changes what else belongs to it calls runtime.LockOSThread, so that it ends.
func (ns *NS) Do(f func() error) error {
	return OnThread(func() error {
		back, err := ns.enter()
		if err != nil {
			return fmt.Errorf("enter network namespace %s: %w", ns.Name, err)
		}
		err = f()
		if back() == nil { // otherwise it ends: to make a new one takes longer
			runtime.UnlockOSThread()
		}
		return err
	})
}

// enter has the calling thread be inside the namespace until back succeeds.
func (ns *NS) enter() (back func() error, err error) {
	if Here(ns.Fd()) {
		return func() error { return nil }, nil
	}
	was, err := netns.GetFromPath("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	if err := netns.Set(ns.fd); err != nil {
		return nil, errors.Join(err, was.Close())
	}
	return func() error { return errors.Join(netns.Set(was), was.Close()) }, nil
}

// Close releases the handles; the namespace stays.
func (ns *NS) Close() error {
	ns.Handle.Close()
	return ns.fd.Close()
}

// ErrApart means that the process may not make a network namespace, which takes CAP_SYS_ADMIN.
var ErrApart = errors.New("this process may not make a network namespace (CAP_SYS_ADMIN)")

// Apart runs f in a network namespace of its own, without a name, addresses or rules, which goes
// with f and the sockets that f opens. It holds for f alone, not for goroutines that f starts.
func Apart(f func() error) error {
	return OnThread(func() error {
		switch err := unix.Unshare(unix.CLONE_NEWNET); {
		case errors.Is(err, unix.EPERM):
			return ErrApart
		case err != nil:
			return fmt.Errorf("make a network namespace: %w", err)
		}
		return f()
	})
}

// OnThread runs f on an OS thread of its own, which ends afterwards unless f unlocks it: whatever
// namespace f leaves it in, no other goroutine sees it. It is never the process's main thread,
// which cannot be ended and whose namespace is the one that /proc/PID/ns shows for the whole
// process.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- OnThread(f) // on another thread, as this one is taken meanwhile
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}

// ID identifies a network namespace while it exists.
type ID struct{ dev, ino uint64 }

// IDOf returns the identity of the namespace that a path leads to, false if there is none.
func IDOf(path string) (ID, bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ID{}, false
	}
	return ID{uint64(st.Dev), st.Ino}, true
}
