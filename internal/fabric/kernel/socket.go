package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	batchSize  = 32 << 10 // bytes of requests in one system call
	recvBuffer = 8 << 20  // notifications of a large change of our own are read between batches
	attempts   = 10       // at a dump that changes interrupt
)

// errInterrupted: a dump was interrupted by a change, and is not consistent.
var errInterrupted = errors.New("what the kernel was listing kept changing")

// socket is a routing netlink socket. The kernel carries out requests within the sending system
// call, so that nothing here waits. It is written on the system calls, as the libraries send each
// request in a call of its own, which is what makes ten thousand nodes slow.
type socket struct {
	fd   int
	seq  uint32
	recv []byte
}

// dial opens a socket in the calling thread's network namespace that is told of what the groups
// tell.
func dial(groups ...int) (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open routing socket: %w", err)
	}
	s := &socket{fd: fd, recv: make([]byte, 64<<10)}
	if err := s.configure(groups); err != nil {
		return nil, errors.Join(fmt.Errorf("configure routing socket: %w", err), s.close())
	}
	return s, nil
}

func (s *socket) configure(groups []int) error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	// Without CAP_NET_ADMIN the forced size fails, and all changes later with a clearer message.
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, recvBuffer) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, recvBuffer)
	}
	for _, option := range []int{unix.NETLINK_CAP_ACK, unix.NETLINK_EXT_ACK, unix.NETLINK_GET_STRICT_CHK} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, option, 1); err != nil {
			return err
		}
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			return err
		}
	}
	return nil
}

func (s *socket) close() error { return unix.Close(s.fd) }

// message is a request, an answer or a notification.
type message struct {
	typ, flags uint16
	seq        uint32
	body       []byte // after the netlink header
}

func (m message) append(b []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(m.body)))
	b = binary.NativeEndian.AppendUint16(b, m.typ)
	b = binary.NativeEndian.AppendUint16(b, m.flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, m.seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(b, m.body...) // bodies are padded
}

// refused is the kernel's answer to a request that it did not carry out.
type refused struct {
	errno  syscall.Errno
	reason string // in the kernel's words; may be empty
}

func (r *refused) Error() string {
	if r.reason == "" {
		return r.errno.Error()
	}
	return r.errno.Error() + ": " + strings.TrimSuffix(r.reason, ".")
}

func (r *refused) Unwrap() error { return r.errno }

// answer reads an error message; nil is an acknowledgement.
func (m message) answer() error {
	if len(m.body) < 4+unix.SizeofNlMsghdr {
		return errors.New("error message cut off")
	}
	errno := syscall.Errno(-int32(binary.NativeEndian.Uint32(m.body)))
	if errno == 0 {
		return nil
	}
	r := &refused{errno: errno}
	if m.flags&unix.NLM_F_ACK_TLVS != 0 {
		for typ, value := range attributes(m.body[4+unix.SizeofNlMsghdr:]) {
			if typ == unix.NLMSGERR_ATTR_MSG {
				r.reason = strings.TrimRight(string(value), "\x00")
			}
		}
	}
	return r
}

// receive calls f for each message that is there. What f gets is valid during the call.
func (s *socket) receive(f func(message)) error {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.recv, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return fmt.Errorf("receive from kernel: %w", err)
		}
		for b := s.recv[:n]; len(b) >= unix.SizeofNlMsghdr; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				return errors.New("receive from kernel: message cut off")
			}
			f(message{
				typ: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]),
				seq: binary.NativeEndian.Uint32(b[8:]), body: b[unix.SizeofNlMsghdr:size],
			})
			b = b[min((size+3)&^3, len(b)):]
		}
	}
}

func (s *socket) send(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			if err != nil {
				return fmt.Errorf("send to kernel: %w", err)
			}
			return nil
		}
	}
}

// change carries out requests in their order, as many in one system call as fit, and returns what
// the kernel answered to those that it refused. Between two calls it calls pause.
func (s *socket) change(requests []message, pause func()) (map[int]error, error) {
	failed := map[int]error{}
	for first := 0; first < len(requests); {
		var b []byte
		next, base := first, s.seq+1
		for ; next < len(requests) && len(b) < batchSize; next++ {
			r := requests[next]
			s.seq++
			r.seq = s.seq
			if len(b)+unix.SizeofNlMsghdr+len(r.body) >= batchSize || next == len(requests)-1 {
				r.flags |= unix.NLM_F_ACK
			}
			b = r.append(b)
		}
		if err := s.changeSome(b, base, first, failed); err != nil {
			return failed, err
		}
		pause()
		first = next
	}
	return failed, nil
}

// changeSome sends requests of which the last asks for an answer.
func (s *socket) changeSome(b []byte, base uint32, first int, failed map[int]error) error {
	if err := s.send(b); err != nil {
		return err
	}
	answered := false
	err := s.receive(func(m message) {
		if m.typ != unix.NLMSG_ERROR || m.seq < base {
			return
		}
		answered = answered || m.seq == s.seq
		if err := m.answer(); err != nil {
			failed[first+int(m.seq-base)] = err
		}
	})
	if err == nil && !answered {
		err = errors.New("the kernel did not answer the last of some requests")
	}
	return err
}

// dump lists what a request asks for, from the beginning again if a change interrupts it.
func (s *socket) dump(typ uint16, body []byte, f func(message), again func()) error {
	for range attempts {
		err := s.dumpOnce(typ, body, f)
		if !errors.Is(err, errInterrupted) {
			return err
		}
		again()
	}
	return errInterrupted
}

func (s *socket) dumpOnce(typ uint16, body []byte, f func(message)) (err error) {
	s.seq++
	if err := s.send(message{typ: typ, flags: unix.NLM_F_DUMP, seq: s.seq, body: body}.append(nil)); err != nil {
		return err
	}
	for done := false; !done; {
		before, got := done, false
		failed := s.receive(func(m message) {
			if m.seq != s.seq {
				return
			}
			got = true
			if m.flags&unix.NLM_F_DUMP_INTR != 0 {
				err = errInterrupted
			}
			switch m.typ {
			case unix.NLMSG_DONE:
				done = true
			case unix.NLMSG_ERROR:
				done, err = true, m.answer()
			default:
				f(m)
			}
		})
		if failed != nil {
			return failed
		}
		if !got && before == done {
			return errors.New("the kernel ended a list too early")
		}
	}
	return err
}
