package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/report"
)

// Wait waits for a time or until ctx ends, whose error it returns then.
func Wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ReadMachine describes this machine; what cannot be read stays empty.
func ReadMachine() report.Machine {
	m := report.Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Tools: map[string]string{}}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	m.CPU = Field("/proc/cpuinfo", "model name")
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(b), " ")
	}
	m.Memory = Field("/proc/meminfo", "MemTotal")
	for tool, args := range map[string][]string{
		"nft":      {"nft", "--version"},
		"iptables": {"iptables-legacy", "--version"},
		"ipset":    {"ipset", "--version"},
		"nftlb":    {"dpkg-query", "-W", "nftlb"}, // it has no option that prints its version
		"haproxy":  {"dpkg-query", "-W", "haproxy"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).Output(); err == nil {
			m.Tools[tool] = strings.Join(strings.Fields(FirstLine(out)), " ")
		}
	}
	return m
}

// Field returns the value of the first "name : value" line of a file.
func Field(path, name string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Kilobytes returns the number in "123 kB" as bytes.
func Kilobytes(s string) int {
	n, _ := strconv.Atoi(strings.TrimSuffix(s, " kB"))
	return n * 1024
}

// CPUIdle returns how long a CPU has been idle since boot. The kernel counts in microseconds where
// the tick stops in idle, and prints steps of 10 ms.
func CPUIdle(cpu int) (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 6 || f[0] != fmt.Sprintf("cpu%d", cpu) {
			continue
		}
		idle, err1 := strconv.Atoi(f[4])
		wait, err2 := strconv.Atoi(f[5])
		if err1 == nil && err2 == nil {
			return time.Duration(idle+wait) * 10 * time.Millisecond, nil
		}
	}
	return 0, fmt.Errorf("read CPU time: no cpu%d in /proc/stat", cpu)
}

// BusyTime returns for how long CPUs have been at work since boot, all together. The kernel counts
// in steps of 10 ms.
func BusyTime() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	f := strings.Fields(FirstLine(b)) // cpu user nice system idle iowait irq softirq …
	if len(f) < 8 || f[0] != "cpu" {
		return 0, fmt.Errorf("read CPU time: /proc/stat begins with %q", FirstLine(b))
	}
	ticks := 0
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.Atoi(f[i])
		if err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// ProcessCPU returns the CPU time that a process has used, in nanoseconds.
func ProcessCPU(pid int) (time.Duration, error) {
	var ts unix.Timespec
	clock := int32(^pid)<<3 | 2 // CPUCLOCK_SCHED of the process, as clock_getcpuclockid(3) makes it
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// ResidentMemory returns the resident memory of a process in bytes.
func ResidentMemory(pid int) (int, error) { return statusMemory(pid, "VmRSS") }

// PeakMemory returns the most memory that a process has ever had resident, in bytes.
func PeakMemory(pid int) (int, error) { return statusMemory(pid, "VmHWM") }

func statusMemory(pid int, name string) (int, error) {
	v := Field(fmt.Sprintf("/proc/%d/status", pid), name)
	if v == "" {
		return 0, fmt.Errorf("read memory of process %d: it is gone", pid)
	}
	return Kilobytes(v), nil
}

// Settle waits until the machine has been nearly idle for a moment, at most three seconds: the
// kernel takes removed namespaces apart in the background.
func Settle() {
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		a, err1 := CPUIdle(0)
		began := time.Now()
		time.Sleep(200 * time.Millisecond)
		b, err2 := CPUIdle(0)
		if errors.Join(err1, err2) != nil || (b-a).Seconds() > 0.9*time.Since(began).Seconds() {
			return
		}
	}
}

// FirstLine returns the first line of a command's output.
func FirstLine(b []byte) string {
	s, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return s
}
