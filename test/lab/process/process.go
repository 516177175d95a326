// Package process starts programs that outlive their starter, each in a network namespace, and
// finds them again: for each program, a folder holds NAME.pid and NAME.log.
package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/netns"
)

// Process is a process as recorded when it was started. Its start time distinguishes it from a
// later one with the same number. The zero value never ran.
type Process struct {
	PID   int
	Start uint64 // in clock ticks since boot
}

// Start runs a command in a namespace and in its own session, so that it outlives this process and
// its terminal. Its output is appended to the log. A second Start under the same name is allowed
// once the first process has ended: the record is the latest. The command inherits the files as
// descriptors from 3 on; the caller keeps them.
func Start(ns *netns.NS, dir, name string, args []string, files ...*os.File) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := ns.Start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	go func() { _ = cmd.Wait() }() // no zombie remains if it ends before we do
	return Record(dir, name, cmd.Process.Pid)
}

// Record records a process that the caller has started, for Find. It writes the file atomically, as
// others may read it at any time.
func Record(dir, name string, pid int) error {
	p := Of(pid) // if it has already ended, whoever waits for it notices
	path := filepath.Join(dir, name+".pid")
	data, err := json.Marshal(p)
	if err == nil {
		err = os.WriteFile(path+".new", data, 0o644)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	return nil
}

// Forget removes the record of a process that is not to run any more.
func Forget(dir, name string) error {
	if err := os.Remove(filepath.Join(dir, name+".pid")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget %s: %w", name, err)
	}
	return nil
}

// Find returns what Start or Record recorded, or the zero value for what was never started.
func Find(dir, name string) Process {
	var p Process
	data, err := os.ReadFile(filepath.Join(dir, name+".pid"))
	if err != nil || json.Unmarshal(data, &p) != nil {
		return Process{}
	}
	return p
}

// Behind returns the process that listens on a Unix socket, in whatever namespaces it is; the zero
// value if there is none.
func Behind(socket string) Process {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return Process{}
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return Process{}
	}
	var peer *unix.Ucred
	doErr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if doErr != nil || err != nil {
		return Process{}
	}
	return Of(int(peer.Pid))
}

// Names lists what was started in a folder, including ended processes, sorted.
func Names(dir string) (names []string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.pid")) // the pattern is well-formed
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".pid"))
	}
	return names
}

// Of returns the process that has a number now.
func Of(pid int) Process {
	p := Process{PID: pid}
	p.Start, _ = startTime(pid) // if it has just ended, it is not alive
	return p
}

// Self returns this process.
func Self() Process { return Of(os.Getpid()) }

// Alive reports whether the process runs.
func (p Process) Alive() bool {
	if p.PID == 0 {
		return false
	}
	start, ok := startTime(p.PID)
	return ok && start == p.Start
}

// Signal sends a signal. Sending one to an ended process succeeds.
func (p Process) Signal(sig syscall.Signal) error {
	fd, ok := p.open()
	if !ok {
		return nil
	}
	defer unix.Close(fd)
	return p.send(fd, sig)
}

// Kill ends the process and returns once it is gone, with everything that it had open.
func (p Process) Kill() error {
	fd, ok := p.open()
	if !ok {
		return nil
	}
	defer unix.Close(fd)
	if err := p.send(fd, syscall.SIGKILL); err != nil {
		return err
	}
	// The descriptor becomes readable once the last thread has ended; the first thread's state
	// changes too early.
	for deadline := time.Now().Add(patience); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", p.PID, err)
		case time.Now().After(deadline):
			return fmt.Errorf("kill process %d: it does not end", p.PID)
		}
	}
}

// patience is the time-out for a killed process to end: a machine with much to do may take long to
// free what it had.
const patience = time.Minute

// open returns a descriptor of the process; false if it has ended.
func (p Process) open() (fd int, ok bool) {
	if !p.Alive() {
		return 0, false
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return 0, false // it has just ended
	}
	if !p.Alive() { // now the number cannot pass to another process
		_ = unix.Close(fd)
		return 0, false
	}
	return fd, true
}

func (p Process) send(fd int, sig syscall.Signal) error {
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send %v to process %d: %w", sig, p.PID, err)
	}
	return nil
}

// tailLines is enough for the stack trace of a panic.
const tailLines = 40

// Tail returns the last lines of a process's log, indented.
func Tail(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, name+".log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-tailLines):], "\n  ")
}

// startTime returns when a process started; false if it does not exist or is a zombie.
func startTime(pid int) (uint64, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	end := strings.LastIndex(string(data), ") ") // the command's name may contain anything
	if end < 0 {
		return 0, false
	}
	fields := strings.Fields(string(data[end+2:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0, false
	}
	t, err := strconv.ParseUint(fields[19], 10, 64) // field 22 of the line
	return t, err == nil
}
