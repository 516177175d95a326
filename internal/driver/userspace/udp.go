package userspace

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// How long a UDP flow lives without a datagram, as in the kernel: one whose client has sent one
// datagram, and one whose client went on.
const (
	firstTime = 30 * time.Second
	flowTime  = 2 * time.Minute
)

// flow is what a client and a backend send each other.
type flow struct {
	*session
	client netip.AddrPort
	back   *net.UDPConn
	life   atomic.Int64 // how long it lives without a datagram
}

// listenUDP begins to take datagrams.
func (fe *frontend) listenUDP(at netip.AddrPort) error {
	conn, err := fe.d.sockets.packets(at, fe.d.redirect != nil)
	if err != nil {
		return err
	}
	fe.listener = conn
	fe.d.start(func() { fe.serveUDP(conn) })
	return nil
}

// serveUDP carries what clients send to backends, until the socket is closed: all flows are cut
// then.
func (fe *frontend) serveUDP(conn *net.UDPConn) {
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // an ICMP error for an earlier answer
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		for range 2 {
			f := fe.flow(conn, from)
			if f == nil || f.send(buffer[:n]) {
				break
			}
			f.forget() // its backend is gone: the datagram is for another one
		}
	}
}

// send passes a datagram on to the backend; false: it can't be sent there any more.
func (f *flow) send(datagram []byte) bool {
	f.asked.Store(time.Now().UnixNano())
	_, err := f.back.Write(datagram)
	if errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNREFUSED) {
		return false
	}
	f.touch()
	return true
}

// touch has the flow live from now on.
func (f *flow) touch() { _ = f.back.SetReadDeadline(time.Now().Add(time.Duration(f.life.Load()))) }

// forget ends a flow.
func (f *flow) forget() {
	f.cut()
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if f.of.flows[f.client] == f {
		delete(f.of.flows, f.client)
	}
}

// flow returns the client's flow, which may be a new one, or nil if it can't have one. Answers are
// sent from the frontend's socket.
func (fe *frontend) flow(front *net.UDPConn, from netip.AddrPort) *flow {
	fe.mu.Lock()
	f := fe.flows[from]
	fe.mu.Unlock()
	if f != nil {
		f.life.Store(int64(flowTime))
		return f
	}
	d := fe.d
	if !d.admit() {
		return nil
	}
	if s := fe.begin(from.Addr(), nil); s != nil {
		back, err := s.dial("udp", from.Addr())
		if err == nil {
			f = &flow{session: s, client: from, back: back.(*net.UDPConn)}
			f.life.Store(int64(firstTime))
			fe.mu.Lock()
			fe.flows[from] = f
			fe.mu.Unlock()
			d.start(func() { f.answer(front) })
			return f
		}
		s.end()
	}
	d.now.Add(-1)
	return nil
}

// buffers hold a datagram while it is carried.
var buffers = sync.Pool{New: func() any { return new([1 << 16]byte) }}

// answer carries what the backend sends to the client, until neither has sent anything for a while,
// the flow is cut, or the backend refuses it.
func (f *flow) answer(front *net.UDPConn) {
	defer f.of.d.now.Add(-1)
	defer f.end()
	defer f.forget()
	raw, err := f.back.SyscallConn()
	for err == nil {
		err = await(raw.Read, func(fd int) error {
			buffer := buffers.Get().(*[1 << 16]byte)
			defer buffers.Put(buffer)
			n, _, err := unix.Recvfrom(fd, buffer[:], unix.MSG_DONTWAIT)
			if err == nil {
				_, _ = front.WriteToUDPAddrPort(buffer[:n], f.client)
				f.asked.Store(0)
			}
			return err
		})
		f.touch()
	}
}
