package drivertest

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
)

// Storm sends UDP datagrams from changing ports of one host's address to a port of a pod's address,
// as fast as it can, while f runs. It returns how many packets it sent and how many arrived.
func (m *Mesh) Storm(from netip.Addr, to netip.AddrPort, f func() error) (sent, arrived int, err error) {
	source, pod := m.topology.owner[from], m.topology.owner[to.Addr()]
	if source == nil || pod == nil {
		return 0, 0, fmt.Errorf("no host has the address %v or %v", from, to.Addr())
	}
	w, err := startWatch(pod.ns, "eth0", to.Addr())
	if err != nil {
		return 0, 0, err
	}
	defer w.close()
	var over atomic.Bool
	begun, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- source.ns.Do(func() (err error) {
			sent, err = blow(from, to, begun, &over)
			return err
		})
	}()
	<-begun
	err = f()
	over.Store(true)
	if err := errors.Join(err, <-done); err != nil {
		return sent, 0, err
	}
	arrived, err = m.settle(w, to)
	return sent, arrived, err
}

// blow sends until stop. It closes begun once it has sent something, or cannot.
func blow(from netip.Addr, to netip.AddrPort, begun chan struct{}, over *atomic.Bool) (sent int, err error) {
	begin := sync.OnceFunc(func() { close(begun) })
	defer begin()
	fd, err := openRaw(unix.IPPROTO_UDP, from)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	at := sockaddr(to.Addr())
	for !over.Load() {
		src := netip.AddrPortFrom(from, uint16(1024+sent%60000))
		err := unix.Sendto(fd, datagram(src, to, nil), 0, at)
		switch {
		case err == nil:
			sent++
			begin()
		case !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EAGAIN):
			return sent, fmt.Errorf("send from %v to %v: %w", src, to, err)
		}
	}
	return sent, nil
}

// settle sends one more packet, from the node, which always arrives, and returns how many others
// the watch counted.
func (m *Mesh) settle(w *watch, to netip.AddrPort) (others int, err error) {
	node := m.topology.addrs["node"][0]
	if to.Addr().Is6() {
		node = m.topology.addrs["node"][1]
	}
	before := w.seen.Load()
	if err := m.Node.Do(func() error { return sendRaw(node, to, model.UDP, 1, 1) }); err != nil {
		return 0, err
	}
	for end := time.Now().Add(patience); w.seen.Load() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return 0, fmt.Errorf("the node does not reach %v", to)
		}
	}
	return int(w.seen.Load()) - 1, nil
}
