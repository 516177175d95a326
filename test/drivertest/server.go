package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"

	"sluice.dev/sluice/internal/model"
)

// isBarred is the first byte of a datagram that must not arrive.
const isBarred = 1

// arrivals counts what reaches any server, whether or not its answer comes back: connections, and
// datagrams that must not. Others may be late, as they are sent again if the answer is.
type arrivals struct{ atomic.Int64 }

// A server answers on one address, port and transport of a host. Its answer contains that address
// and the client address that it saw, which shows the fate of a packet.
type server struct {
	close func() error
}

// An answer is a server's report of a connection.
type answer struct {
	server, client netip.AddrPort
}

// String is the answer on the wire: one line.
func (a answer) String() string { return a.server.String() + " " + a.client.String() + "\n" }

func parseAnswer(line string) (a answer, err error) {
	s, c, _ := strings.Cut(strings.TrimSpace(line), " ")
	if a.server, err = netip.ParseAddrPort(s); err == nil {
		a.client, err = netip.ParseAddrPort(c)
	}
	if err != nil {
		return a, fmt.Errorf("read the answer %q: %w", line, err)
	}
	return a, nil
}

// serve makes sure that the host listens at addr until the topology is removed.
func (h *host) serve(proto model.Protocol, addr netip.AddrPort) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := proto.String() + addr.String()
	if proto == model.SCTP {
		key = proto.String() + netip.AddrPortFrom(addr.Addr(), 0).String()
	}
	if h.servers[key] != nil {
		return nil
	}
	listen := map[model.Protocol]func(netip.AddrPort, *arrivals) (*server, error){
		model.TCP: listenTCP, model.UDP: listenUDP, model.SCTP: listenSCTP,
	}[proto]
	return h.ns.Do(func() error {
		s, err := listen(addr, h.arrivals)
		if err != nil {
			return fmt.Errorf("serve %v %v on %s: %w", proto, addr, h.name, err)
		}
		h.servers[key] = s
		return nil
	})
}

func (h *host) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.servers {
		_ = s.close()
	}
}

// listenTCP greets each connection with the answer and then echoes what it receives.
func listenTCP(addr netip.AddrPort, seen *arrivals) (*server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			seen.Add(1)
			go greet(c)
		}
	}()
	return &server{l.Close}, nil
}

func greet(c net.Conn) {
	defer c.Close()
	a := answer{c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()}
	if _, err := io.WriteString(c, unmapped(a).String()); err == nil {
		_, _ = io.Copy(c, c)
	}
}

// listenUDP answers each datagram, padded with its own content to its own length.
func listenUDP(addr netip.AddrPort, seen *arrivals) (*server, error) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, err
	}
	go func() {
		buf := make([]byte, 65536)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // an ICMP error for an earlier answer
			}
			if buf[0] == isBarred {
				seen.Add(1)
			}
			line := unmapped(answer{addr, from}).String()
			reply := append([]byte(line), buf[min(len(line), n):n]...)
			_, _ = c.WriteToUDPAddrPort(reply, from)
		}
	}()
	return &server{c.Close}, nil
}

func unmapped(a answer) answer {
	strip := func(p netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(p.Addr().Unmap(), p.Port()) }
	return answer{strip(a.server), strip(a.client)}
}
