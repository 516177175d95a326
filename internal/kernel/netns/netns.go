// Package netns creates and enters named network namespaces and joins them
// with veth pairs. Tests, the lab and the bench build their topologies from it.
//
// Namespaces are the ones of `ip netns`: they appear in /run/netns, so that
// `ip netns exec NAME` works on them.
package netns

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Dir is where named namespaces live.
const Dir = "/run/netns"

// NS is a named network namespace with a netlink handle into it.
type NS struct {
	Name string
	fd   netns.NsHandle
	*netlink.Handle
}

// New creates the namespace, brings its loopback up, and returns it open.
// It fails with an error that wraps os.ErrExist if there is one of that name.
func New(name string) (*NS, error) {
	path := filepath.Join(Dir, name)
	if _, err := os.Stat(path); err == nil {
		return nil, fmt.Errorf("create network namespace %s: %w", name, os.ErrExist)
	}
	err := mountDir()
	if err == nil {
		err = onThread(func() error {
			_, err := netns.NewNamed(name)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("create network namespace %s: %w", name, err)
	}
	ns, err := Open(name)
	if err != nil {
		return nil, errors.Join(err, netns.DeleteNamed(name))
	}
	lo, err := ns.LinkByName("lo")
	if err == nil {
		err = ns.LinkSetUp(lo)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bring up loopback in %s: %w", name, err), ns.Delete())
	}
	return ns, nil
}

// mountDir makes Dir a shared mount of its own, as the first 'ip netns add' on a machine does. If
// that came later, it would mount what is in Dir a second time, and what was made before could not
// be deleted.
func mountDir() error {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(Dir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // which gives the lock back
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", Dir, err)
	}
	err = unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // it is no mount yet
		err = errors.Join(unix.Mount(Dir, Dir, "none", unix.MS_BIND|unix.MS_REC, ""), unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, ""))
	}
	if err != nil {
		return fmt.Errorf("make %s a shared mount: %w", Dir, err)
	}
	return nil
}

// Open opens an existing namespace. It fails with an error that wraps os.ErrNotExist if there is
// none of that name, or only its file, as while it is being made or deleted.
func Open(name string) (*NS, error) { return open(name, filepath.Join(Dir, name)) }

// OpenPath opens the namespace that a file stands for: one under /proc/PID/ns, or one that a
// container runtime has bound somewhere. Its Name is the path, and Path means nothing. It fails
// like Open.
func OpenPath(path string) (*NS, error) { return open(path, path) }

func open(name, path string) (*NS, error) {
	raw, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0) // a FIFO would have it wait
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	fd := netns.NsHandle(raw)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(fd), &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		_ = fd.Close()
		return nil, fmt.Errorf("open network namespace %s: %w", name, cmp.Or(err, os.ErrNotExist))
	}
	h, err := handle(fd)
	if err != nil {
		_ = fd.Close()
		return nil, fmt.Errorf("open netlink in %s: %w", name, err)
	}
	return &NS{Name: name, fd: fd, Handle: h}, nil
}

// handle opens a netlink handle into a namespace.
func handle(fd netns.NsHandle) (*netlink.Handle, error) {
	if here(fd) {
		return netlink.NewHandle(nl.SupportedNlFamilies...)
	}
	return netlink.NewHandleAt(fd)
}

// here reports whether the calling thread is in a namespace. To enter it takes CAP_SYS_ADMIN all
// the same, which an agent in a container does not have.
func here(fd netns.NsHandle) bool {
	var now, want unix.Stat_t
	err := errors.Join(unix.Stat("/proc/thread-self/ns/net", &now), unix.Fstat(int(fd), &want))
	return err == nil && now.Dev == want.Dev && now.Ino == want.Ino
}

// Path returns the path of the namespace's file.
func (ns *NS) Path() string { return filepath.Join(Dir, ns.Name) }

// Fd is the open file descriptor of the namespace.
func (ns *NS) Fd() int { return int(ns.fd) }

