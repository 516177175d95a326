package drivertest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/netns"
)

// A probe is a raw socket for each transport at one address. The sockets receive everything that
// arrives there, whether or not anything listens.
type probe struct {
	addr netip.Addr
	fds  map[model.Protocol]int
}

var probed = []model.Protocol{model.TCP, model.UDP, model.SCTP, Ping}

func openProbe(a netip.Addr) (*probe, error) {
	p := &probe{addr: a, fds: map[model.Protocol]int{}}
	for _, proto := range probed {
		fd, err := openRaw(rawNumber(proto, a), a)
		if err != nil {
			p.close()
			return nil, err
		}
		p.fds[proto] = fd
	}
	return p, nil
}

// openRaw opens a non-blocking raw socket that ignores ICMP errors.
func openRaw(proto int, a netip.Addr) (int, error) {
	fd, err := unix.Socket(socketFamily(a), unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		return -1, fmt.Errorf("open raw socket: %w", err)
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	if err == nil {
		err = unix.Bind(fd, sockaddr(a))
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("prepare raw socket on %v: %w", a, err), unix.Close(fd))
	}
	return fd, nil
}

func (p *probe) close() {
	for _, fd := range p.fds {
		_ = unix.Close(fd)
	}
}

// send sends a packet of a connection: the first, or the reply to it. The reply of TCP is a reset,
// which the kernel sends by itself.
func (p *probe) send(proto model.Protocol, from, to uint16, dst netip.Addr, reply bool) error {
	src, d := netip.AddrPortFrom(p.addr, from), netip.AddrPortFrom(dst, to)
	var b []byte
	switch proto {
	case model.TCP:
		b = segment(src, d, tcpSYN, uint32(from), 0, nil)
	case model.UDP:
		mark := binary.BigEndian.AppendUint32(nil, uint32(from))
		if reply {
			mark = []byte("reply")
		}
		b = datagram(src, d, mark)
	case model.SCTP:
		s := sctpPacket{src: from, dst: to, chunk: sctpInit, tag: uint32(from)}
		if reply {
			s.chunk, s.vtag = sctpInitAck, uint32(to)
		}
		b = s.marshal()
	}
	err := unix.Sendto(p.fds[proto], b, 0, sockaddr(dst))
	if errors.Is(err, unix.EPERM) {
		return nil // dropped on its way out of this host
	}
	return err
}

// seen is a packet that arrived.
type seen struct {
	proto    model.Protocol
	from     netip.Addr
	src, dst uint16
	id       uint32 // the mark of a first packet: its source port when sent
	reply    bool
}

