package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	wire "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoAnswer means that nobody has answered ARP or NDP.
var ErrNoAnswer = errors.New("no answer to ARP")

// Neighbours has the kernel ask neighbours for their Ethernet addresses, by ARP and NDP. It is safe
// for concurrent use.
type Neighbours struct {
	reader *Reader
	conn   *wire.Conn
}

// OpenNeighbours returns Neighbours of the calling thread's network namespace, whichever thread
// asks later.
func OpenNeighbours() (*Neighbours, error) {
	r, err := Open()
	if err != nil {
		return nil, err
	}
	c, err := wire.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("open routing socket: %w", err)
	}
	return &Neighbours{r, c}, nil
}

// Close releases the sockets.
func (n *Neighbours) Close() error {
	n.reader.Close()
	return n.conn.Close()
}

// askPause is the time between two looks at a neighbour that is asked.
const askPause = 10 * time.Millisecond

// The kernel's states of a neighbour whose Ethernet address it knows, and of one that it does not
// ask (rtnetlink(7)).
const (
	known   = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE
	unasked = unix.NUD_PERMANENT | unix.NUD_NOARP
)

// Ask has the kernel ask the neighbour by which packets go to an address: the machine that has it,
// or the router there. An Ethernet address that the kernel knows stays in use meanwhile. It returns
// the neighbour, and nil once there is an answer; ErrNoAnswer when the kernel has given up, or ctx
// ends; or why there is no way to the address. What needs no asking has answered: the machine's own
// addresses, interfaces without ARP, and entries that somebody else has made permanent.
func (n *Neighbours) Ask(ctx context.Context, addr netip.Addr) (netip.Addr, error) {
	route, err := n.reader.Route(addr)
	if err != nil {
		return addr, err
	}
	hop := addr
	if route.Gateway.IsValid() {
		hop = route.Gateway
	}
	if route.Local {
		return hop, nil
	}
	m := neighbour{route.Link, hop}
	state, err := n.state(m)
	switch {
	case err != nil:
		return hop, err
	case state&unasked != 0:
		return hop, nil
	case state&known != 0:
		err = n.set(m, unix.NUD_PROBE, 0)
	default:
		err = n.set(m, unix.NUD_NONE, unix.NTF_USE)
	}
	if err != nil {
		return hop, fmt.Errorf("ask for %s: %w", hop, err)
	}
	return hop, n.answer(ctx, m)
}

// answer waits until a neighbour has been asked.
func (n *Neighbours) answer(ctx context.Context, m neighbour) error {
	tick := time.NewTicker(askPause)
	defer tick.Stop()
	for {
		state, err := n.state(m)
		switch {
		case err != nil:
			return err
		case state&(unix.NUD_REACHABLE|unasked) != 0:
			return nil
		case state&(unix.NUD_INCOMPLETE|unix.NUD_PROBE) == 0: // it was given up
			return ErrNoAnswer
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ErrNoAnswer
		}
	}
}

// neighbour is an address behind an interface.
type neighbour struct {
	link int
	addr netip.Addr
}

// message is a struct ndmsg with the neighbour's address.
func (m neighbour) message(state uint16, flags uint8) []byte {
	family, ip := uint8(unix.AF_INET), m.addr.AsSlice()
	if m.addr.Is6() {
		family = unix.AF_INET6
	}
	b := binary.NativeEndian.AppendUint32([]byte{family, 0, 0, 0}, uint32(m.link))
	b = append(binary.NativeEndian.AppendUint16(b, state), flags, 0)
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(ip)))
	b = binary.NativeEndian.AppendUint16(b, unix.NDA_DST)
	return append(b, ip...)
}

func (n *Neighbours) set(m neighbour, state uint16, flags uint8) error {
	_, err := n.conn.Execute(wire.Message{
		Header: wire.Header{Type: unix.RTM_NEWNEIGH, Flags: wire.Request | wire.Acknowledge | wire.Create | wire.Replace},
		Data:   m.message(state, flags),
	})
	return err
}

// state is what the kernel knows of a neighbour; 0: it has no entry.
func (n *Neighbours) state(m neighbour) (uint16, error) {
	answers, err := n.conn.Execute(wire.Message{
		Header: wire.Header{Type: unix.RTM_GETNEIGH, Flags: wire.Request},
		Data:   m.message(0, 0),
	})
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read neighbour %s: %w", m.addr, err)
	}
	for _, a := range answers {
		if len(a.Data) >= unix.SizeofNdMsg {
			return binary.NativeEndian.Uint16(a.Data[8:]), nil
		}
	}
	return 0, nil
}
