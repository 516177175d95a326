package kernel

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	batchSize   = 32 << 10 // bytes of requests in one system call
	messageSize = 64 << 10
	recvBuffer  = 8 << 20 // notifications of a large change of our own are read between batches
	attempts    = 10      // at a dump that changes interrupt
)

// socket is a routing netlink socket. The kernel carries out requests within the sending system
// call, so that nothing here waits.
type socket struct {
	*netlink.Conn
	raw  syscall.RawConn // the same
	recv []byte
}

// message is a request or an answer.
type message = netlink.Message

// dial opens a socket in the calling thread's network namespace that is told of what the groups
// (unix.RTMGRP_…) tell.
func dial(groups uint32) (*socket, error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: groups, Strict: true, MessageBufferSize: messageSize})
	if err != nil {
		return nil, fmt.Errorf("open routing socket: %w", err)
	}
	raw, err := c.SyscallConn()
	if err = errors.Join(err, c.SetReadBuffer(recvBuffer)); err != nil {
		return nil, errors.Join(fmt.Errorf("configure routing socket: %w", err), c.Close())
	}
	return &socket{c, raw, make([]byte, messageSize)}, nil
}

// said is what the kernel answers to a request that it does not carry out, in its words.
func said(err error) error {
	refusal, is := errors.AsType[*netlink.OpError](err)
	switch {
	case !is:
		return err
	case refusal.Message == "":
		return refusal.Err
	}
	return fmt.Errorf("%w: %s", refusal.Err, strings.TrimSuffix(refusal.Message, "."))
}

// notifications calls f for each message that is there. What f gets is valid during the call.
func (s *socket) notifications(f func(syscall.NetlinkMessage)) (err error) {
	failed := s.raw.Read(func(fd uintptr) bool {
		for err == nil {
			var n int
			if n, _, err = unix.Recvfrom(int(fd), s.recv, unix.MSG_DONTWAIT); err == nil {
				var list []syscall.NetlinkMessage
				list, err = syscall.ParseNetlinkMessage(s.recv[:n])
				for _, m := range list {
					f(m)
				}
			}
		}
		return true
	})
	if err = errors.Join(failed, err); !errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("receive from kernel: %w", err)
	}
	return nil
}

// change carries out requests in their order, as many in one system call as fit, and returns what
// the kernel answered to those that it refused. Between two calls it calls pause.
func (s *socket) change(requests []message, pause func()) (map[int]error, error) {
	failed := map[int]error{}
	for first := 0; first < len(requests); {
		next := first
		for size := 0; next < len(requests) && size < batchSize; next++ {
			size += unix.SizeofNlMsghdr + len(requests[next].Data)
		}
		requests[next-1].Header.Flags |= netlink.Acknowledge // a refusal is an answer by itself
		sent, err := s.SendMessages(requests[first:next])
		if err != nil {
			return failed, fmt.Errorf("send to kernel: %w", said(err))
		}
		for at := -1; at != len(sent)-1; {
			answers, err := s.Receive()
			refusal, refused := errors.AsType[*netlink.OpError](err)
			switch {
			case err == nil:
				at = int(answers[0].Header.Sequence - sent[0].Header.Sequence)
			case refused && refusal.Sequence != 0:
				at = int(refusal.Sequence - sent[0].Header.Sequence)
				failed[first+at] = said(err)
			default:
				_ = s.notifications(func(syscall.NetlinkMessage) {}) // what is left of the answers
				return failed, fmt.Errorf("receive from kernel: %w", said(err))
			}
		}
		pause()
		first = next
	}
	return failed, nil
}

// list dumps entries, from the beginning again if a change interrupts it. A kernel without the
// family has none.
func list[T any](s *socket, typ, answer netlink.HeaderType, body []byte, read func([]byte) (T, bool)) ([]T, error) {
	for range attempts {
		if _, err := s.Send(message{Header: netlink.Header{Type: typ, Flags: netlink.Request | netlink.Dump}, Data: body}); err != nil {
			return nil, fmt.Errorf("send to kernel: %w", said(err))
		}
		var found []T
		interrupted := false
		for m, err := range s.ReceiveIter() {
			switch {
			case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
				return nil, nil
			case err != nil:
				return nil, said(err)
			}
			interrupted = interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
			if e, ok := read(m.Data); ok && m.Header.Type == answer {
				found = append(found, e)
			}
		}
		if !interrupted {
			return found, nil
		}
	}
	return nil, errors.New("what the kernel was listing kept changing")
}
