package table

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
)

// Refused reports whether the kernel did not take what it was told, so that it may take a part of
// it. In a table that nobody else knows, that something is or is not there is a refusal, too:
// otherwise the kernel may not hold what the driver believes, which an adoption finds out.
func Refused(err error, alone bool) bool {
	var k *nft.Error
	if !errors.As(err, &k) {
		return false
	}
	switch k.Errno {
	case unix.EPERM, unix.EACCES, unix.EINTR, unix.EAGAIN:
		return false
	case unix.ENOENT, unix.EEXIST, unix.EBUSY:
		return alone
	}
	return true
}

// Reason is what the kernel said, for people.
func Reason(err error) string {
	var k *nft.Error
	if errors.As(err, &k) {
		return k.Errno.Error() + " (" + k.What + ")"
	}
	return err.Error()
}

// maxOutOfMemory is the number of parts that are set aside for a lack of memory before it is taken
// for the machine's: a part that asks for too much of it looks the same as a machine that has none.
const maxOutOfMemory = 16

// A refused part is cut into cutInto others. None begins larger than mostAtOnce, so that what is
// refused among many costs little more than the many.
const (
	cutInto    = 8
	mostAtOnce = 512
)

// Sieve carries out in parts what the kernel refused as a whole, until it is known which units it
// refuses: those are set aside.
type Sieve[U any] struct {
	Apply    func([]U) error // of some units, in one transaction; where it is refused, the kernel is as before
	Refused  func(error) bool
	SetAside func(U, error) error

	outOfMemory int
}

// Sift carries out units. An error is about something else than one of them, and the kernel is
// between two parts then.
func (s *Sieve[U]) Sift(units []U) error {
	for part := range slices.Chunk(units, mostAtOnce) {
		if err := s.sift(part); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sieve[U]) sift(units []U) error {
	err := s.Apply(units)
	switch {
	case err == nil || !s.Refused(err):
		return err
	case len(units) == 1:
		if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS) {
			if s.outOfMemory++; s.outOfMemory > maxOutOfMemory {
				return err
			}
		}
		return s.SetAside(units[0], err)
	}
	for part := range slices.Chunk(units, (len(units)+cutInto-1)/cutInto) {
		if err := s.sift(part); err != nil {
			return err
		}
	}
	return nil
}
