package conntrack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
)

// countFile is of the network namespace of the thread that opens it. (Asking ctnetlink instead
// would not do: its answer claims to be one of several, whose end never comes.)
const countFile = "/proc/sys/net/netfilter/nf_conntrack_count"

// Count is the number of entries in the table of the Conn's namespace. It is safe for concurrent
// use.
func (c *Conn) Count() (int, error) {
	if c.count == nil {
		return 0, fmt.Errorf("count the entries of connection tracking: %w", os.ErrNotExist)
	}
	b := make([]byte, 32)
	n, err := c.count.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err == nil {
		n, err = strconv.Atoi(string(bytes.TrimSpace(b[:n])))
	}
	if err != nil {
		return 0, fmt.Errorf("count the entries of connection tracking: %w", err)
	}
	return n, nil
}
