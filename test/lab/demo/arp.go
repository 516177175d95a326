package demo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/netns"
)

// whoHas asks by ARP all the time who has an address, as a neighbour does that does not know it
// yet.
type whoHas struct {
	file   int // the socket
	device int // its interface's index
	ask    []byte

	mu      sync.Mutex
	at      string // MAC of the last answer; "": none yet
	when    time.Time
	silence time.Duration // the longest time without an answer
	moves   int           // how often the answer was another one than before

	end  chan struct{}
	done chan struct{}
}

// askTime is the time between two questions.
const askTime = 50 * time.Millisecond

// askWho begins to ask, by a device of a namespace.
func askWho(from, device string, self, who netip.Addr) (*whoHas, error) {
	ns, err := netns.Open(from)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	mac, err := ns.Hardware(device)
	if err != nil {
		return nil, err
	}
	link, err := ns.LinkByName(device)
	if err != nil {
		return nil, err
	}
	w := &whoHas{file: -1, device: link.Attrs().Index, ask: question(mac, self, who), end: make(chan struct{}), done: make(chan struct{})}
	err = ns.Do(func() (err error) {
		w.file, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(bigEndian(unix.ETH_P_ARP)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask by ARP: %w", err)
	}
	if err := unix.SetsockoptTimeval(w.file, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: askTime.Microseconds()}); err != nil {
		return nil, errors.Join(fmt.Errorf("ask by ARP: %w", err), unix.Close(w.file))
	}
	go w.run(who)
	return w, nil
}

func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// question is the frame that asks.
func question(mac net.HardwareAddr, self, who netip.Addr) []byte {
	f := append([]byte("\xff\xff\xff\xff\xff\xff"), mac...)
	f = append(f, "\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01"...)
	f = append(append(f, mac...), self.AsSlice()...)
	return append(append(f, 0, 0, 0, 0, 0, 0), who.AsSlice()...)
}

// run asks until close ends it.
func (w *whoHas) run(who netip.Addr) {
	defer close(w.done)
	frame := make([]byte, 64)
	for {
		select {
		case <-w.end:
			return
		default:
		}
		_ = unix.Sendto(w.file, w.ask, 0, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ARP), Ifindex: w.device}) // a lost question is asked again
		for until := time.Now().Add(askTime); time.Now().Before(until); {
			n, _, err := unix.Recvfrom(w.file, frame, 0)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return
			}
			if n >= 42 && frame[21] == 2 && netip.AddrFrom4([4]byte(frame[28:32])) == who { // a reply
				w.heard(net.HardwareAddr(frame[22:28]).String())
			}
		}
	}
}

func (w *whoHas) heard(mac string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.at != "" {
		w.silence = max(w.silence, now.Sub(w.when))
		if w.at != mac {
			w.moves++
		}
	}
	w.at, w.when = mac, now
}

// since returns who answered last, and what has been since it was called last: the longest silence,
// and how often another one answered.
func (w *whoHas) since() (mac string, silence time.Duration, moves int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	silence, moves = w.silence, w.moves
	if !w.when.IsZero() {
		silence = max(silence, time.Since(w.when))
	}
	w.silence, w.moves = 0, 0
	return w.at, silence, moves
}

// answers reports whether the last questions were answered.
func (w *whoHas) answers() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at != "" && time.Since(w.when) < 4*askTime
}

func (w *whoHas) close() error {
	close(w.end)
	<-w.done
	return unix.Close(w.file)
}
