// Package heartbeat tells which nodes of a set are alive: each sends each other one a small UDP
// packet a few times a second, from its node address to that of the other.
//
// A node is silent once nothing came from it for SilentAfter. Only packets from the node's own
// addresses count. They are not signed: whoever can send with a node's address can have it count as
// alive.
package heartbeat

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/internal/lib/wake"
)

// Port is the UDP port of all nodes.
const Port = 8383

// A node sends every Interval, and counts as silent when nothing came from it for SilentAfter.
const (
	Interval    = 300 * time.Millisecond
	SilentAfter = 1800 * time.Millisecond
)

// stoodStill is a pause of this node after which it cannot tell whether the others were silent.
const stoodStill = SilentAfter - 2*Interval

// A packet is magic, a byte that says whether the sender hears the receiver, and the sender's name.
const (
	magic   = "sluice1"
	maxSize = len(magic) + 1 + 253
)

// Heartbeat is a node's part. Make it with New, and run it once.
type Heartbeat struct {
	node   string
	log    *slog.Logger
	silent chan map[string]bool
	wake   wake.Signal // set when the peers change
	listen func(netip.AddrPort) (socket, error)

	mu    sync.Mutex
	own   []netip.Addr
	peers map[string]*peer

	// Of Run alone.
	sockets map[netip.Addr]socket
	told    map[string]bool
	failing map[netip.Addr]bool
}

// socket is what Heartbeat needs of a *net.UDPConn.
type socket interface {
	ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error)
	WriteToUDPAddrPort([]byte, netip.AddrPort) (int, error)
	Close() error
}

func listenUDP(at netip.AddrPort) (socket, error) {
	s, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	return s, nil
}

// peer is another node.
type peer struct {
	addrs []netip.Addr
	last  time.Time // when something came from it; zero: never
	hears bool      // it said then that it hears this node
}

// New returns the part of a node of that name. It knows no others yet.
func New(node string, log *slog.Logger) *Heartbeat {
	return &Heartbeat{
		node: node, log: log, silent: make(chan map[string]bool, 1), wake: wake.New(), peers: map[string]*peer{},
		listen:  listenUDP,
		sockets: map[netip.Addr]socket{}, failing: map[netip.Addr]bool{},
	}
}

// Silent delivers which nodes are silent after each change; the own one, if others are heard and
// none of them hears it. Those that are heard, and do not hear this one, are there with false.
func (h *Heartbeat) Silent() <-chan map[string]bool { return h.silent }

// SetPeers says which nodes there are, with their addresses, the own one among them. The first
// nodes that it is told of count as alive until they had time to be heard. One that comes later
// counts once it is heard. It returns at once, and is safe for concurrent use.
func (h *Heartbeat) SetPeers(nodes map[string][]netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var since time.Time
	if len(h.peers) == 0 {
		since = time.Now()
	}
	now := map[string]*peer{}
	h.own = nil
	for name, addrs := range nodes {
		switch p := h.peers[name]; {
		case name == h.node:
			h.own = addrs
		case p != nil:
			now[name] = &peer{addrs, p.last, p.hears}
		default:
			now[name] = &peer{addrs, since, !since.IsZero()}
		}
	}
	h.peers = now
	h.wake.Set()
}

// Run sends and listens until ctx ends.
func (h *Heartbeat) Run(ctx context.Context) {
	var reading sync.WaitGroup
	defer reading.Wait()
	defer func() {
		for _, s := range h.sockets {
			_ = s.Close()
		}
	}()
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	check := time.NewTicker(Interval / 3)
	defer check.Stop()
	for last := time.Now(); ; {
		beat := true
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		case <-tick.C:
		case <-check.C:
			beat = false
		}
		if beat {
			h.bind(&reading)
		}
		// What came meanwhile is read first, or else all others seem silent, and are told so.
		if time.Since(last) > stoodStill && !wake.Sleep(ctx, Interval+Interval/3) {
			return
		}
		last = time.Now()
		if beat {
			h.send()
		}
		if h.tell() { // and the others at once: who is silent yields to those that take over
			h.send()
		}
	}
}

