// Package inject generates packets at the rate at which one core can process them, by default SYNs
// of new flows, and counts what arrives at the other side.
//
// A Generator runs an XDP program over "live frames" (BPF_F_TEST_XDP_LIVE_FRAMES): each becomes a
// packet that the kernel treats as received by a device, and walks the whole stack from there in
// the caller's thread. A Counter drops and counts packets as they leave the backend's end of a veth
// pair, before anything answers. So the time from the first flow to the last is the cost of
// receiving, translating and forwarding them, and little else.
package inject

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/cpuaffinity"
	"sluice.dev/sluice/test/netns"
)

// Sources are the addresses that flows come from; each has 32,768 ports, so there are more flows
// than a run can use up.
var Sources = netip.MustParsePrefix("198.18.0.0/15")

// Target says where flows go: to one port of Count consecutive addresses from Base+First on, hit in
// an order that strides over them evenly.
type Target struct {
	Base  netip.Addr // IPv4
	First int
	Count int
	Port  uint16
}

// Origin says where flows come from and what they are made of.
type Origin struct {
	Base netip.Addr // IPv4; each address has 32,768 ports, then comes the next one
	// Scatter are the bits of the address that are drawn for each packet; they must be zero in
	// Base. 0: none.
	Scatter uint32
	Flows   int  // so many flows in turns, a power of two; 0: every packet is a new one
	UDP     bool // datagrams of twelve bytes in place of segments
}

// Segment is what is sent of each flow, unless it is a datagram. Both ends of a flow count from the
// same number.
type Segment struct {
	Flags    uint8
	Seq, Ack uint32
	Answer   bool // from the target to the flow's source
}

// The flags of a Segment (RFC 9293).
const (
	FIN, SYN, PSH, ACK = 0x01, 0x02, 0x08, 0x10
)

// FirstPort is the source port of the first flow of an address; the next ones follow.
const FirstPort = 1024

// Result is what one Send did.
type Result struct {
	Sent int           // packets made
	Took time.Duration // from the making of the first to that of the last
}

// PerFlow is the cost of one flow in nanoseconds.
func (r Result) PerFlow() float64 { return float64(r.Took.Nanoseconds()) / float64(r.Sent) }

// Generator makes flows on one device. It is not safe for concurrent use.
type Generator struct {
	ns      *netns.NS
	ifindex int
	objs    bpfObjects
	hold    link.Link
	flags   uint32         // of the program that makes packets
	met     ebpf.ProgramID // the device's own program, which every packet meets; 0: none
}

// New returns a Generator of packets that the device of ns takes as received. If the device has an
// XDP program, every packet meets it.
func New(ns *netns.NS, device string) (*Generator, error) {
	g := &Generator{ns: ns}
	l, err := ns.LinkByName(device)
	if err != nil {
		return nil, fmt.Errorf("find device %s in %s: %w", device, ns.Name, err)
	}
	g.ifindex = l.Attrs().Index
	if err := g.load(0); err != nil {
		return nil, err
	}
	if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached {
		// Programs that take frames in parts are called by no others, and call none.
		if err = g.meet(ebpf.ProgramID(xdp.ProgId)); errors.Is(err, unix.EINVAL) {
			if err = errors.Join(g.objs.Close(), g.load(unix.BPF_F_XDP_HAS_FRAGS)); err == nil {
				err = g.meet(ebpf.ProgramID(xdp.ProgId))
			}
		}
	} else {
		g.hold, err = attach(ns, g.ifindex, g.objs.Pass)
	}
	err = errors.Join(err, g.prepare(l.Attrs().HardwareAddr))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare packet generator on %s: %w", device, err), g.objs.Close())
	}
	return g, nil
}

// load loads the programs, with flags for the one that makes packets.
func (g *Generator) load(flags uint32) error {
	g.flags = flags
	spec, err := loadBpf()
	if err == nil {
		spec.Programs[bpfProgInject].Flags |= flags
		err = spec.LoadAndAssign(&g.objs, nil)
	}
	if err != nil {
		return fmt.Errorf("load packet generator: %w", err)
	}
	return nil
}

// Beside returns another Generator on the same device, for another CPU. Close it first.
func (g *Generator) Beside() (*Generator, error) {
	o := &Generator{ns: g.ns, ifindex: g.ifindex}
	if err := o.load(g.flags); err != nil {
		return nil, err
	}
	var mac [6]byte
	err := errors.Join(g.objs.DstMac.Get(&mac), o.prepare(mac[:]))
	if g.met != 0 {
		err = errors.Join(err, o.meet(g.met))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare packet generator: %w", err), o.objs.Close())
	}
	return o, nil
}

