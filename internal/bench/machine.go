package bench

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// thisMachine reads what the numbers depend on; what can't be read is left empty.
func thisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Tools: map[string]string{}}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	m.CPU = field("/proc/cpuinfo", "model name")
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(b), " ")
	}
	m.Memory = field("/proc/meminfo", "MemTotal")
	for tool, args := range map[string][]string{
		"nft":      {"nft", "--version"},
		"iptables": {"iptables-legacy", "--version"},
		"ipset":    {"ipset", "--version"},
		"nftlb":    {"dpkg-query", "-W", "nftlb"}, // it does not tell itself
	} {
		if out, err := exec.Command(args[0], args[1:]...).Output(); err == nil {
			m.Tools[tool] = strings.Join(strings.Fields(firstLine(out)), " ")
		}
	}
	return m
}

// field is the value of the first "name : value" line of a file.
func field(path, name string) string {
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

// kilobytes is the number in "123 kB", in bytes.
func kilobytes(s string) int {
	n, _ := strconv.Atoi(strings.TrimSuffix(s, " kB"))
	return n * 1024
}

// idle is how long a CPU has been idle since boot. The kernel keeps it to the
// microsecond where the tick stops in idle, and prints it in ticks of 10 ms.
func idle(cpu int) (time.Duration, error) {
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

// processCPU is the CPU time that a process has used, exact to the nanosecond.
func processCPU(pid int) (time.Duration, error) {
	var ts unix.Timespec
	clock := int32(^pid)<<3 | 2 // CPUCLOCK_SCHED of the process, as clock_getcpuclockid(3) makes it
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// residentMemory of a process, in bytes.
func residentMemory(pid int) (int, error) { return statusMemory(pid, "VmRSS") }

// peakMemory is the most that a process had resident, in bytes.
func peakMemory(pid int) (int, error) { return statusMemory(pid, "VmHWM") }

func statusMemory(pid int, name string) (int, error) {
	v := field(fmt.Sprintf("/proc/%d/status", pid), name)
	if v == "" {
		return 0, fmt.Errorf("read memory of process %d: it is gone", pid)
	}
	return kilobytes(v), nil
}
