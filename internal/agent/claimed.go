package agent

import (
	"fmt"
	"os"
	"strings"
)

// Claimed reports whether an agent has claimed the network namespace of the calling thread,
// wherever its socket is. It sends the agent nothing.
func Claimed() (bool, error) {
	b, err := os.ReadFile("/proc/thread-self/net/unix")
	if err != nil {
		return false, fmt.Errorf("list Unix sockets: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		const flags, path, listens = 3, 7, "00010000" // __SO_ACCEPTCON of linux/net.h
		f := strings.Fields(line)
		if len(f) > path && f[flags] == listens && f[path] == claimName {
			return true, nil
		}
	}
	return false, nil
}

// Elsewhere returns the process of the agent that has the socket open, if it works in another
// network namespace than the calling thread's: a path is the same in all of them. 0: it does not,
// or that cannot be told, as of a process in another container.
func Elsewhere(socket string) (process int32) {
	who, err := ownerOf(socket)
	if err != nil {
		return 0
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", who.Pid))
	if err != nil {
		return 0
	}
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil || here == theirs {
		return 0
	}
	if claimed, err := Claimed(); err != nil || claimed { // a process may have threads in several
		return 0
	}
	return who.Pid
}
