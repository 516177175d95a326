package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// Socket is a netfilter netlink socket. It lives as long as the driver, since
// the table is owned by the socket that created it.
//
// It is written on the system calls themselves: the libraries' sockets cannot own
// a table, acknowledge a batch once, hand the kernel a large batch without copying
// it, or receive dumps in the large pieces that make them fast.
type Socket struct {
	fd   int
	Port uint32 // our address; the kernel names it as the owner of our table
	seq  uint32 // of requests; batches count from 0
	recv []byte

	Family uint8 // unix.NFPROTO_… of the tables that are read; inet at first

	// Refuse, if set, stands for the kernel in tests: an error is its answer to a batch that it
	// does not take.
	Refuse func(messages [][]byte, labels []string) error
}

const (
	sendBuffer = 512 << 20 // a batch is one message for the socket: a million endpoints take about 100 MB
	recvBuffer = 8 << 20
)

// Dial opens a socket in the network namespace of the calling thread.
func Dial() (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netfilter netlink socket: %w", err)
	}
	s := &Socket{fd: fd, seq: 1 << 31, Family: unix.NFPROTO_INET, recv: make([]byte, 64<<10)}
	if err := s.configure(); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("configure netfilter netlink socket: %w", err)
	}
	return s, nil
}

func (s *Socket) configure() error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	addr, err := unix.Getsockname(s.fd)
	if err != nil {
		return err
	}
	s.Port = addr.(*unix.SockaddrNetlink).Pid
	// The forced sizes need CAP_NET_ADMIN; without it everything later fails with a
	// clearer message than this would.
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	}
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, recvBuffer) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, recvBuffer)
	}
	return unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
}

// Close closes the socket. A table that it owns stays if it has FlagPersist. To close it again is
// an error, and does nothing: by then the descriptor's number may be another file's.
func (s *Socket) Close() error {
	fd := s.fd
	s.fd = -1
	return unix.Close(fd)
}

// message is one received netlink message.
type message struct {
	typ   uint16
	flags uint16
	seq   uint32
	data  []byte // after the netlink header
}

