package agent

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Conntrack is the usage of the kernel's connection table.
type Conntrack struct {
	Count int `json:"count"`
	Max   int `json:"max"`
}

// ReadConntrack reads the usage in the calling thread's network namespace. On kernels without a
// limit for each namespace, the limit is the whole machine's. The error wraps os.ErrNotExist if
// connection tracking is not loaded.
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
