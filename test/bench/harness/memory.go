package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryGroup is a control group for one agent. The kernel charges it for what it allocates for the
// agent's tables.
type MemoryGroup struct {
	dir    string
	usage  string // file with all bytes charged
	kernel string // file with the kernel's share; empty: a line of memory.stat
}

// groupRoots are where groups can be made: control groups version 1, then 2.
var groupRoots = []MemoryGroup{
	{dir: "/sys/fs/cgroup/memory", usage: "memory.usage_in_bytes", kernel: "memory.kmem.usage_in_bytes"},
	{dir: "/sys/fs/cgroup", usage: "memory.current"},
}

// NewMemoryGroup fails where control groups cannot be made.
func NewMemoryGroup(name string) (*MemoryGroup, error) {
	for _, g := range groupRoots {
		g.dir = filepath.Join(g.dir, name)
		if err := os.Mkdir(g.dir, 0o755); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(g.dir, g.usage)); err == nil {
			return &g, nil
		}
		_ = os.Remove(g.dir) // one without a memory controller
	}
	return nil, errors.New("no control group with memory accounting can be made here")
}

func (g *MemoryGroup) procs() string { return filepath.Join(g.dir, "cgroup.procs") }

// KernelBytes returns the kernel memory charged to the group.
func (g *MemoryGroup) KernelBytes() (int, error) {
	if g.kernel != "" {
		if b, err := os.ReadFile(filepath.Join(g.dir, g.kernel)); err == nil {
			return strconv.Atoi(strings.TrimSpace(string(b)))
		}
	}
	b, err := os.ReadFile(filepath.Join(g.dir, "memory.stat"))
	if err != nil {
		return 0, fmt.Errorf("read kernel memory: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "kernel" {
			return strconv.Atoi(f[1])
		}
	}
	return 0, errors.New("read kernel memory: the control group does not tell")
}

// Close removes the group; its processes must have ended.
func (g *MemoryGroup) Close() error { return os.Remove(g.dir) }