// prepare has the programs make SYNs of new flows.
func (g *Generator) prepare(mac net.HardwareAddr) error {
	return errors.Join(setMAC(g.objs.DstMac, mac), g.From(Origin{Base: Sources.Addr()}), g.Make(Segment{Flags: SYN}))
}

// meet has the device's own XDP program called for every packet.
func (g *Generator) meet(id ebpf.ProgramID) error {
	g.met = id
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Errorf("find the device's XDP program: %w", err)
	}
	return errors.Join(g.objs.Before.Put(uint32(0), p), p.Close())
}

// Close takes the generator off its device.
func (g *Generator) Close() error {
	err := g.objs.Close()
	if g.hold != nil {
		err = errors.Join(g.hold.Close(), err)
	}
	return err
}

// Aim sets where the flows of the next Send go.
func (g *Generator) Aim(t Target) error {
	if !t.Base.Is4() || t.Count < 1 || t.First < 0 {
		return fmt.Errorf("aim at %v: need an IPv4 address and at least one target", t)
	}
	err := errors.Join(
		g.objs.DstBase.Set(word(t.Base)),
		g.objs.DstFirst.Set(uint32(t.First)),
		g.objs.DstCount.Set(uint32(t.Count)),
		g.objs.DstStride.Set(uint32(stride(t.Count))),
		g.objs.DstPort.Set(t.Port))
	if err != nil {
		return fmt.Errorf("aim packet generator: %w", err)
	}
	return nil
}

// From sets where the flows of the next Send come from; without it they are SYNs of ever new flows
// from Sources.
func (g *Generator) From(o Origin) error {
	if !o.Base.Is4() || o.Flows&(o.Flows-1) != 0 || o.Scatter&word(o.Base) != 0 {
		return fmt.Errorf("send from %v: need an IPv4 address that lacks the scattered bits, and a power of two", o)
	}
	flows := ^uint32(0)
	if o.Flows > 0 {
		flows = uint32(o.Flows - 1)
	}
	protocol := uint8(unix.IPPROTO_TCP)
	if o.UDP {
		protocol = unix.IPPROTO_UDP
	}
	err := errors.Join(
		g.objs.SrcBase.Set(word(o.Base)),
		g.objs.SrcMask.Set(o.Scatter),
		g.objs.FlowMask.Set(flows),
		g.objs.Protocol.Set(protocol))
	if err != nil {
		return fmt.Errorf("prepare packet generator: %w", err)
	}
	return nil
}

// Make sets which segments the next Send makes; without it they are SYNs.
func (g *Generator) Make(s Segment) error {
	answer := uint8(0)
	if s.Answer {
		answer = 1
	}
	err := errors.Join(g.objs.TcpFlags.Set(s.Flags), g.objs.Seq.Set(s.Seq), g.objs.Ack.Set(s.Ack), g.objs.Answer.Set(answer))
	if err != nil {
		return fmt.Errorf("prepare packet generator: %w", err)
	}
	return nil
}

// Start sets the number of the flow that the next Send begins with.
func (g *Generator) Start(flow uint32) error {
	if err := g.objs.Next.Set(flow); err != nil {
		return fmt.Errorf("prepare packet generator: %w", err)
	}
	return nil
}

// Send makes n packets, each of a flow that was never made before unless From said otherwise, on
// the given CPU. They have been processed when it returns.
func (g *Generator) Send(n, cpu int) (Result, error) {
	var first uint32
	if err := g.objs.Next.Get(&first); err != nil {
		return Result{}, fmt.Errorf("read packet generator: %w", err)
	}
	err := errors.Join(g.objs.Until.Set(first+uint32(n)), g.objs.FirstNs.Set(uint64(0)), g.objs.LastNs.Set(uint64(0)))
	if err != nil {
		return Result{}, fmt.Errorf("prepare packet generator: %w", err)
	}
	if err := g.ns.Do(func() error { return errors.Join(cpuaffinity.BindThread(cpu), g.run(n)) }); err != nil {
		return Result{}, fmt.Errorf("send %d flows: %w", n, err)
	}
	var next uint32
	var began, ended uint64
	if err := errors.Join(g.objs.Next.Get(&next), g.objs.FirstNs.Get(&began), g.objs.LastNs.Get(&ended)); err != nil {
		return Result{}, fmt.Errorf("read packet generator: %w", err)
	}
	if int(next-first) != n {
		return Result{}, fmt.Errorf("send %d flows: the kernel made %d", n, next-first)
	}
	return Result{Sent: n, Took: time.Duration(ended - began)}, nil
}

// frame is as long as a SYN; the program writes all of it.
const frame = 14 + 20 + 20

