package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/netns"
)

// process is a process of the lab, as recorded when it was started. Its start
// time tells it from a later one with the same number.
type process struct {
	PID   int
	Start uint64 // in clock ticks since boot
}

// start runs a long-lived command of a node, in the node's namespace and in a session of
// its own, so that it outlives this process and its terminal. Its output goes to
// NODE/WHAT.log.
func (l *Lab) start(node, what string, args []string) error {
	if err := os.MkdirAll(l.path(node), 0o755); err != nil {
		return fmt.Errorf("start %s on %s: %w", what, node, err)
	}
	log, err := os.Create(l.path(node, what+".log"))
	if err != nil {
		return fmt.Errorf("start %s on %s: %w", what, node, err)
	}
	defer log.Close()
	ns, err := netns.Open(l.NodeNS(node))
	if err != nil {
		return err
	}
	defer ns.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := ns.Start(cmd); err != nil {
		return fmt.Errorf("start %s on %s: %w", what, node, err)
	}
	go func() { _ = cmd.Wait() }() // so that it is no zombie if it ends before we do
	p := process{PID: cmd.Process.Pid}
	p.Start, _ = startTime(p.PID) // if it is gone already, await says so
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("record %s on %s: %w", what, node, err)
	}
	return l.write(l.path(node, what+".pid"), data)
}

// process reads what start recorded; of one that was never started, nothing is alive.
func (l *Lab) process(node, what string) process {
	var p process
	data, err := os.ReadFile(l.path(node, what+".pid"))
	if err != nil || json.Unmarshal(data, &p) != nil {
		return process{}
	}
	return p
}

// alive says whether the process runs.
func (p process) alive() bool {
	if p.PID == 0 {
		return false
	}
	start, ok := startTime(p.PID)
	return ok && start == p.Start
}

// self is this process.
func self() *process {
	start, _ := startTime(os.Getpid()) // it does run
	return &process{os.Getpid(), start}
}

// alive says whether all processes of the lab run, and its owner, if it has one.
func (l *Lab) alive() bool {
	if l.Owner != nil && !l.Owner.alive() {
		return false
	}
	pids, _ := filepath.Glob(l.path("*", "*.pid")) // the pattern is well-formed
	for _, f := range pids {
		what := strings.TrimSuffix(filepath.Base(f), ".pid")
		if !l.process(filepath.Base(filepath.Dir(f)), what).alive() {
			return false
		}
	}
	return len(pids) > 0
}

// tailLines is enough for the trace of a panic.
const tailLines = 40

// logTail returns the last lines of a process's log.
func (l *Lab) logTail(node, what string) string {
	data, err := os.ReadFile(l.path(node, what+".log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-tailLines):], "\n  ")
}

// startTime reads when a process started; false if there is no such process or it is a zombie.
func startTime(pid int) (uint64, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	_, rest, ok := cutLast(string(data), ") ") // the command's name may hold anything
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0, false
	}
	t, err := strconv.ParseUint(fields[19], 10, 64) // field 22 of the line
	return t, err == nil
}

// killIn ends all processes whose network namespace is one of those named, whoever started
// them, except this one, and returns once they are gone.
func killIn(names []string) error {
	doomed := map[nsID]bool{}
	for _, n := range names {
		if id, ok := nsIDOf(filepath.Join(netns.Dir, n)); ok {
			doomed[id] = true
		}
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		pids, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			return fmt.Errorf("list processes: %w", err)
		}
		var left []int
		for _, dir := range pids {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil || pid == os.Getpid() {
				continue
			}
			lives, err := killIf(pid, doomed)
			if err != nil {
				return err
			}
			if lives {
				left = append(left, pid)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("end the lab's processes: %d do not end: %v", len(left), left)
		}
	}
}

// killIf kills a process if it lives in a doomed namespace, and says whether it did.
func killIf(pid int, doomed map[nsID]bool) (bool, error) {
	path := fmt.Sprintf("/proc/%d/ns/net", pid)
	if id, ok := nsIDOf(path); !ok || !doomed[id] {
		return false, nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return true, nil // it is just ending: look again
	}
	defer unix.Close(fd)
	if id, ok := nsIDOf(path); !ok || !doomed[id] { // now that the number cannot go to another process
		return false, nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return true, fmt.Errorf("kill process %d: %w", pid, err)
	}
	return true, nil
}

// nsID identifies a namespace while it lives.
type nsID struct{ dev, ino uint64 }

func nsIDOf(path string) (nsID, bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nsID{}, false
	}
	return nsID{uint64(st.Dev), st.Ino}, true
}