// bind listens on the node's own addresses, and no longer on others.
func (h *Heartbeat) bind(reading *sync.WaitGroup) {
	h.mu.Lock()
	own := h.own
	h.mu.Unlock()
	for addr, s := range h.sockets {
		if !slices.Contains(own, addr) {
			_ = s.Close()
			delete(h.sockets, addr)
		}
	}
	for _, addr := range own {
		if h.sockets[addr] != nil {
			continue
		}
		s, err := h.listen(netip.AddrPortFrom(addr, Port))
		if err != nil {
			if !h.failing[addr] {
				h.log.Warn("other nodes cannot hear that this one is alive; trying again", "error", err)
			}
			h.failing[addr] = true
			continue
		}
		delete(h.failing, addr)
		h.sockets[addr] = s
		reading.Go(func() { h.read(s) })
	}
}

// read takes what comes to one address until its socket is closed.
func (h *Heartbeat) read(s socket) {
	b := make([]byte, maxSize+1)
	for {
		n, from, err := s.ReadFromUDPAddrPort(b)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(Interval / 10) // an ICMP error of an earlier packet, most likely
			continue
		}
		h.take(b[:n], from.Addr().Unmap(), time.Now())
	}
}

// take notes a packet.
func (h *Heartbeat) take(packet []byte, from netip.Addr, now time.Time) {
	if len(packet) <= len(magic)+1 || len(packet) > maxSize || string(packet[:len(magic)]) != magic {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[string(packet[len(magic)+1:])]
	if p == nil || !slices.Contains(p.addrs, from) {
		return
	}
	p.last, p.hears = now, packet[len(magic)] == 1
}

// send sends to all others, each at its first address of the family of the first address by which
// that can be done. What cannot be sent now is sent the next time.
func (h *Heartbeat) send() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for _, p := range h.peers {
		packet := append([]byte(magic), 0)
		if alive(p, now) {
			packet[len(magic)] = 1
		}
		packet = append(packet, h.node...)
		for _, addr := range h.own {
			i := slices.IndexFunc(p.addrs, func(a netip.Addr) bool { return a.Is4() == addr.Is4() })
			if s := h.sockets[addr]; i >= 0 && s != nil {
				if _, err := s.WriteToUDPAddrPort(packet, netip.AddrPortFrom(p.addrs[i], Port)); err == nil {
					break
				}
			}
		}
	}
}

func alive(p *peer, now time.Time) bool { return !p.last.IsZero() && now.Sub(p.last) < SilentAfter }

// tell delivers which nodes are silent, if that has changed, and reports whether it has.
func (h *Heartbeat) tell() (changed bool) {
	h.mu.Lock()
	silent := h.silentAt(time.Now())
	h.mu.Unlock()
	if h.told != nil && maps.Equal(silent, h.told) {
		return false
	}
	for name, is := range silent {
		if is && !h.told[name] {
			h.log.Info("a node is not heard from: its addresses go to others", "node", name)
		}
	}
	for name, was := range h.told {
		if was && !silent[name] {
			h.log.Info("a node is heard from", "node", name)
		}
	}
	h.told = silent
	select {
	case <-h.silent: // nobody has taken it
	default:
	}
	h.silent <- maps.Clone(silent)
	return true
}

func (h *Heartbeat) silentAt(now time.Time) map[string]bool {
	silent, deaf, heard := map[string]bool{}, false, false
	for name, p := range h.peers {
		switch {
		case !alive(p, now):
			silent[name] = true
		case !p.hears:
			silent[name], deaf = false, true
		default:
			heard = true
		}
	}
	if deaf && !heard {
		silent[h.node] = true
	}
	return silent
}

// Counts returns how many other nodes there are, and how many of them are silent. It is safe for
// concurrent use.
func (h *Heartbeat) Counts() (peers, silent int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for _, p := range h.peers {
		if !alive(p, now) {
			silent++
		}
	}
	return len(h.peers), silent
}
