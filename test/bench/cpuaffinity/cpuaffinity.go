// Package cpuaffinity decides which CPU does what.
package cpuaffinity

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// BindThread binds the calling goroutine's thread to one CPU and gives it the highest priority
// there. This cannot be undone: the thread is locked to the goroutine, and ends with it.
func BindThread(cpu int) error {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("bind thread to CPU %d: %w", cpu, err)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20); err != nil {
		return fmt.Errorf("raise priority of thread: %w", err)
	}
	return nil
}

// Reserve binds all threads of this process to CPUs other than cpu, which is left to the measured
// work. Threads and processes that they start inherit this. It does nothing on a machine with one
// CPU.
func Reserve(cpu int) error { return KeepOff(os.Getpid(), cpu) }

// KeepOff does with another process's threads what Reserve does with those of this one.
func KeepOff(pid, cpu int) error {
	var set unix.CPUSet
	for i := range runtime.NumCPU() {
		if i != cpu {
			set.Set(i)
		}
	}
	if set.Count() == 0 {
		return nil
	}
	return bindAll(pid, &set)
}

// Release undoes Reserve.
func Release() error {
	var set unix.CPUSet
	for i := range runtime.NumCPU() {
		set.Set(i)
	}
	return bindAll(os.Getpid(), &set)
}

func bindAll(pid int, set *unix.CPUSet) error {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(tid, set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("bind thread to CPUs: %w", err)
		}
	}
	return nil
}
