package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	if err := errors.Join(guestMounts(), unix.Sethostname([]byte("guest"))); err != nil {
		return err
	}
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
		failed = append(failed, guestTest(t))
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

func guestTest(t test) error {
	fmt.Printf("vm: testing %s\n", t.Name)
	begin := time.Now()
	cmd := exec.Command(t.Binary, t.Args...)
	cmd.Dir = t.Dir
	cmd.Env = []string{"PATH=/bin", "HOME=/tmp", "TMPDIR=/tmp", "XDG_CACHE_HOME=" + guestCache}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	err := cmd.Run()
	took := time.Since(begin).Round(time.Millisecond)
	if err != nil {
		return fmt.Errorf("%s failed after %v: %w", t.Name, took, err)
	}
	fmt.Printf("vm: %s passed in %v\n", t.Name, took)
	return nil
}

// guestMounts mounts the file systems that every Linux has.
func guestMounts() error {
	for _, m := range []struct{ fstype, target string }{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"devtmpfs", "/dev"},
		{"tmpfs", "/run"},
		{"tmpfs", "/tmp"},
		{"cgroup2", "/sys/fs/cgroup"},
		{"bpf", "/sys/fs/bpf"},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		err := unix.Mount(m.fstype, m.target, m.fstype, 0, "")
		if err != nil && !errors.Is(err, unix.EBUSY) { // the kernel may have mounted /dev itself
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
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
