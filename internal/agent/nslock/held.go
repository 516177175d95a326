package nslock

import (
	"fmt"
	"os"
	"strings"
)

// Held reports whether an agent has locked the network namespace of the calling thread,
// wherever its socket is. It sends the agent nothing.
func Held() (bool, error) {
	b, err := os.ReadFile("/proc/thread-self/net/unix")
	if err != nil {
		return false, fmt.Errorf("list Unix sockets: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		const flags, path, listens = 3, 7, "00010000" // __SO_ACCEPTCON of linux/net.h
		f := strings.Fields(line)
		if len(f) > path && f[flags] == listens && f[path] == socketName {
			return true, nil
		}
	}
	return false, nil
}
