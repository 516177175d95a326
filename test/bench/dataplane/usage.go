package dataplane

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/cpuaffinity"
)

// CPU returns the CPU time, user and system, of the program and of its children that have ended.
// The program's own time is exact; that of its children has steps of a hundredth of a second.
func (s *Process) CPU() (time.Duration, error) {
	pid := s.cmd.Process.Pid
	var ts unix.Timespec
	clock := int32(^pid)<<3 | 2 // CPUCLOCK_SCHED of the process, as clock_getcpuclockid(3) makes it
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("read CPU time of %s: %w", s.Name, err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read CPU time of %s: %w", s.Name, err)
	}
	_, after, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(after)
	const children = 16 - 3 // cutime is field 16, and what follows the name begins with field 3
	if len(fields) < children+2 {
		return 0, fmt.Errorf("read CPU time of %s: %q", s.Name, b)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 everywhere
	total := time.Duration(ts.Nano())
	for _, f := range fields[children : children+2] {
		n, err := strconv.Atoi(f)
		if err != nil {
			return 0, fmt.Errorf("read CPU time of %s: %w", s.Name, err)
		}
		total += time.Duration(n) * tick
	}
	return total, nil
}

// KeepOff keeps the running program off a CPU.
func (s *Process) KeepOff(cpu int) error { return cpuaffinity.KeepOff(s.cmd.Process.Pid, cpu) }

// Resident is the program's resident memory in bytes.
func (s *Process) Resident() (int, error) {
	n, ok := memory(s.cmd.Process.Pid, "VmRSS:")
	if !ok {
		return 0, fmt.Errorf("read memory of %s: %w", s.Name, s.Running())
	}
	return n, nil
}

// HeaviestChild watches the program's children until ctx ends and returns the most memory in bytes
// that one of them had resident.
func (s *Process) HeaviestChild(ctx context.Context) int {
	heaviest := 0
	for ctx.Err() == nil {
		for _, pid := range children(s.cmd.Process.Pid) {
			n, _ := memory(pid, "VmHWM:") // it may have ended
			heaviest = max(heaviest, n)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return heaviest
}

// children lists a process's children.
func children(pid int) []int {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // none if it has ended
	var pids []int
	for _, t := range tasks {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name())) // the same
		for f := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// memory reads a line of a process's status, in bytes.
func memory(pid int, name string) (int, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == name {
			n, err := strconv.Atoi(f[1])
			return n * 1024, err == nil
		}
	}
	return 0, false
}
