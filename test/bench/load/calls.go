package load

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/cpuaffinity"
	"sluice.dev/sluice/test/netns"
)

// Calls measures what calls of the kernel cost a program that asks a service. Client and server are
// one thread, so the packets between them are all that happens beside the calls.
type Calls struct {
	Client  *netns.NS
	Backend *netns.NS // where a server listens on Port of every address
	Port    uint16
	CPU     int
}

// calls is one run of Calls, in its thread.
type calls struct {
	tcp, udp int // of the server
	to       unix.Sockaddr
	client   int
	server   int
	byte     []byte
}

// The kinds of calls that are measured.
const (
	Connect  = "connect, close"
	Exchange = "request, response"
	Datagram = "socket, connect, request, response, close, of UDP"
)

// Run makes calls of a kind, in turns to each of the addresses, so many turns of so many calls, and
// returns the CPU time that one call took in each turn, by address.
func (c Calls) Run(kind string, to []netip.AddrPort, turns, count int) (took [][]time.Duration, err error) {
	tcp, err := listen(c.Backend, c.Port)
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", c.Backend.Name, err)
	}
	defer unix.Close(tcp)
	if err := unix.SetNonblock(tcp, false); err != nil {
		return nil, err
	}
	udp := -1
	err = c.Backend.Do(func() (err error) {
		if udp, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		// The answer comes from the address that was asked: all of a network are the server's.
		return errors.Join(unix.SetsockoptInt(udp, unix.IPPROTO_IP, unix.IP_PKTINFO, 1), unix.Bind(udp, &unix.SockaddrInet4{Port: int(c.Port)}))
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(udp)
	var all []*calls
	for _, at := range to {
		all = append(all, &calls{tcp: tcp, udp: udp, to: &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}, byte: make([]byte, 1)})
	}
	defer quietRuntime()()
	err = c.Client.Do(func() error {
		if err := cpuaffinity.BindThread(c.CPU); err != nil {
			return err
		}
		took, err = inTurns(kind, all, turns, count)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s from %s to %s: %w", kind, c.Client.Name, to, err)
	}
	return took, nil
}

func inTurns(kind string, all []*calls, turns, count int) ([][]time.Duration, error) {
	took := make([][]time.Duration, len(all))
	for _, r := range all {
		if kind == Exchange {
			if err := r.connect(); err != nil {
				return nil, err
			}
			defer r.close()
		}
	}
	for turn := range turns + 1 {
		for i, r := range all {
			call := map[string]func() error{Connect: r.connectClose, Exchange: r.exchange, Datagram: r.datagram}[kind]
			began := threadCPU()
			for range count {
				if err := call(); err != nil {
					return nil, err
				}
			}
			if turn > 0 { // the first one warms up
				took[i] = append(took[i], (threadCPU()-began)/time.Duration(count))
			}
		}
	}
	return took, nil
}

func (r *calls) connect() (err error) {
	if r.client, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	// A reset in place of a close by both leaves no connection that keeps its port.
	if err := unix.SetsockoptLinger(r.client, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return errors.Join(err, unix.Close(r.client))
	}
	if err := unix.Connect(r.client, r.to); err != nil {
		return errors.Join(err, unix.Close(r.client))
	}
	if r.server, _, err = unix.Accept4(r.tcp, unix.SOCK_CLOEXEC); err != nil {
		return errors.Join(err, unix.Close(r.client))
	}
	return nil
}

func (r *calls) close() { _, _ = unix.Close(r.client), unix.Close(r.server) }

func (r *calls) connectClose() error {
	if err := r.connect(); err != nil {
		return err
	}
	r.close()
	return nil
}

func (r *calls) exchange() error {
	for _, way := range [][2]int{{r.client, r.server}, {r.server, r.client}} {
		if _, err := unix.Write(way[0], r.byte); err != nil {
			return err
		}
		if _, err := unix.Read(way[1], r.byte); err != nil {
			return err
		}
	}
	return nil
}

func (r *calls) datagram() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if err := unix.Connect(s, r.to); err != nil {
		return err
	}
	if _, err := unix.Write(s, r.byte); err != nil {
		return err
	}
	control := make([]byte, unix.CmsgSpace(unix.SizeofInet4Pktinfo))
	n, controls, _, from, err := unix.Recvmsg(r.udp, r.byte, control, 0)
	if err != nil {
		return err
	}
	// Its control data says at which address it came: the answer leaves from there.
	if err := unix.Sendmsg(r.udp, r.byte[:n], control[:controls], from, 0); err != nil {
		return err
	}
	_, err = unix.Read(s, r.byte)
	return err
}
