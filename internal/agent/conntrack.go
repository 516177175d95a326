package agent

import (
	"errors"
	"fmt"

	"sluice.dev/sluice/internal/kernel/sysctl"
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
	var countErr, maxErr error
	c.Count, countErr = sysctl.Number("net.netfilter.nf_conntrack_count")
	c.Max, maxErr = sysctl.Number("net.netfilter.nf_conntrack_max")
	return c, errors.Join(countErr, maxErr)
}

// crowded says that the table is nearly full, if it is.
func (c Conntrack) crowded() string {
	if c.Max == 0 || c.Count <= c.Max/10*9 {
		return ""
	}
	return fmt.Sprintf("the connection table is %d %% full: raise net.netfilter.nf_conntrack_max before new connections are dropped", c.Count*100/c.Max)
}
