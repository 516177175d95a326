package lab

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// lock prevents two commands from building or removing the same lab at the same time. The lock is
// an abstract Unix socket: it ends with its holder in any case, and leaves no file.
func lock(name string) (release func(), err error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", lockName(name))
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("another command is bringing lab %s up or taking it down: wait until that has ended", name)
	}
	if err != nil {
		return nil, fmt.Errorf("lock lab %s: %w", name, err)
	}
	return func() { _ = l.Close() }, nil
}

func lockName(name string) string { return "@sluice/lab/" + name }

// locked reports whether somebody holds the lock of a lab.
func locked(name string) bool {
	c, err := net.Dial("unix", lockName(name))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