// drain calls f with each packet that has arrived.
func (p *probe) drain(f func(seen) error) error {
	buf := make([]byte, 2048)
	for proto, fd := range p.fds {
		for {
			b, from, err := receive(fd, buf)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil {
				return fmt.Errorf("receive at %v: %w", p.addr, err)
			}
			if s, ok := readSeen(proto, from, b); ok {
				if err := f(s); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Probe sends all the packets, from all their sources, and reports the outcome of each. It never
// waits for a packet that may not come: one processor sends everything, and the kernel handles its
// packets in turn. So a packet was dropped if it has not arrived before a later packet from the
// node to a pod.
func (m *Mesh) Probe(firsts []First) (fates map[First]Fate, err error) {
	err = onOneCPU(func() error {
		fates, err = m.probe(firsts)
		return err
	})
	if err != nil {
		return nil, err
	}
	// A driver looks at all connections that there are after each change, and these are over.
	if err := m.Node.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return nil, fmt.Errorf("flush connection tracking: %w", err)
	}
	return fates, nil
}

// crowd is how many packets are on their way at the same time. The kernel's queue of a processor
// holds a thousand, and other tests send, too.
const crowd = 100

func (m *Mesh) probe(firsts []First) (map[First]Fate, error) {
	m.port++
	source := m.port
	fates := make(map[First]Fate, len(firsts))
	bySource := map[netip.Addr][]First{}
	for _, f := range firsts {
		fates[f] = Fate{}
		bySource[f.From] = append(bySource[f.From], f)
	}
	for a, fs := range bySource {
		for some := range slices.Chunk(fs, crowd) {
			for _, f := range some {
				if err := m.probes[a].send(f.Protocol, source, f.Port, f.To, false); err != nil {
					return nil, fmt.Errorf("send %v: %w", f, err)
				}
			}
			if err := m.sentinel.flush(); err != nil {
				return nil, err
			}
		}
	}
	if err := m.collect(fates, source); err != nil {
		return nil, err
	}
	return fates, m.collect(fates, source)
}

// collect records what has arrived, and answers first packets, one source at a time.
func (m *Mesh) collect(fates map[First]Fate, source uint16) error {
	for a, p := range m.probes {
		answers := false
		err := p.drain(func(s seen) error {
			if s.id == uint32(source) && !s.reply {
				f := First{s.from, a, s.proto, s.dst}
				fate, known := fates[f]
				if !known || fate.Arrived {
					return nil
				}
				fate.Arrived = true
				fates[f] = fate
				if s.proto == model.TCP {
					return nil
				}
				answers = true
				return p.send(s.proto, s.dst, s.src, s.from, true)
			}
			if f := (First{a, s.from, s.proto, s.src}); s.reply && s.dst == source {
				if fate, known := fates[f]; known {
					fate.Answered = true
					fates[f] = fate
				}
			}
			return nil
		})
		if err == nil && answers {
			err = m.sentinel.flush()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// processors are those of the machine that the tests may use.
var processors = sync.OnceValues(func() (all []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("list processors: %w", err)
	}
	for cpu := 0; len(all) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all, nil
})

var turn atomic.Uint32

// onOneCPU runs f on a thread that stays on one processor and is discarded afterwards. The next one
// is on another processor.
func onOneCPU(f func() error) error {
	all, err := processors()
	if err != nil {
		return err
	}
	cpu := all[int(turn.Add(1))%len(all)]
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		var one unix.CPUSet
		one.Set(cpu)
		err := unix.SchedSetaffinity(0, &one)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// hops is how often a packet and the kernel's answer to it may be queued on their way from one pod
// to another and back.
const hops = 6

// A sentinel is a packet that the node sends to each of its pods, which always arrives.
type sentinel struct {
	from int
	to   int
	dst  unix.Sockaddr
}

func (s *sentinel) open(m *Mesh) error {
	s.from, s.to = -1, -1
	var pod *host
	var at netip.Addr
	for a, h := range m.topology.owner {
		if h.name != "node" && h.name != "outside" && a.Is4() {
			pod, at = h, a
		}
	}
	socket := func(ns *netns.NS, fd *int) error {
		return ns.Do(func() (err error) {
			*fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			return err
		})
	}
	if err := errors.Join(socket(m.Node, &s.from), socket(pod.ns, &s.to)); err != nil {
		return fmt.Errorf("open the sentinel's sockets: %w", err)
	}
	const port = 9
	if err := unix.Bind(s.to, &unix.SockaddrInet4{Addr: at.As4(), Port: port}); err != nil {
		return fmt.Errorf("bind the sentinel's socket: %w", err)
	}
	s.dst = &unix.SockaddrInet4{Addr: at.As4(), Port: port}
	tv := unix.NsecToTimeval(patience.Nanoseconds())
	return unix.SetsockoptTimeval(s.to, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
}

// flush returns when everything sent before, and the kernel's answers to it, has arrived or was
// dropped.
func (s *sentinel) flush() error {
	buf := make([]byte, 16)
	for range hops {
		if err := unix.Sendto(s.from, []byte("sentinel"), 0, s.dst); err != nil {
			return fmt.Errorf("send from the node to its pod: %w", err)
		}
		for end := time.Now().Add(patience); ; {
			_, _, err := unix.Recvfrom(s.to, buf, 0)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EINTR) || time.Now().After(end) {
				return fmt.Errorf("the node does not reach its own pod: %w", err)
			}
		}
	}
	return nil
}

func (s *sentinel) close() {
	for _, fd := range []int{s.from, s.to} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