// context mirrors struct xdp_md of linux/bpf.h.
type context struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// run asks for n runs of the program. If a signal interrupts it the library starts again with n;
// the program stops by itself after the last flow.
func (g *Generator) run(n int) error {
	_, err := g.objs.Inject.Run(&ebpf.RunOptions{
		Data:    make([]byte, frame),
		Context: context{DataEnd: frame, IngressIfindex: uint32(g.ifindex)},
		Repeat:  uint32(n),
		Flags:   unix.BPF_F_TEST_XDP_LIVE_FRAMES,
	})
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w (live frames need Linux 5.18)", err)
	}
	return err
}

// Arrived is what came out on the far side since the last Reset.
type Arrived struct {
	Backend int // IPv4 packets to a backend's address
	Other   int // IPv4 packets to any other address: nothing translated them
}

// Sink drops and counts all IPv4 packets as they are about to leave by a device. Nothing of the far
// side is a part of their cost then.
type Sink struct{ Counter }

// NewSink puts a Sink on a device of ns.
func NewSink(ns *netns.NS, device string) (*Sink, error) {
	return newSink(ns, device, ebpf.AttachTCXEgress)
}

// NewEnd is NewSink for packets that arrive by a device, also for those that were never its frames.
func NewEnd(ns *netns.NS, device string) (*Sink, error) {
	return newSink(ns, device, ebpf.AttachTCXIngress)
}

func newSink(ns *netns.NS, device string, at ebpf.AttachType) (*Sink, error) {
	s := &Sink{}
	l, err := ns.LinkByName(device)
	if err != nil {
		return nil, fmt.Errorf("find device %s in %s: %w", device, ns.Name, err)
	}
	if err := loadBpfObjects(&s.objs, nil); err != nil {
		return nil, fmt.Errorf("load packet counter: %w", err)
	}
	err = ns.Do(func() (err error) {
		s.hold, err = link.AttachTCX(link.TCXOptions{Program: s.objs.Sink, Attach: at, Interface: l.Attrs().Index})
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("count packets at %s (needs Linux 6.6): %w", device, err), s.objs.Close())
	}
	return s, nil
}

// Counter drops and counts all IPv4 packets that a device receives.
type Counter struct {
	objs bpfObjects
	hold link.Link
}

// NewCounter puts a Counter on a device of ns; backends holds the addresses that count as
// translated.
func NewCounter(ns *netns.NS, device string, backends netip.Prefix) (*Counter, error) {
	c := &Counter{}
	l, err := ns.LinkByName(device)
	if err != nil {
		return nil, fmt.Errorf("find device %s in %s: %w", device, ns.Name, err)
	}
	if err := loadBpfObjects(&c.objs, nil); err != nil {
		return nil, fmt.Errorf("load packet counter: %w", err)
	}
	err = errors.Join(
		c.objs.BackendNet.Set(word(backends.Masked().Addr())),
		c.objs.BackendMask.Set(^uint32(0)<<(32-backends.Bits())))
	if err == nil {
		c.hold, err = attach(ns, l.Attrs().Index, c.objs.Count)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare packet counter on %s: %w", device, err), c.objs.Close())
	}
	return c, nil
}

// Read returns the counts.
func (c *Counter) Read() (Arrived, error) {
	var sums [2]int
	for i := range sums {
		var perCPU []uint64
		if err := c.objs.Arrived.Lookup(uint32(i), &perCPU); err != nil {
			return Arrived{}, fmt.Errorf("read packet counter: %w", err)
		}
		for _, n := range perCPU {
			sums[i] += int(n)
		}
	}
	return Arrived{Backend: sums[0], Other: sums[1]}, nil
}

// Reset sets the counts to zero.
func (c *Counter) Reset() error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count processors: %w", err)
	}
	for i := range uint32(2) {
		if err := c.objs.Arrived.Put(i, make([]uint64, cpus)); err != nil {
			return fmt.Errorf("reset packet counter: %w", err)
		}
	}
	return nil
}

// Close takes the counter off its device.
func (c *Counter) Close() error { return errors.Join(c.hold.Close(), c.objs.Close()) }

func attach(ns *netns.NS, ifindex int, p *ebpf.Program) (link.Link, error) {
	var l link.Link
	err := ns.Do(func() error {
		var err error
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: ifindex, Flags: link.XDPDriverMode})
		return err
	})
	return l, err
}

// stride is a step near the golden section of n and coprime with it: it visits all of n targets
// equally often, and neighbours in time are far apart.
func stride(n int) int {
	for s := max(1, n*618/1000); ; s++ {
		if gcd(s, n) == 1 {
			return s
		}
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// word is an IPv4 address in host byte order.
func word(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func setMAC(v *ebpf.Variable, mac net.HardwareAddr) error {
	if len(mac) != 6 {
		return fmt.Errorf("device has no Ethernet address")
	}
	return v.Set([6]byte(mac))
}
