package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/lab/process"
)

// imagesDir is what a node's disk has of images.
const imagesDir = "/var/lib/containerd"

// Disk returns a folder that is as the disk of a node which has imported the archives, and nothing
// else. It makes it once, below the user's cache folder, by a node without a kubelet; command calls
// Run with the configuration file that is appended to it.
func Disk(ctx context.Context, containerd string, archives []string, command ...string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("import images: %w", err)
	}
	key, err := diskKey(containerd, archives)
	if err != nil {
		return "", fmt.Errorf("import images: %w", err)
	}
	disk := filepath.Join(cache, "sluice", "disk-"+key)
	if _, err := os.Stat(disk); err == nil {
		return disk, nil
	}
	if err := os.MkdirAll(filepath.Dir(disk), 0o755); err != nil {
		return "", fmt.Errorf("import images: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(disk), "import-")
	if err != nil {
		return "", fmt.Errorf("import images: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // the error that counts is that of the import
	c := Config{
		Name: "images", Dir: dir, Disk: filepath.Join(dir, "disk"),
		Containerd: containerd, Archives: archives,
	}
	file, err := c.Save()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, command[0], append(command[1:], file)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("import images: %w", ctx.Err())
		}
		return "", fmt.Errorf("import images: %w\n%s\n%s", err, out, process.Tail(dir, containerdName))
	}
	err = os.Rename(c.Disk, disk)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) { // somebody else was faster
		err = nil
	}
	if err != nil {
		return "", fmt.Errorf("import images: %w", err)
	}
	return disk, nil
}

// disksPrefix is that of the names of folders of disks, below the user's cache folder.
const disksPrefix = "disks-"

// NewDisks makes a folder for the disks of a lab, on the file system of those that Disk returns. No
// other lab has one of its name: labs in different mount namespaces share the cache folder. Some
// process has to hold the folder for as long as the lab lives, as this one does until release is
// called; it is gone when nobody does and another lab comes up.
func NewDisks() (dir string, release func() error, err error) {
	cache, err := os.UserCacheDir()
	if err == nil {
		err = os.MkdirAll(filepath.Join(cache, "sluice"), 0o755)
	}
	if err != nil {
		return "", nil, fmt.Errorf("make a folder for disks: %w", err)
	}
	old, _ := filepath.Glob(filepath.Join(cache, "sluice", disksPrefix+"*")) // the pattern is well-formed
	for _, dir := range old {
		sweepDisks(dir)
	}
	if dir, err = os.MkdirTemp(filepath.Join(cache, "sluice"), disksPrefix); err == nil {
		release, err = HoldDisks(dir)
	}
	if err != nil {
		return "", nil, fmt.Errorf("make a folder for disks: %w", err)
	}
	return dir, release, nil
}

// HoldDisks keeps a folder of NewDisks from being removed when another lab comes up, until release
// is called or this process ends.
func HoldDisks(dir string) (release func() error, err error) {
	fd, err := lockFolder(dir, unix.LOCK_SH)
	if err != nil {
		return nil, fmt.Errorf("hold %s: %w", dir, err)
	}
	return func() error { return unix.Close(fd) }, nil
}

// sweepDisks removes a folder of disks whose lab was killed with all that it ran.
func sweepDisks(dir string) {
	info, err := os.Stat(dir)
	if err != nil || time.Since(info.ModTime()) < time.Minute { // its lab may be just starting
		return
	}
	fd, err := lockFolder(dir, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return
	}
	_ = os.RemoveAll(dir) // nothing depends on it
	_ = unix.Close(fd)    // which only reads
}

func lockFolder(dir string, how int) (fd int, err error) {
	fd, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Flock(fd, how); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// diskKey changes with the archives and with the runtime that imports them.
func diskKey(containerd string, archives []string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, containerd)
	for _, a := range archives {
		info, err := os.Stat(a)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, a, info.Size(), info.ModTime().UnixNano())
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// clone has the node's disk begin with the images of another one, unless it has some. What runtimes
// never write to again is the same file on both, if both are on one file system: that takes a
// fraction of a second, and next to no space.
func (c *Config) clone(disk string) error {
	from, to := filepath.Join(disk, imagesDir), filepath.Join(c.Disk, imagesDir)
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	part := to + ".new"
	if err := os.RemoveAll(part); err != nil { // of a node that was killed
		return err
	}
	if err := os.MkdirAll(filepath.Dir(part), 0o755); err != nil {
		return err
	}
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at := part + strings.TrimPrefix(path, from)
		switch {
		case e.IsDir():
			return cloneFolder(path, at)
		case filepath.Ext(path) == ".db" && strings.Contains(path, "io.containerd."): // bbolt's, which are written in place
			return copyFile(path, at)
		}
		return os.Link(path, at)
	})
	if err == nil {
		err = os.Rename(part, to)
	}
	if err != nil {
		return fmt.Errorf("copy images: %w", err)
	}
	return nil
}

func cloneFolder(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t) // as on all Unix systems
	if err := os.Chown(to, int(owner.Uid), int(owner.Gid)); err != nil {
		return err
	}
	return os.Chmod(to, info.Mode()&(fs.ModePerm|fs.ModeSticky|fs.ModeSetgid|fs.ModeSetuid))
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}
