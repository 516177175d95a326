package takeover

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// lock keeps two take-overs from the calling thread's network namespace at once: each would fail at
// rules that the other has removed. The lock is a Unix socket in the abstract namespace: it goes
// with its holder, however that ends.
func lock() (release func(), err error) {
	l, err := net.Listen("unix", "@sluice.dev/takeover")
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errors.New("another 'sluice takeover' is at work on this node: wait for its end")
	}
	if err != nil {
		return nil, fmt.Errorf("lock out other take-overs: %w", err)
	}
	return func() { _ = l.Close() }, nil
}
