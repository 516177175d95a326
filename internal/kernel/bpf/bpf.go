// Package bpf keeps eBPF programs and their maps in the kernel while no process of ours runs: they
// are pinned in the BPF file system, in a folder of the network namespace that they work for. The
// next agent adopts the maps, with all that is in them, and puts its own programs in the place of
// those that run, without a moment in which none does.
package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/netns"
)

// Root is where the BPF file system is mounted.
const Root = "/sys/fs/bpf"

// ErrNotMounted means that there is no BPF file system at Root.
var ErrNotMounted = errors.New("no BPF file system is mounted at " + Root + " (mount -t bpf bpf " + Root + ")")

// Folder has the pins of one accelerator in one network namespace.
type Folder struct{ path string }

// Own returns the folder of an accelerator in the calling thread's network namespace. It need not
// exist.
func Own(accelerator string) (Folder, error) {
	all, err := own()
	return Folder{filepath.Join(all, accelerator)}, err
}

// Any reports whether agents have left something, in whatever network namespace.
func Any() bool {
	_, err := os.Stat(filepath.Join(Root, "sluice"))
	return err == nil
}

// own is the folder of all accelerators. No other network namespace ever has the same in this boot.
func own() (string, error) {
	cookie, err := netns.Cookie()
	if err != nil {
		return "", err
	}
	return filepath.Join(Root, "sluice", strconv.FormatUint(cookie, 10)), nil
}

// Path is where the folder is, or would be.
func (f Folder) Path() string { return f.path }

// Exists reports whether an agent has left something there.
func (f Folder) Exists() bool {
	_, err := os.Stat(f.path)
	return err == nil
}

// Mounted returns ErrNotMounted where there is nowhere for folders to be.
func Mounted() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(Root, &fs); err != nil || fs.Type != unix.BPF_FS_MAGIC {
		return ErrNotMounted
	}
	return nil
}

// Make makes the folder. Its error wraps ErrNotMounted where it has nowhere to be.
func (f Folder) Make() error {
	if err := Mounted(); err != nil {
		return err
	}
	if err := os.MkdirAll(f.path, 0o700); err != nil {
		return fmt.Errorf("make a folder in the BPF file system: %w", err)
	}
	return nil
}

// Load loads what spec has into the fields of the struct that into points to, as ebpf's
// LoadAndAssign does, with options of that. Maps that are to be pinned by name are those of the
// folder. One that is of another layout, as of another release, is not adopted: it serves the
// programs that use it for as long as they run, and an empty one takes its name.
func (f Folder) Load(spec *ebpf.CollectionSpec, into any, options ebpf.ProgramOptions) error {
	for name, m := range spec.Maps {
		if m.Pinning != ebpf.PinByName {
			continue
		}
		at := filepath.Join(f.path, name)
		pinned, err := ebpf.LoadPinnedMap(at, nil)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err == nil:
			err = errors.Join(m.Compatible(pinned), pinned.Close())
		}
		if err == nil {
			continue
		}
		if err := os.Remove(at); err != nil {
			return fmt.Errorf("remove the map of another layout: %w", err)
		}
	}
	return spec.LoadAndAssign(into, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: f.path}, Programs: options})
}

// Attach has a program run under a name in the folder: in the place of the one that does so
// already, or else by attach, with its link pinned. The caller closes the link, and the program
// goes on.
func (f Folder) Attach(name string, program *ebpf.Program, attach func() (link.Link, error)) (link.Link, error) {
	at := filepath.Join(f.path, name)
	pinned, err := link.LoadPinnedLink(at, nil)
	if err == nil {
		if err = pinned.Update(program); err == nil {
			return pinned, nil
		}
		// What it was attached to is gone, such as a device.
		_ = pinned.Close()
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the pin of a former program: %w", err)
	}
	l, err := attach()
	if err != nil {
		return nil, err
	}
	if err := l.Pin(at); err != nil {
		return nil, errors.Join(fmt.Errorf("pin %s: %w", name, err), l.Close())
	}
	return l, nil
}

// The folders of programs that packets meet at interfaces.
const (
	XDP = "xdp" // as they arrive
	TCX = "established"
)

// At is the name that a program has there at an interface.
func At(index int) string { return fmt.Sprintf("link-%d", index) }

// Ours reports whether a program at an interface of the calling thread's network namespace is the
// one of that folder.
func Ours(folder string, index int, program ebpf.ProgramID) bool {
	f, err := Own(folder)
	if err != nil {
		return false
	}
	l, err := link.LoadPinnedLink(filepath.Join(f.path, At(index)), nil)
	if err != nil {
		return false
	}
	defer func() { _ = l.Close() }()
	info, err := l.Info()
	return err == nil && info.Program == program
}

// Detach has the program of a name end, if there is one.
func (f Folder) Detach(name string) error {
	if err := os.Remove(filepath.Join(f.path, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove a program: %w", err)
	}
	return nil
}

// Remove removes all that is in the folder, and the folder. Programs end at once. Nothing to remove
// is no error, wherever Root is mounted or not.
func (f Folder) Remove() error {
	if err := os.RemoveAll(f.path); err != nil {
		return fmt.Errorf("remove programs: %w", err)
	}
	// Unless other accelerators are there, or other network namespaces have some.
	_ = os.Remove(filepath.Dir(f.path))
	_ = os.Remove(filepath.Join(Root, "sluice"))
	return nil
}

// RemoveAll removes all that agents have left in the calling thread's network namespace.
func RemoveAll() error {
	all, err := own()
	if err != nil {
		return err
	}
	return Folder{all}.Remove()
}

// Missing says in a line why a program cannot be had: what the kernel says, or the verifier.
func Missing(err error) string {
	var refused *ebpf.VerifierError
	switch {
	case errors.Is(err, unix.EPERM):
		return "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"
	case errors.As(err, &refused):
		return fmt.Sprintf("this kernel refuses the program: %v", refused) // one line; %+v has the whole log
	}
	return err.Error()
}

// Cgroup opens the folder of the cgroups of version 2 that all processes of the node are in, as far
// as this process sees them. A node that has version 1 has them, too, perhaps mounted nowhere.
func Cgroup() (*os.File, error) {
	for _, at := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if err := unix.Statfs(at, &fs); err == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return os.Open(at)
		}
	}
	root, err := mountCgroups()
	if err != nil {
		return nil, fmt.Errorf("no cgroups of version 2 are mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified, and they cannot be: %w", err)
	}
	defer func() { _ = unix.Close(root) }()
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", root))
}

// mountCgroups mounts the cgroups where only the holder of the file descriptor sees them.
func mountCgroups() (int, error) {
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(fs) }()
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
}
