package lab

import (
	"errors"
	"fmt"
	"net"

	"sluice.dev/sluice/internal/lib/lock"
)

// lockLab prevents two commands from building or removing the same lab at the same time.
func lockLab(name string) (release func(), err error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	release, err = lock.Take(lockName(name))
	switch {
	case errors.Is(err, lock.ErrHeld):
		return nil, fmt.Errorf("another command is bringing lab %s up or taking it down: wait until that has ended", name)
	case err != nil:
		return nil, fmt.Errorf("lock lab %s: %w", name, err)
	}
	return release, nil
}

func lockName(name string) string { return "sluice/lab/" + name }

// locked reports whether somebody holds the lock of a lab.
func locked(name string) bool {
	c, err := net.Dial("unix", "@"+lockName(name))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
