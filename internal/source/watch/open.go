package watch

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/source/stamp"
)

var (
	// ErrBusy means that somebody is writing a file.
	ErrBusy = errors.New("somebody is writing it")
	// ErrIrregular is what stands in the place of a file and is none, as a folder or a pipe.
	ErrIrregular = errors.New("it is no regular file")
)

// File is a file that is open for reading, under a read lease: the kernel grants it only while no
// one has the file open for writing, and keeps new writers waiting until the file is closed. So it
// is seen before or after a change, never within.
type File struct {
	fd    int
	Size  int64
	Stamp stamp.Stamp
	// Lease is why there is no lease: ErrBusy, or something else where there are none (the file is
	// someone else's and CAP_LEASE is lacking, or the filesystem has none).
	Lease error
}

// Open opens a regular file. ErrBusy means that it can't be opened for now, as someone else has a
// lease.
func Open(path string) (f *File, err error) {
	fd, err := open(path)
	if err == unix.EAGAIN {
		return nil, ErrBusy
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, ErrIrregular
	}
	_, lease := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	if lease == unix.EAGAIN {
		lease = ErrBusy
	}
	// Only now do size and stamp hold.
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	return &File{fd, st.Size, stamp.Of(&st), lease}, nil
}

// Close gives the lease up; again, it does nothing.
func (f *File) Close() {
	unix.Close(f.fd)
	f.fd = -1 // the number may be another file's next
}

// Changed tells whether the file is another than when it was opened.
func (f *File) Changed() bool {
	var st unix.Stat_t
	return unix.Fstat(f.fd, &st) != nil || stamp.Of(&st) != f.Stamp
}

// Read implements io.Reader.
func (f *File) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(f.fd, b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// open doesn't wait if the file turns out to be a pipe.
func open(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}
