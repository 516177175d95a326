package list

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/source/stamp"
)

// maxFile bounds the size of a list's file.
const maxFile = 512 << 20

// errBusy means that somebody is writing the file.
var errBusy = errors.New("somebody is writing it")

// load reads a file, under a read lease: the kernel grants it only while no
// one has the file open for writing, and keeps new writers waiting until the
// reading is done. So a file is seen before or after a change, never within.
// Where there are no leases (the file is someone else's and CAP_LEASE is lacking, or
// the filesystem has none), a file that changes while it is read is busy.
func load(path string) (nets []netip.Prefix, of stamp.Stamp, err error) {
	// A pipe in the place of the file must not make us wait.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.EAGAIN) { // someone else's lease is in the way
		return nil, of, errBusy
	}
	if err != nil {
		return nil, of, fmt.Errorf("open list: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, of, fmt.Errorf("stat list: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, of, errors.New("read list: it is no regular file")
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); errors.Is(err, unix.EAGAIN) {
		return nil, of, errBusy
	}
	// Only now does the stamp hold.
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, of, fmt.Errorf("stat list: %w", err)
	}
	if of = stamp.Of(&st); st.Size > maxFile {
		return nil, of, fmt.Errorf("read list: it has %d bytes, at most %d are read; split it", st.Size, maxFile)
	}
	nets, err = Read(f)
	if unix.Fstat(int(f.Fd()), &st) == nil && stamp.Of(&st) != of {
		return nil, of, errBusy
	}
	return nets, of, err
}
