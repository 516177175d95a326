package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The lines by which the host learns the outcome.
const (
	resultPass = "vm: result: pass"
	resultFail = "vm: result: FAIL"
)

// Files that programs leave in guestOut come to the host as lines of the console: fileMark, the
// name, and the content in base64.
const (
	guestOut = "/out"
	fileMark = "vm: file: "
)

// guest is run as the virtual machine's first process: it never returns.
func guest() {
	begin := time.Now()
	result := resultPass
	if err := guestRun(); err != nil {
		fmt.Println("vm:", err)
		result = resultFail
	}
	fmt.Printf("vm: guest ran for %v\n%s\n", time.Since(begin).Round(time.Millisecond), result)
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // QEMU takes it for the end too
	select {}
}

func guestRun() error {
	b, err := os.ReadFile(guestPlan)
	if err != nil {
		return err
	}
	var p plan
	if err := json.Unmarshal(b, &p); err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	for _, m := range p.Modules {
		if err := loadModule(m); err != nil {
			return err
		}
	}
	if err := errors.Join(enterMachine(), makeCache(p.Cache), unix.Sethostname([]byte("guest"))); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	if up, err := os.ReadFile("/proc/uptime"); err == nil {
		fmt.Printf("vm: booted; %d modules loaded; uptime %s", len(p.Modules), up)
	}
	var failed []error
	for _, t := range p.Tests {
		failed = append(failed, guestTest(t, p.Env))
	}
	return errors.Join(append(failed, guestFiles())...)
}

// guestFiles prints the files in guestOut for the console of the host.
func guestFiles() error {
	files, err := filepath.Glob(guestOut + "/*")
	for _, file := range files {
		b, rerr := os.ReadFile(file)
		err = errors.Join(err, rerr)
		fmt.Printf("%s%s %s\n", fileMark, filepath.Base(file), base64.StdEncoding.EncodeToString(b))
	}
	return err
}

func guestTest(t test, env []string) error {
	fmt.Printf("vm: testing %s\n", t.Name)
	begin := time.Now()
	cmd := exec.Command(t.Binary, t.Args...)
	cmd.Dir = t.Dir
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	err := cmd.Run()
	took := time.Since(begin).Round(time.Millisecond)
	if err != nil {
		return fmt.Errorf("%s failed after %v: %w", t.Name, took, err)
	}
	fmt.Printf("vm: %s passed in %v\n", t.Name, took)
	return nil
}

// machineTag is the name of the machine's file system for the guest.
const machineTag = "machine"

// enterMachine makes the machine's file system the guest's root. What the guest writes is in
// memory.
func enterMachine() error {
	for _, m := range []struct{ fstype, source, target, options string }{
		{"tmpfs", "tmpfs", "/guest", "mode=755"},
		{"virtiofs", machineTag, "/guest/machine", ""},
		{"overlay", "overlay", "/guest/root", "lowerdir=/guest/machine,upperdir=/guest/upper,workdir=/guest/work"},
	} {
		if m.fstype == "overlay" {
			if err := errors.Join(os.Mkdir("/guest/upper", 0o755), os.Mkdir("/guest/work", 0o755)); err != nil {
				return err
			}
		}
		if err := mount(m.fstype, m.source, m.target, m.options); err != nil {
			return err
		}
	}
	// As switch_root does: the initramfs can be left, but not unmounted.
	if err := os.Chdir("/guest/root"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	for _, m := range []struct{ fstype, target string }{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"devtmpfs", "/dev"},
		{"devpts", "/dev/pts"},
		{"tmpfs", "/dev/shm"},
		{"tmpfs", "/run"},
		{"tmpfs", "/tmp"},
		{"tmpfs", guestOut},
		{"cgroup2", "/sys/fs/cgroup"},
		{"bpf", "/sys/fs/bpf"},
	} {
		if err := mount(m.fstype, m.fstype, m.target, ""); err != nil {
			return err
		}
	}
	return nil
}

// makeCache has the folder of what labs keep in memory, with links to what the machine has built:
// the disks of nodes must not be on an overlay.
func makeCache(dir string) error {
	const machines = "/run/cache"
	err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(machines, 0o755))
	if err == nil {
		err = unix.Mount(dir, machines, "", unix.MS_BIND, "")
	}
	if err == nil {
		err = mount("tmpfs", "tmpfs", dir, "")
	}
	if err != nil {
		return fmt.Errorf("make the cache folder: %w", err)
	}
	built, err := filepath.Glob(machines + "/*")
	for _, path := range built {
		if name := filepath.Base(path); !strings.HasPrefix(name, "disk") {
			err = errors.Join(err, os.Symlink(path, filepath.Join(dir, name)))
		}
	}
	return err
}

func mount(fstype, source, target, options string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, fstype, 0, options); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load module %s: %w", filepath.Base(path), err)
	}
	return nil
}
