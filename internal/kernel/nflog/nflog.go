// Package nflog reads the packets that rules with "log group" tell of
// (nfnetlink_log), as far as their headers.
package nflog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/probe"
)

const (
	// snap is how much of a packet is read: an IPv6 header, some extension headers and those of
	// TCP.
	snap = 128
	// readBuffer holds a second's bursts: a message is charged at under 1 KiB.
	readBuffer = 1 << 20
)

// Numbers of linux/netfilter/nfnetlink_log.h.
const (
	msgPacket = unix.NFNL_SUBSYS_ULOG << 8
	msgConfig = unix.NFNL_SUBSYS_ULOG<<8 | 1

	cfgCommand   = 1
	cfgMode      = 2
	cfgThreshold = 5
	cfgFlags     = 6

	commandBind   = 1
	commandUnbind = 2
	copyPacket    = 2
	flagSeq       = 1

	attrHeader    = 1
	attrTimestamp = 3
	attrIn        = 4
	attrOut       = 5
	attrPayload   = 9
	attrPrefix    = 10
	attrSeq       = 12
)

// ErrBusy says that another process reads the group: the kernel gives a group to one at a time.
var ErrBusy = errors.New("another process reads this group already; end it first")

// Requirement is what the package needs of the kernel.
var Requirement = &probe.Requirement{
	Name: "packets logged to a netlink group", Since: "2.6.14", Modules: []string{"nfnetlink_log"},
	Check: func(context.Context) error {
		const nobodys = 1<<16 - 1
		nl, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer func() { _ = nl.Close() }()
		err = (&Conn{nl: nl}).configure(nobodys, func(a *attr.Attrs) { a.Bytes(cfgCommand, []byte{commandUnbind}) })
		if errors.Is(err, unix.ENODEV) { // nobody has the group
			return nil
		}
		return err
	},
}

// Packet is one packet that the kernel told of.
type Packet struct {
	Header
	Prefix  string // of the rule
	Hook    uint8  // the netfilter hook: 0 prerouting, 1 input, 2 forward, 3 output, 4 postrouting; of netdev 0 ingress
	In, Out int    // indexes of the interfaces; 0: none
	Time    time.Time
	Lost    int // messages between the one before and this one that could not be kept
}

// Conn reads one group. Next may be called by one goroutine at a time.
type Conn struct {
	nl    *netlink.Conn
	queue []netlink.Message
	seq   uint32 // of the last message
	begun bool   // there was one
}

// Open binds the group in the calling thread's network namespace, where the Conn stays. It needs
// CAP_NET_ADMIN there. The error wraps ErrBusy if somebody else reads the group.
func Open(group uint16) (*Conn, error) {
	runtime.LockOSThread() // what says whether the group is taken is asked of this thread's namespace
	defer runtime.UnlockOSThread()
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open nflog group %d: %w", group, err)
	}
	c := &Conn{nl: nl}
	if err := c.bind(group); err != nil {
		_ = nl.Close()
		switch {
		case errors.Is(err, unix.EBUSY), taken(group):
			err = ErrBusy
		case errors.Is(err, unix.EPERM):
			err = fmt.Errorf("%w (it needs CAP_NET_ADMIN)", err)
		default:
			err = Requirement.Missing(err)
		}
		return nil, fmt.Errorf("open nflog group %d: %w", group, err)
	}
	return c, nil
}

// taken reports whether somebody reads the group. The kernel refuses others with EPERM, as it
// does those without the right to read any.
func taken(group uint16) bool {
	list, err := os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_log")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(list)) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == strconv.Itoa(int(group)) {
			return true
		}
	}
	return false
}

// Close gives the group back. Next fails after it.
func (c *Conn) Close() error { return c.nl.Close() }

func (c *Conn) bind(group uint16) error {
	if err := c.nl.SetReadBuffer(readBuffer); err != nil {
		return err
	}
	mode := binary.BigEndian.AppendUint32(nil, snap)
	for _, put := range []func(*attr.Attrs){
		func(a *attr.Attrs) { a.Bytes(cfgCommand, []byte{commandBind}) },
		func(a *attr.Attrs) {
			a.Bytes(cfgMode, append(mode, copyPacket, 0))
			a.Uint32(cfgThreshold, 1) // each at once
			a.Uint16(cfgFlags, flagSeq)
		},
	} {
		if err := c.configure(group, put); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) configure(group uint16, put func(*attr.Attrs)) error {
	a := attr.Attrs{B: binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, group)}
	put(&a)
	return c.acknowledged(netlink.Message{Header: netlink.Header{Type: msgConfig, Flags: netlink.Request | netlink.Acknowledge}, Data: a.B})
}

// acknowledged sends a message and waits for its acknowledgement, before which packets may come
// already.
func (c *Conn) acknowledged(m netlink.Message) error {
	sent, err := c.nl.Send(m)
	if err != nil {
		return err
	}
	for {
		got, err := c.nl.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
		for _, g := range got {
			if g.Header.Type == netlink.Error && g.Header.Sequence == sent.Header.Sequence {
				return nil
			}
			c.queue = append(c.queue, g)
		}
	}
}

// Next waits for a packet, until ctx ends. Packets that it can make nothing of are passed over.
// Messages that were lost, as nobody read them in time, are counted in the next packet's Lost.
func (c *Conn) Next(ctx context.Context) (Packet, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.nl.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for lost := 0; ; {
		if err := ctx.Err(); err != nil {
			return Packet{}, err
		}
		for len(c.queue) > 0 {
			m := c.queue[0]
			c.queue = c.queue[1:]
			p, seq, ok := decode(m)
			lost += c.missed(m, seq)
			if ok {
				p.Lost = lost
				return p, nil
			}
		}
		got, err := c.nl.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) { // ctx ended, or that of the call before just now
			err = c.nl.SetReadDeadline(time.Time{})
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return Packet{}, fmt.Errorf("read nflog: %w", err)
		}
		c.queue = got
	}
}

// missed is the number of messages that the kernel made between the last and this one.
func (c *Conn) missed(m netlink.Message, seq uint32) int {
	if m.Header.Type != msgPacket {
		return 0
	}
	n := int32(seq - c.seq - 1)
	if !c.begun {
		n = 0
	}
	c.seq, c.begun = seq, true
	return int(max(0, n))
}

// decode reads a message. It is not ok if it is not of a packet, or the packet has no address.
func decode(m netlink.Message) (p Packet, seq uint32, ok bool) {
	if m.Header.Type != msgPacket || len(m.Data) < 4 {
		return p, 0, false
	}
	err := errShort // until there is a payload
	for t, b := range attr.All(m.Data[4:]) {
		switch {
		case t == attrHeader && len(b) == 4:
			p.Hook = b[2]
		case t == attrTimestamp && len(b) == 16:
			p.Time = time.Unix(int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))*1000)
		case t == attrIn:
			p.In = int(attr.Uint32(b))
		case t == attrOut:
			p.Out = int(attr.Uint32(b))
		case t == attrSeq:
			seq = attr.Uint32(b)
		case t == attrPrefix:
			p.Prefix = attr.Text(b)
		case t == attrPayload:
			p.Header, err = Parse(b)
		}
	}
	if p.Time.IsZero() {
		p.Time = time.Now()
	}
	return p, seq, err == nil
}
