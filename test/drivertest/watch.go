package drivertest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/netns"
)

// A watch counts the frames that arrive at an interface for one address.
type watch struct {
	fd    int
	seen  atomic.Int64
	close func()
}

func startWatch(ns *netns.NS, ifname string, dst netip.Addr) (*watch, error) {
	link, err := ns.LinkByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("find %s in %s: %w", ifname, ns.Name, err)
	}
	w := &watch{fd: -1}
	if err := ns.Do(func() error { return w.open(link.Attrs().Index, dst) }); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s in %s: %w", ifname, ns.Name, err), unix.Close(w.fd))
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 128)
		for {
			if _, _, err := unix.Recvfrom(w.fd, buf, 0); err == nil {
				w.seen.Add(1)
				continue
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	w.close = func() {
		close(stop)
		<-done
		_ = unix.Close(w.fd)
	}
	return w, nil
}

// open opens a packet socket in the calling thread's namespace that receives only packets sent to
// dst from the far end.
func (w *watch) open(ifindex int, dst netip.Addr) (err error) {
	if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	tv := unix.NsecToTimeval((20 * time.Millisecond).Nanoseconds())
	filter := onlyTo(dst)
	return errors.Join(
		unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptSockFprog(w.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}),
		unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: ifindex}),
	)
}

func htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// onlyTo returns a classic BPF program that passes the Ethernet frames of IP packets to dst.
func onlyTo(dst netip.Addr) []unix.SockFilter {
	const (
		loadHalf = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		loadWord = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		ifEqual  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		pass     = unix.BPF_RET | unix.BPF_K
	)
	ethertype, offset := uint32(unix.ETH_P_IP), uint32(14+16)
	if dst.Is6() {
		ethertype, offset = unix.ETH_P_IPV6, 14+24
	}
	p := []unix.SockFilter{{Code: loadHalf, K: 12}, {Code: ifEqual, K: ethertype}}
	for word := dst.AsSlice(); len(word) > 0; word = word[4:] {
		p = append(p, unix.SockFilter{Code: loadWord, K: offset}, unix.SockFilter{Code: ifEqual, K: binary.BigEndian.Uint32(word)})
		offset += 4
	}
	for i := range p {
		if p[i].Code == ifEqual {
			p[i].Jf = uint8(len(p) - i)
		}
	}
	return append(p, unix.SockFilter{Code: pass, K: 128}, unix.SockFilter{Code: pass, K: 0})
}
