package heard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/ping"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Trial is what Try found out of a far end.
type Trial struct {
	Came
	Err error // of Silent: what this node's kernel, or the network, says of the packets; see Cause
}

// Came is what comes back.
type Came int

// What Try finds out.
const (
	Silent  Came = iota // nothing
	Answers             // it answered through the tunnel
	Arrives             // the other node says that it has no such tunnel, so packets get there
	Unknown             // nothing can be told: WireGuard answers nobody that it does not know
)

// How often Try sends a packet to whoever has not answered, and for how long it waits after each.
const (
	attempts = 3
	patience = 400 * time.Millisecond
)

// Try asks the far ends of the tunnels of a fabric that the kernel need not have yet, with packets
// as the tunnels would send them. Where another program has the tunnel already, ICMP echo goes
// through that. It needs CAP_NET_RAW for IPIP.
func Try(ctx context.Context, f *state.Fabric, ends []model.FarEnd) (map[model.FarEnd]Trial, error) {
	found := map[model.FarEnd]Trial{}
	by := map[string][]model.FarEnd{}
	for _, of := range ends {
		if of.Carrier != (model.Carrier{}) {
			by[of.Device] = append(by[of.Device], of)
		}
	}
	for device, of := range by {
		t := f.Tunnels[device]
		if t == nil {
			continue
		}
		var err error
		switch t.Encapsulation {
		case state.VXLAN:
			err = tryVXLAN(ctx, f, t, of, found)
		case state.IPIP:
			err = tryIPIP(ctx, t, of, found)
		case state.WireGuard:
			err = tryWireGuard(ctx, t, of, found)
		}
		if err != nil {
			return nil, fmt.Errorf("try %s: %w", of[0].Carrier, err)
		}
	}
	return found, nil
}

// tryVXLAN sends echo requests in VXLAN. The answers come to the same port.
func tryVXLAN(ctx context.Context, f *state.Fabric, t *state.Tunnel, ends []model.FarEnd, found map[model.FarEnd]Trial) error {
	s, err := dial(t.Local, unix.SOCK_DGRAM, 0, t.Port)
	if errors.Is(err, unix.EADDRINUSE) {
		return echoes(ctx, t.Address.Is4(), ends, found)
	}
	if err != nil {
		return err
	}
	defer s.close()
	macs := map[netip.Addr]state.MAC{}
	for _, v := range f.VTEPs {
		macs[v.Remote] = v.MAC
	}
	frame := func(of model.FarEnd) []byte {
		mac, kind := macs[of.Remote], uint16(unix.ETH_P_IP)
		if of.To.Is6() {
			kind = unix.ETH_P_IPV6
		}
		b := []byte{0x08, 0, 0, 0} // RFC 7348: there is a VNI
		b = binary.BigEndian.AppendUint32(b, t.VNI<<8)
		b = append(append(b, mac[:]...), t.MAC[:]...)
		return append(binary.BigEndian.AppendUint16(b, kind), ping.Packet(t.Address, of.To)...)
	}
	const inner = 8 + 14
	return s.try(ctx, t.Port, ends, found, frame, func(packet []byte) []byte { return packet[min(inner, len(packet)):] })
}

// tryIPIP sends echo requests in IPIP.
func tryIPIP(ctx context.Context, t *state.Tunnel, ends []model.FarEnd, found map[model.FarEnd]Trial) error {
	s, err := dial(t.Local, unix.SOCK_RAW, unix.IPPROTO_IPIP, 0)
	if err != nil {
		return err
	}
	defer s.close()
	return s.try(ctx, 0, ends, found, func(of model.FarEnd) []byte { return ping.Packet(t.Address, of.To) },
		func(packet []byte) []byte { return packet[min(len(packet), int(packet[0]&0xf)*4):] }) // behind the outer header
}

// tryWireGuard sends what is no packet of WireGuard's.
func tryWireGuard(ctx context.Context, t *state.Tunnel, ends []model.FarEnd, found map[model.FarEnd]Trial) error {
	s, err := dial(t.Local, unix.SOCK_DGRAM, 0, 0)
	if err != nil {
		return err
	}
	defer s.close()
	err = s.try(ctx, t.Port, ends, found, func(model.FarEnd) []byte { return []byte{0} }, func([]byte) []byte { return nil })
	for _, of := range ends {
		if found[of] == (Trial{}) {
			found[of] = Trial{Came: Unknown}
		}
	}
	return err
}

// echoes asks through a tunnel that the kernel has.
func echoes(ctx context.Context, is4 bool, ends []model.FarEnd, found map[model.FarEnd]Trial) error {
	s, err := ping.Open(is4)
	if err != nil {
		return err
	}
	defer s.Close()
	return repeat(ctx, s.FD(), ends, found, func(i int, of model.FarEnd) error { return s.Send(uint16(i), of.To) }, func() {
		for a, ok := s.Next(); ok; a, ok = s.Next() {
			if i := int(a.Number); i < len(ends) && ends[i].To == a.To {
				if found[ends[i]] = (Trial{Came: Answers}); a.Err != nil {
					found[ends[i]] = Trial{Err: a.Err}
				}
			}
		}
	})
}

