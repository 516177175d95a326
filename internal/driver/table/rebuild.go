package table

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
)

// RebuildAfter is the number of adoptions that fail one after the other before a fresh table takes
// the place of the one that there is.
const RebuildAfter = 3

// Failures counts adoptions that fail one after the other.
type Failures int

// Add counts one that failed for a reason that lies in the table or in what it is to hold.
func (f *Failures) Add(err error) {
	for _, other := range []error{unix.EPERM, context.Canceled, driver.ErrBusy, driver.ErrWhole} {
		if errors.Is(err, other) {
			return
		}
	}
	*f++
}

// Rebuild puts a fresh table in the place of this one. Another one serves meanwhile, as a table
// cannot be renamed; serves tells by its base chains whether packets enter it already. Build builds
// a table that takes the place of another one, if that is there: packets enter both for a moment,
// so that none passes by both. If it is interrupted, the next rebuilding goes on from there.
func (t *Table) Rebuild(ctx context.Context, serves func(entries []string) bool, build func(name, old string) error) error {
	entries, err := t.Sock.Entries(ctx, t.Next())
	if err != nil {
		return err
	}
	if !serves(entries) {
		if err := t.replace(ctx, t.Next(), t.Name, build); err != nil {
			return err
		}
	}
	return t.replace(ctx, t.Name, t.Next(), build)
}

func (t *Table) replace(ctx context.Context, name, old string, build func(name, old string) error) error {
	if err := build(name, old); err != nil {
		return err
	}
	return t.Drop(ctx, old)
}
