package agent

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Conntrack is how full the kernel's connection table is.
type Conntrack struct {
	Count int `json:"count"`
	Max   int `json:"max"`
}

// ReadConntrack reads the usage in the calling thread's network namespace. The limit is the
// machine's as a whole on kernels that have no limit per namespace. The error wraps os.ErrNotExist
// where connection tracking is not loaded.
func ReadConntrack() (Conntrack, error) {
	var c Conntrack
	for key, value := range map[string]*int{"nf_conntrack_count": &c.Count, "nf_conntrack_max": &c.Max} {
		b, err := os.ReadFile("/proc/sys/net/netfilter/" + key)
		if err != nil {
			return c, fmt.Errorf("read connection tracking usage: %w", err)
		}
		if *value, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
			return c, fmt.Errorf("parse %s: %w", key, err)
		}
	}
	return c, nil
}
