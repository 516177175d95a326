package list

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// maxFile bounds the size of a list's file.
const maxFile = 512 << 20

// stamp changes when a file's content does, as far as the kernel's clock can tell.
type stamp struct {
	dev, ino uint64
	size     int64
	ctime    unix.Timespec
}

func stampOf(st *unix.Stat_t) stamp {
	return stamp{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, ctime: st.Ctim}
}

// stampAt returns the stamp of the file at a path; the zero stamp if there is none.
func stampAt(path string) stamp {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return stamp{}
	}
	return stampOf(&st)
}

// errBusy means that somebody is writing the file.
var errBusy = errors.New("somebody is writing it")

// load reads a file, under a read lease: the kernel grants it only while no
// one has the file open for writing, and keeps new writers waiting until the
// reading is done. So a file is seen before or after a change, never within.
// Where there are no leases (the file is someone else's and CAP_LEASE is lacking, or
// the filesystem has none), a file that changes while it is read is busy.
func load(path string) (nets []netip.Prefix, of stamp, err error) {
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
	if of = stampOf(&st); of.size > maxFile {
		return nil, of, fmt.Errorf("read list: it has %d bytes, at most %d are read; split it", of.size, maxFile)
	}
	nets, err = Read(f)
	if unix.Fstat(int(f.Fd()), &st) == nil && stampOf(&st) != of {
		return nil, of, errBusy
	}
	return nets, of, err
}
