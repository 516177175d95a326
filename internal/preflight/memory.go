package preflight

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// Memory is how much this process may use, and all in its cgroup; the kernel charges the sets of an
// nftables table to the process that fills them.
type Memory struct {
	Limit uint64 // bytes; 0: no limit
	Where string // the file that says it
	Err   error
}

// memory reports the limit that an agent would have if it were started here.
func memory(f *Facts) []Result {
	const name = "memory"
	// Enough for an agent and the sets of a million endpoints, twice.
	const plenty = 1 << 30
	m := f.Memory
	switch {
	case m.Err != nil:
		return cannotTell(name, m.Err)
	case m.Limit == 0:
		return one(name, OK, "no limit in this cgroup", "")
	case m.Limit >= plenty:
		return one(name, OK, fmt.Sprintf("%d MiB at the most (%s)", m.Limit>>20, m.Where), "")
	}
	return one(name, Warn, fmt.Sprintf("%d MiB at the most (%s): the kernel charges the table's sets to the agent, and ends it, or fails its changes, beyond that", m.Limit>>20, m.Where),
		"give the agent no memory limit: no resources.limits.memory in a pod, no MemoryMax in a systemd unit")
}

// memoryLimit reads the lowest limit from this process's cgroup upwards, of either version. Root is
// /sys/fs/cgroup, and cgroups is what /proc/self/cgroup says.
func memoryLimit(root, cgroups string) (m Memory) {
	for line := range strings.Lines(cgroups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		dir, file := root, "memory.max"
		switch {
		case fields[1] == "memory":
			dir, file = path.Join(root, "memory"), "memory.limit_in_bytes"
		case fields[1] != "":
			continue
		}
		// In a container the path may be the host's, and the container's own cgroup the root.
		for at := path.Clean("/" + fields[2]); ; at = path.Dir(at) {
			m.lower(path.Join(dir, at, file))
			if at == "/" {
				break
			}
		}
	}
	return m
}

// lower reads a file with a limit, if it exists.
func (m *Memory) lower(file string) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		m.Err = fmt.Errorf("read memory limit: %w", err)
		return
	}
	limit, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	const none = math.MaxInt64 >> 12 << 12 // what version 1 says for no limit, in whole pages
	if err != nil || limit >= none {
		return // "max"
	}
	if m.Limit == 0 || limit < m.Limit {
		m.Limit, m.Where = limit, file
	}
}

func ownMemory() Memory {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return Memory{Err: fmt.Errorf("read cgroup: %w", err)}
	}
	return memoryLimit("/sys/fs/cgroup", string(b))
}
