// Package netns makes named network namespaces and joins them with veth pairs: tests, the lab and
// the bench build their topologies from it.
//
// Namespaces are the ones of `ip netns`: they appear in /run/netns, so that
// `ip netns exec NAME` works on them.
package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/bpf"
	kernel "sluice.dev/sluice/internal/kernel/netns"
)

// Dir is where named namespaces live.
const Dir = "/run/netns"

// NS is a named network namespace.
type NS struct {
	*kernel.NS
	Name string
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
		err = kernel.OnThread(func() error {
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
func Open(name string) (*NS, error) {
	ns, err := kernel.OpenPath(filepath.Join(Dir, name))
	if err != nil {
		return nil, err
	}
	return &NS{ns, name}, nil
}

// Path returns the path of the namespace's file.
func (ns *NS) Path() string { return filepath.Join(Dir, ns.Name) }

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

// Delete closes the namespace and removes its name; the kernel ends it when
// its last process and socket are gone.
func (ns *NS) Delete() error {
	return errors.Join(ns.Close(), Delete(ns.Name))
}

// Delete removes a namespace's name, and the eBPF programs that agents have pinned for it, which
// would outlast it. Deleting what is not there succeeds.
func Delete(name string) error {
	path := filepath.Join(Dir, name)
	if err := unpin(path); err != nil {
		return fmt.Errorf("remove eBPF programs of network namespace %s: %w", name, err)
	}
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	return nil
}

func unpin(path string) (err error) {
	if !bpf.Any() {
		return nil
	}
	ns, err := kernel.OpenPath(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(ns.Do(bpf.RemoveAll), ns.Close())
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