// Is reports whether both are the same namespace.
func (ns *NS) Is(other *NS) bool { return ns.fd.Equal(other.fd) }

// Do runs f on a thread inside the namespace. Sockets that f opens stay in the namespace;
// goroutines that f starts do not run in it. The thread works for other goroutines afterwards: an f
// that changes what else belongs to it calls runtime.LockOSThread, so that it ends.
func (ns *NS) Do(f func() error) error {
	return onThread(func() error {
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
	if here(ns.fd) {
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

// Start starts cmd inside the namespace. The child dies with this process only if
// cmd.SysProcAttr says so.
func (ns *NS) Start(cmd *exec.Cmd) error {
	return ns.Do(cmd.Start)
}

// Run runs a command inside the namespace and returns its combined output.
func (ns *NS) Run(name string, args ...string) ([]byte, error) {
	var out []byte
	err := ns.Do(func() error {
		var err error
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	})
	if err != nil {
		return out, fmt.Errorf("run %s %v in %s: %w: %s", name, args, ns.Name, err, out)
	}
	return out, nil
}

// Sysctl writes a sysctl (slashes or dots) inside the namespace.
func (ns *NS) Sysctl(key, value string) error {
	return ns.Do(func() error {
		b := []byte(key)
		for i, c := range b {
			if c == '.' {
				b[i] = '/'
			}
		}
		return os.WriteFile("/proc/sys/"+string(b), []byte(value), 0)
	})
}

// Close releases the handles; the namespace stays.
func (ns *NS) Close() error {
	ns.Handle.Close()
	return ns.fd.Close()
}

// Delete closes the namespace and removes its name; the kernel ends it when
// its last process and socket are gone.
func (ns *NS) Delete() error {
	return errors.Join(ns.Close(), Delete(ns.Name))
}

// Delete removes a namespace's name. Deleting what is not there succeeds.
func Delete(name string) error {
	path := filepath.Join(Dir, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	return nil
}

// Veth joins two namespaces (or one with itself) with a veth pair whose ends
// are up: nameA in a, nameB in b.
func Veth(a *NS, nameA string, b *NS, nameB string) error {
	la := netlink.NewLinkAttrs()
	la.Name = nameA
	v := &netlink.Veth{LinkAttrs: la, PeerName: nameB, PeerNamespace: netlink.NsFd(b.Fd())}
	if err := a.LinkAdd(v); err != nil {
		return fmt.Errorf("create veth %s/%s - %s/%s: %w", a.Name, nameA, b.Name, nameB, err)
	}
	for _, end := range []struct {
		ns   *NS
		name string
	}{{a, nameA}, {b, nameB}} {
		l, err := end.ns.LinkByName(end.name)
		if err == nil {
			err = end.ns.LinkSetUp(l)
		}
		if err != nil {
			return fmt.Errorf("bring up %s in %s: %w", end.name, end.ns.Name, err)
		}
	}
	return nil
}

// ErrApart means that the process may not make a network namespace, which takes CAP_SYS_ADMIN.
var ErrApart = errors.New("this process may not make a network namespace (CAP_SYS_ADMIN)")

// Apart runs f in a network namespace of its own, without a name, addresses or rules, which goes
// with f and the sockets that f opens. It holds for f alone, not for goroutines that f starts.
func Apart(f func() error) error {
	return onThread(func() error {
		switch err := unix.Unshare(unix.CLONE_NEWNET); {
		case errors.Is(err, unix.EPERM):
			return ErrApart
		case err != nil:
			return fmt.Errorf("make a network namespace: %w", err)
		}
		return f()
	})
}

// onThread runs f on an OS thread of its own, which ends afterwards unless f unlocks it: whatever
// namespace f leaves it in, no other goroutine sees it. It is never the process's main thread,
// which cannot be ended and whose namespace is the one that /proc/PID/ns shows for the whole
// process.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- onThread(f) // on another thread, as this one is taken meanwhile
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