// receive reads one datagram and calls f for each message in it. It never
// waits: netfilter works within the sending system call, so that answers are
// there when it returns. Nothing there is unix.EAGAIN.
func (s *Socket) receive(f func(message) error) error {
	n, _, err := unix.Recvfrom(s.fd, s.recv, unix.MSG_DONTWAIT)
	for errors.Is(err, unix.EINTR) {
		n, _, err = unix.Recvfrom(s.fd, s.recv, unix.MSG_DONTWAIT)
	}
	if err != nil {
		return fmt.Errorf("receive from kernel: %w", err)
	}
	for b := s.recv[:n]; len(b) >= unix.SizeofNlMsghdr; {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return errors.New("receive from kernel: message cut off")
		}
		m := message{
			typ:   binary.NativeEndian.Uint16(b[4:]),
			flags: binary.NativeEndian.Uint16(b[6:]),
			seq:   binary.NativeEndian.Uint32(b[8:]),
			data:  b[unix.SizeofNlMsghdr:size],
		}
		if err := f(m); err != nil {
			return err
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// errno is the error an NLMSG_ERROR message carries; nil for an acknowledgement.
func (m message) errno() error {
	if len(m.data) < 4 {
		return errors.New("error message cut off")
	}
	if e := -int32(binary.NativeEndian.Uint32(m.data)); e != 0 {
		return syscall.Errno(e)
	}
	return nil
}

// get sends one request of the nf_tables subsystem and calls f with the payload
// (after nfgenmsg) of each answer. A dump that was interrupted by a change
// returns ErrInterrupted.
func (s *Socket) get(ctx context.Context, typ uint8, flags uint16, family uint8, body []byte, f func(payload []byte)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.seq++
	seq := s.seq
	var req attr.Attrs
	appendHeader(&req, typ, flags|unix.NLM_F_REQUEST, seq, family)
	req.B = append(req.B, body...)
	binary.NativeEndian.PutUint32(req.B, uint32(len(req.B)))
	if err := unix.Sendto(s.fd, req.B, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to kernel: %w", err)
	}
	for done, interrupted := false, false; !done; {
		if err := ctx.Err(); err != nil {
			return err // of an unfinished dump: the socket is of no use any more
		}
		err := s.receive(func(m message) error {
			if m.seq != seq {
				return nil // left over from an operation that was given up
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch m.typ {
			case unix.NLMSG_DONE:
				done = true
				if interrupted {
					return ErrInterrupted
				}
				return m.errno()
			case unix.NLMSG_ERROR:
				done = true
				return m.errno()
			}
			f(m.data[nfgenmsgLen:])
			done = m.flags&unix.NLM_F_MULTI == 0
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

var ErrInterrupted = errors.New("the kernel's objects changed while they were read")

// Uninterrupted reads again, up to ten times, where the kernel's objects change while they are
// read.
func Uninterrupted(read func() error) error {
	const most = 10
	for try := 1; ; try++ {
		if err := read(); !errors.Is(err, ErrInterrupted) || try == most {
			return err
		}
	}
}

const nfgenmsgLen = 4

// appendHeader appends the netlink header (its length is patched later) and nfgenmsg.
func appendHeader(a *attr.Attrs, typ uint8, flags uint16, seq uint32, family uint8) {
	a.B = binary.NativeEndian.AppendUint32(a.B, 0)
	a.B = binary.NativeEndian.AppendUint16(a.B, unix.NFNL_SUBSYS_NFTABLES<<8|uint16(typ))
	a.B = binary.NativeEndian.AppendUint16(a.B, flags)
	a.B = binary.NativeEndian.AppendUint32(a.B, seq)
	a.B = binary.NativeEndian.AppendUint32(a.B, 0)
	a.B = append(a.B, family, unix.NFNETLINK_V0, 0, 0)
}

// commit sends the buffers as one atomic batch and returns the kernel's word.
// A message's sequence number is the index of its label; 0 stands for the batch. The last one,
// with number ackSeq, must ask for an acknowledgement: it comes after the
// commit, and is all that a successful batch is answered with.
func (s *Socket) commit(buffers [][]byte, ackSeq uint32, labels []string) error {
	if s.Refuse != nil {
		if err := s.Refuse(buffers, labels); err != nil {
			return err
		}
	}
	iov := make([][]byte, 0, len(buffers)+2)
	iov = append(iov, batchMarker(unix.NFNL_MSG_BATCH_BEGIN))
	iov = append(iov, buffers...)
	iov = append(iov, batchMarker(unix.NFNL_MSG_BATCH_END))
	if _, err := unix.SendmsgBuffers(s.fd, iov, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0); err != nil {
		return batchError(err)
	}
	var failed error
	for done := false; !done; {
		err := s.receive(func(m message) error {
			if m.typ != unix.NLMSG_ERROR || int(m.seq) >= len(labels) {
				return nil // not of this batch
			}
			err := m.errno()
			if err != nil && failed == nil {
				failed = Answer(labels[m.seq], err)
			}
			// An error of the batch as a whole is reported on its first message, and
			// nothing follows.
			done = done || m.seq == ackSeq || m.seq == 0
			return nil
		})
		if failed != nil && errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			return errors.Join(failed, err)
		}
	}
	return failed
}

// Error is the kernel's answer to a transaction: nothing of that happened.
type Error struct {
	What  string // the operation that was refused, or "commit"
	Errno unix.Errno
}

func (e *Error) Error() string { return e.What + ": " + e.Errno.Error() }
func (e *Error) Unwrap() error { return e.Errno }

// Answer is what the kernel says of a batch.
func Answer(what string, err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return &Error{what, errno}
}

// batchError is why a batch could not be sent. One that is too long is refused like one of which
// the kernel does not take a part.
func batchError(err error) error {
	const what = "send batch to kernel"
	switch {
	case errors.Is(err, unix.EMSGSIZE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
		return Answer(what, err)
	}
	return fmt.Errorf(what+": %w", err)
}

func batchMarker(typ uint16) []byte {
	b := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr+nfgenmsgLen)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(b, unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES)
}
