package takeover

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// giveBack is how long a lock is waited for. One that has been given back may still be held for a
// moment by a child of its holder that has not run its program yet, and has a copy of the socket.
const giveBack = 300 * time.Millisecond

// lock keeps two take-overs from the calling thread's network namespace at once: each would fail at
// rules that the other has removed. The lock is a Unix socket in the abstract namespace: it goes
// with its holder, however that ends. The thread must be locked to the goroutine.
func lock() (release func(), err error) {
	for end := time.Now().Add(giveBack); ; time.Sleep(giveBack / 100) {
		switch l, err := net.Listen("unix", "@sluice.dev/takeover"); {
		case err == nil:
			return func() { _ = l.Close() }, nil
		case !errors.Is(err, syscall.EADDRINUSE):
			return nil, fmt.Errorf("lock out other take-overs: %w", err)
		case time.Now().After(end):
			return nil, errors.New("another 'sluice takeover' is at work on this node: wait for its end")
		}
	}
}
