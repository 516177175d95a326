package takeover

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// giveBack is how long a lock may be held on that has been given back: by a child that is between
// fork and exec, and has a copy of the socket.
const giveBack = 300 * time.Millisecond

// lock keeps two take-overs from the calling thread's network namespace at once: each would fail at
// rules that the other has removed. The lock is a Unix socket in the abstract namespace: it goes
// with its holder, however that ends. The thread must be locked to the goroutine.
func lock() (release func(), err error) {
	l, err := net.Listen("unix", "@sluice.dev/takeover")
	for end := time.Now().Add(giveBack); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(giveBack / 100)
		l, err = net.Listen("unix", "@sluice.dev/takeover")
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errors.New("another 'sluice takeover' is at work on this node: wait for its end")
	}
	if err != nil {
		return nil, fmt.Errorf("lock out other take-overs: %w", err)
	}
	return func() { _ = l.Close() }, nil
}
