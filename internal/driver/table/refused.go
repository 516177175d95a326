package table

import (
	"errors"

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
