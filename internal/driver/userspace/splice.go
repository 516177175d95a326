package userspace

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// pipe carries bytes from one socket to another without their being copied. A direction of a
// connection has one only while there is something to carry, so that idle ones cost no more than
// their sockets.
type pipe struct{ r, w int }

// pipes keeps some for those who need one next.
type pipes struct {
	idle chan pipe
	made atomic.Int64
}

const (
	pipeSize  = 1 << 20 // asked for; the kernel may give less
	mostPipes = 128     // two files each: more are not worth it
	copySize  = 1 << 15 // where there is no pipe
)

func newPipes() *pipes { return &pipes{idle: make(chan pipe, mostPipes)} }

// get returns false if all are in use: receivers are slow, so that copying does as well.
func (p *pipes) get() (pipe, bool) {
	select {
	case one := <-p.idle:
		return one, true
	default:
	}
	var fds [2]int
	if p.made.Add(1) > mostPipes || unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		p.made.Add(-1)
		return pipe{}, false
	}
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // a smaller one does
	return pipe{fds[0], fds[1]}, true
}

// put takes an empty pipe back.
func (p *pipes) put(one pipe) { p.idle <- one }

// drop closes a pipe that has something in it.
func (p *pipes) drop(one pipe) {
	_, _ = unix.Close(one.r), unix.Close(one.w)
	p.made.Add(-1)
}

// close closes all that are kept.
func (p *pipes) close() {
	for range len(p.idle) {
		p.drop(<-p.idle)
	}
}

// copy carries what src receives to dst until its end, which it passes on.
func (p *pipes) copy(dst, src *net.TCPConn) error {
	from, err := src.SyscallConn()
	if err != nil {
		return err
	}
	to, err := dst.SyscallConn()
	if err != nil {
		return err
	}
	for err == nil {
		err = p.carry(to, from)
	}
	if err == io.EOF {
		return dst.CloseWrite()
	}
	return err
}

// carry waits for something to arrive, and carries it.
func (p *pipes) carry(to, from syscall.RawConn) error {
	var by pipe
	var spliced bool
	var copied []byte
	var n int
	err := await(from.Read, func(fd int) (err error) {
		if by, spliced = p.get(); !spliced {
			copied = make([]byte, copySize)
			if n, err = unix.Read(fd, copied); err != nil {
				copied = nil
			}
			return err
		}
		moved, err := unix.Splice(fd, nil, by.w, nil, pipeSize, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if n = int(moved); n <= 0 {
			p.put(by)
		}
		return err
	})
	if err == nil && n == 0 {
		err = io.EOF
	}
	for left := n; left > 0 && err == nil; {
		err = await(to.Write, func(fd int) error {
			var m int64
			var err error
			if spliced {
				m, err = unix.Splice(by.r, nil, fd, nil, left, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
			} else {
				var written int
				written, err = unix.Write(fd, copied[n-left:n])
				m = int64(written)
			}
			left -= int(max(0, m))
			return err
		})
	}
	switch {
	case n <= 0 || !spliced:
	case err != nil:
		p.drop(by)
	default:
		p.put(by)
	}
	return err
}

// await does something with a socket as soon as that does not have to wait.
func await(when func(func(uintptr) bool) error, do func(int) error) (err error) {
	waited := when(func(fd uintptr) bool {
		for err = do(int(fd)); errors.Is(err, unix.EINTR); {
			err = do(int(fd))
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	if waited != nil {
		return waited
	}
	return err
}
