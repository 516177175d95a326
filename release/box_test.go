package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// box is a Debian of nothing but what every system has, rpm and systemd, which runs as process 1 in
// namespaces of its own.
type box struct {
	root string
	pid  int // of its process 1
}

// boot mounts what process 1 expects, with devices of its own, and becomes it.
const boot = `set -e
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs dev
for d in null zero full random urandom tty; do touch dev/$d; mount --bind /dev/$d dev/$d; done
mkdir dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount --move . /
exec chroot . /usr/lib/systemd/systemd --unit=basic.target --show-status=no`

// debian returns an archive of the box's system, which is made once and kept with what else tests
// build once. Nobody reads its documents.
func debian(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(cache, "sluice", "bookworm-rpm-systemd.tar")
	if _, err := os.Stat(kept); err == nil {
		return kept
	}
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		t.Fatal(err)
	}
	made, err := os.MkdirTemp(filepath.Dir(kept), "debian-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(made) })
	file := filepath.Join(made, "debian.tar")
	do(t, "/", "mmdebstrap", "--quiet", "--variant=essential", "--include=rpm,systemd",
		`--customize-hook=cd "$1/usr/share" && rm -r doc/* man/* locale/*`, "bookworm", file)
	if err := os.Rename(file, kept); err != nil {
		t.Fatal(err)
	}
	return kept
}

func newBox(t *testing.T) *box {
	t.Helper()
	root := t.TempDir()
	do(t, root, "tar", "-xf", debian(t), "--numeric-owner", "--xattrs")
	// As Fedora and RHEL have it. Without such a file, presets enable everything.
	if err := os.WriteFile(filepath.Join(root, "usr/lib/systemd/system-preset/99-default-disable.preset"), []byte("disable *\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	group, err := os.Open(newControlGroup(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = group.Close() }()

	var console bytes.Buffer
	init := exec.Command("unshare", "--cgroup", "sh", "-c", boot, "boot", root)
	init.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "container=other"}
	init.Stdout, init.Stderr = &console, &console
	init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		UseCgroupFD: true, CgroupFD: int(group.Fd()), Pdeathsig: unix.SIGKILL,
	}
	if err := init.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = init.Wait(); close(ended) }()
	t.Cleanup(func() { _ = init.Process.Kill(); <-ended })
	b := &box{root: root, pid: init.Process.Pid}
	for {
		if out, _ := b.try("systemctl", "is-active", "basic.target"); out == "active" {
			return b
		}
		select {
		case <-ended:
			t.Fatalf("systemd ended:\n%s", console.String())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// newControlGroup makes a group of the second hierarchy, which systemd needs to run.
func newControlGroup(t *testing.T) string {
	t.Helper()
	hierarchy := t.TempDir()
	if err := unix.Mount("cgroup2", hierarchy, "cgroup2", 0, ""); err != nil {
		t.Fatal(err)
	}
	group := filepath.Join(hierarchy, "sluice-release-"+strconv.Itoa(os.Getpid()))
	t.Cleanup(func() {
		if err := unix.Unmount(hierarchy, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := removeGroups(group)
		for errors.Is(err, unix.EBUSY) { // the kernel takes a moment to forget the last process
			time.Sleep(10 * time.Millisecond)
			err = removeGroups(group)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return group
}

// removeGroups removes a control group and those in it.
func removeGroups(group string) error {
	var dirs []string
	err := filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, d := range slices.Backward(dirs) {
		if err := unix.Rmdir(d); err != nil {
			return err
		}
	}
	return err
}

// try runs a command in the box, and returns what it prints.
func (b *box) try(args ...string) (string, error) {
	cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(b.pid), "--all", "--root", "--wdns=/"}, args...)...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// run is try for what has to succeed.
func (b *box) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := b.try(args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// tables are those of the box's kernel, as nft lists them.
func (b *box) tables(t *testing.T) string {
	return strings.TrimSpace(do(t, "/", "nsenter", "--target", strconv.Itoa(b.pid), "--net", "nft", "list", "tables"))
}

func (b *box) write(t *testing.T, name, text string) {
	t.Helper()
	path := b.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (b *box) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(b.path(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// path is where a file of the box is outside, what systemd has mounted included.
func (b *box) path(name string) string {
	return filepath.Join("/proc", strconv.Itoa(b.pid), "root", name)
}

// files are the names of what is in the box, where packages put something.
func (b *box) files(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, dir := range []string{"etc", "usr", "run/sluice", "var/lib/sluice", "var/lib/systemd/deb-systemd-helper-enabled"} {
		err := fs.WalkDir(os.DirFS(b.path("/")), dir, func(path string, _ fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			all[path] = true
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}
