package takeover

import (
	"errors"
	"fmt"

	"sluice.dev/sluice/internal/lib/lock"
)

// lockOut keeps two take-overs from the calling thread's network namespace at once: each would fail
// at rules that the other has removed. The thread must be locked to the goroutine.
func lockOut() (release func(), err error) {
	release, err = lock.Take("sluice.dev/takeover")
	switch {
	case errors.Is(err, lock.ErrHeld):
		return nil, errors.New("another 'sluice takeover' is at work on this node: wait for its end")
	case err != nil:
		return nil, fmt.Errorf("lock out other take-overs: %w", err)
	}
	return release, nil
}