// TCP is a connection to try. A From that is invalid leaves the choice to the kernel.
type TCP struct {
	From netip.Addr
	To   netip.AddrPort
}

// TryTCP reports of each of some ports whether anything comes back, a refusal too: Answers, or
// Silent. It waits for all together as long as Try.
func TryTCP(ctx context.Context, to []TCP) (found []Trial, err error) {
	found = make([]Trial, len(to))
	came := func(err error) Trial {
		if err == nil || errors.Is(err, unix.Errno(0)) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) {
			return Trial{Came: Answers}
		}
		return Trial{Err: err}
	}
	waiting, open := make([]unix.PollFd, len(to)), 0
	for i, c := range to {
		if !c.From.IsValid() {
			c.From = netip.IPv4Unspecified()
			if c.To.Addr().Is6() {
				c.From = netip.IPv6Unspecified()
			}
		}
		s, err := dial(c.From, unix.SOCK_STREAM, 0, 0)
		if err != nil {
			return nil, fmt.Errorf("connect from %v to %v: %w", c.From, c.To, err)
		}
		defer s.close()
		waiting[i] = unix.PollFd{Fd: -1, Events: unix.POLLOUT} // poll passes over -1
		at, _ := ping.Sockaddr(c.To)
		if err := unix.Connect(s.fd, at); errors.Is(err, unix.EINPROGRESS) {
			waiting[i].Fd, open = int32(s.fd), open+1
		} else {
			found[i] = came(err)
		}
	}
	for until := time.Now().Add(attempts * patience); open > 0 && ctx.Err() == nil && time.Now().Before(until); {
		n, err := unix.Poll(waiting, int(time.Until(until).Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
		for i := range waiting {
			if p := &waiting[i]; n > 0 && p.Fd >= 0 && p.Revents != 0 {
				if errno, err := unix.GetsockoptInt(int(p.Fd), unix.SOL_SOCKET, unix.SO_ERROR); err == nil {
					found[i] = came(unix.Errno(errno))
				}
				p.Fd, open = -1, open-1
			}
		}
	}
	return found, ctx.Err()
}

// trier is a socket that sends packets as a tunnel would.
type trier struct{ fd int }

// dial opens a socket that sends from an address.
func dial(from netip.Addr, kind, protocol int, port uint16) (*trier, error) {
	fd, err := ping.Listen(from.Is4(), kind, protocol)
	if err != nil {
		return nil, err
	}
	s := &trier{fd}
	at, _ := ping.Sockaddr(netip.AddrPortFrom(from, port))
	if err := unix.Bind(fd, at); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *trier) close() { _ = unix.Close(s.fd) }

// try sends a packet to each far end's node, and takes echo replies of the far ends, and refusals.
func (s *trier) try(ctx context.Context, port uint16, ends []model.FarEnd, found map[model.FarEnd]Trial, packet func(model.FarEnd) []byte, inside func([]byte) []byte) error {
	replies, refusals := map[netip.Addr]model.FarEnd{}, map[netip.Addr][]model.FarEnd{}
	for _, of := range ends {
		replies[of.To], refusals[of.Remote] = of, append(refusals[of.Remote], of)
	}
	var b [2048]byte
	return repeat(ctx, s.fd, ends, found, func(_ int, of model.FarEnd) error {
		to, _ := ping.Sockaddr(netip.AddrPortFrom(of.Remote, port))
		err := unix.Sendto(s.fd, packet(of), 0, to)
		if err != nil { // it may be that of an earlier packet
			err = unix.Sendto(s.fd, packet(of), 0, to)
		}
		return err
	}, func() {
		for {
			n, _, err := unix.Recvfrom(s.fd, b[:], 0)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil || n == 0 {
				continue // read below
			}
			if of, ok := replies[ping.Reply(inside(b[:n]))]; ok {
				found[of] = Trial{Came: Answers}
			}
		}
		for {
			r, ok := ping.NextRefusal(s.fd, b[:])
			if !ok {
				return
			}
			now := Trial{Came: Arrives} // the other node says that it has no such port or protocol
			switch r.Err {
			case unix.ECONNREFUSED, unix.ENOPROTOOPT:
			case 0, unix.EMSGSIZE:
				continue
			default:
				now = Trial{Err: r.Err}
			}
			for _, of := range refusals[r.To.Addr()] {
				if found[of].Came == Silent {
					found[of] = now
				}
			}
		}
	})
}

// repeat sends to whoever is silent, and takes what comes.
func repeat(ctx context.Context, fd int, ends []model.FarEnd, found map[model.FarEnd]Trial, send func(int, model.FarEnd) error, take func()) error {
	for _, of := range ends {
		found[of] = Trial{}
	}
	for range attempts {
		waiting := false
		for i, of := range ends {
			if found[of].Came == Silent {
				waiting = true
				if err := send(i, of); err != nil {
					found[of] = Trial{Err: err}
				}
			}
		}
		for until := time.Now().Add(patience); waiting && ctx.Err() == nil; {
			left := time.Until(until)
			if left <= 0 {
				break
			}
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			take()
			waiting = false
			for _, of := range ends {
				waiting = waiting || found[of].Came == Silent
			}
		}
	}
	return ctx.Err()
}
