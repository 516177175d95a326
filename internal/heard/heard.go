// Package heard finds out whether packets to pods of other nodes get there, and answers back: a
// firewall between nodes that drops what a tunnel is made of says nothing to anybody.
//
// It asks the far end of each way by ICMP echo, which travels as packets to pods there do, and
// which the other node's kernel answers, whatever runs there. A node asks each other one every 10
// seconds, and 100 a second at most.
package heard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/ping"
)

const (
	tick  = time.Second // an answer that takes longer is none
	turns = 10          // ticks until the same far end is asked again, unless it does not answer
	most  = 100         // that are asked in a tick
)

// Prober asks. Its methods are safe for concurrent use.
type Prober struct {
	node    string
	sockets [2]*socket // of IPv4 and IPv6; nil: the node has none
	tick    time.Duration

	mu   sync.Mutex
	ends map[model.FarEnd]*end
}

// end is what is known of a far end.
type end struct {
	model.Heard
	asked bool  // and there is no answer yet
	err   error // why it could not be asked when that was last tried
	rest  int   // ticks until it is asked
}

// socket is for one family.
type socket struct {
	*ping.Socket
	file    *os.File // its descriptor's, too
	raw     syscall.RawConn
	number  uint16
	waiting map[uint16]model.FarEnd
}

// Open opens the prober's sockets in the calling thread's network namespace, for the node of a
// name. Where the kernel lets nobody ask (the sysctl net.ipv4.ping_group_range, and no
// CAP_NET_RAW), nothing is heard, and log says so.
func Open(node string, log *slog.Logger) *Prober {
	p := &Prober{node: node, tick: tick, ends: map[model.FarEnd]*end{}}
	for i, is4 := range []bool{true, false} {
		s, err := open(is4)
		switch {
		case err == nil:
			p.sockets[i] = s
		case !errors.Is(err, unix.EAFNOSUPPORT):
			log.Warn("nobody asks other nodes whether they are heard: set net.ipv4.ping_group_range, or give the agent CAP_NET_RAW", "error", err)
			p.Close()
			p.sockets = [2]*socket{}
			return p
		}
	}
	return p
}

func open(is4 bool) (*socket, error) {
	s, err := ping.Open(is4)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(s.FD()), "ICMP socket")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &socket{Socket: s, file: file, raw: raw, waiting: map[uint16]model.FarEnd{}}, nil
}

// Close releases the sockets; a Run that has not ended hears nothing more.
func (p *Prober) Close() {
	for _, s := range p.sockets {
		if s != nil {
			_ = s.file.Close()
		}
	}
}

// Run asks the far ends that there are until ctx ends, once at most.
func (p *Prober) Run(ctx context.Context, ends func() []model.FarEnd) {
	if p.sockets == ([2]*socket{}) {
		return // nobody can be asked
	}
	var listening sync.WaitGroup
	for _, s := range p.sockets {
		if s != nil {
			listening.Go(func() { p.listen(s) })
		}
	}
	every := time.NewTicker(p.tick)
	defer every.Stop()
	for ctx.Err() == nil {
		p.ask(ends())
		select {
		case <-ctx.Done():
		case <-every.C:
		}
	}
	p.Close()
	listening.Wait()
}

// listen takes answers until the socket is closed.
func (p *Prober) listen(s *socket) {
	_ = s.raw.Read(func(uintptr) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for a, ok := s.Next(); ok; a, ok = s.Next() {
			of, waits := s.waiting[a.Number]
			if e := p.ends[of]; waits && a.Err == nil && a.To == of.To.WithZone("") && e != nil {
				e.asked, e.Heard = false, model.Heard{Last: time.Now()}
			}
		}
		return false
	})
}

// ask forgets far ends that there are no more, counts those that have not answered, and asks whose
// turn it is.
func (p *Prober) ask(ends []model.FarEnd) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sockets {
		if s != nil {
			clear(s.waiting)
		}
	}
	now := make(map[model.FarEnd]*end, len(ends))
	var due []model.FarEnd
	for _, of := range ends {
		e := p.ends[of]
		if e == nil {
			e = &end{}
		}
		if now[of] = e; p.socket(of.To) == nil {
			continue
		}
		if e.asked {
			if e.asked, e.Missed = false, e.Missed+1; !e.Silent() {
				e.rest = 0
			}
		}
		if e.rest--; e.rest < 0 {
			due = append(due, of)
		}
	}
	p.ends = now
	slices.SortStableFunc(due, func(a, b model.FarEnd) int { return now[a].rest - now[b].rest }) // who has waited longest
	for _, of := range due[:min(len(due), most)] {
		now[of].rest, now[of].asked = turns-1, true
		s := p.socket(of.To)
		s.number++
		if now[of].err = s.Send(s.number, of.To); now[of].err == nil {
			s.waiting[s.number] = of
		}
	}
}

func (p *Prober) socket(to netip.Addr) *socket {
	if to.Is4() {
		return p.sockets[0]
	}
	return p.sockets[1]
}

// Heard returns what was heard of each far end that was asked.
func (p *Prober) Heard() map[model.FarEnd]model.Heard {
	p.mu.Lock()
	defer p.mu.Unlock()
	heard := make(map[model.FarEnd]model.Heard, len(p.ends))
	for of, e := range p.ends {
		if e.Missed > 0 || !e.Last.IsZero() {
			heard[of] = e.Heard
		}
	}
	return heard
}

// Issues names the nodes at whose end of a tunnel nobody answers. If that is so of all nodes, it is
// one fault of this node.
func (p *Prober) Issues() (list []model.Issue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	type tunnel struct{ device, carrier string }
	all, silent := map[tunnel]int{}, map[tunnel][]model.FarEnd{}
	for of, e := range p.ends {
		if t := (tunnel{of.Device, of.Carrier}); of.Carrier != "" && p.socket(of.To) != nil {
			if all[t]++; e.Silent() {
				silent[t] = append(silent[t], of)
			}
		}
	}
	fault := func(node, format string, args ...any) {
		list = append(list, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: node}}.Issue(fmt.Sprintf(format, args...)))
	}
	for t, ends := range silent {
		unsent := slices.DeleteFunc(slices.Clone(ends), func(of model.FarEnd) bool { return p.ends[of].err == nil })
		ends = slices.DeleteFunc(ends, func(of model.FarEnd) bool { return p.ends[of].err != nil })
		if len(unsent) > 0 {
			slices.SortFunc(unsent, func(a, b model.FarEnd) int { return strings.Compare(a.Node, b.Node) }) // the same fault each time
			fault(p.node, "%s cannot be asked through %s whether they are heard: this node's own kernel says: %v", model.Count(len(unsent), "other node"), t.device, p.ends[unsent[0]].err)
		}
		if len(ends) == all[t] && len(ends) > 1 {
			fault(p.node, "none of %d other nodes is heard through %s: have firewalls let %s pass, in both directions", len(ends), t.device, t.carrier)
			continue
		}
		for _, of := range ends {
			fault(of.Node, "it is not heard through %s: its tunnel's address %s does not answer ICMP echo; if the node is up, have firewalls let %s pass between this node and %s, in both directions",
				t.device, of.To, t.carrier, of.Remote)
		}
	}
	slices.SortFunc(list, model.Issue.Compare)
	return list
}
