package harness

import (
	"errors"
	"io"
)

// Shared is what several experiments of one invocation use, such as an API server that takes long
// to fill. The first experiment that needs it makes it; it is closed after the last one.
type Shared map[any]io.Closer

// Close closes all of it.
func (s Shared) Close() error {
	var errs []error
	for _, c := range s {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
