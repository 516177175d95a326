// Package sift finds out which parts of something a kernel refuses that has refused the whole.
package sift

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

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
