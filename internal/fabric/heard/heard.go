// Package heard finds out whether packets to pods of other nodes get there, and answers back: a
// firewall between nodes that drops what a tunnel is made of says nothing to anybody.
//
// It asks the far end of each way by ICMP echo, which travels as packets to pods there do, and
// which the other node's kernel answers, whatever runs there. A node asks each other one every 10
// seconds, and 100 a second at most.
package heard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/ping"
	"sluice.dev/sluice/internal/model"
)

const (
	tick  = time.Second // an answer that takes longer is none
	turns = 10          // ticks until the same far end is asked again, unless it does not answer
	most  = 100         // that are asked in a tick
)

// Prober asks. Its methods are safe for concurrent use.
type Prober struct {
	node    string
	deaf    string     // why nobody can be asked
	sockets [2]*socket // of IPv4 and IPv6; nil: the node has none
	tick    time.Duration

	mu      sync.Mutex
	ends    map[model.FarEnd]*end
	remotes map[netip.Addr]*outcome // of asking the nodes whose tunnels do not answer, by their own addresses
	down    map[string]string       // interfaces on the way to those, and why they carry nothing if they do not
}

// end is what is known of a far end.
type end struct {
	model.Heard
	asked bool // and there is no answer yet
	rest  int  // ticks until it is asked
	outcome
}

// outcome is what came of a question. It holds until one later than the next: an answer to ARP is
// waited for longer than a tick.
type outcome struct {
	err            error // what the kernel, or the network, says in place of an answer
	answers, fresh bool
}

func (o *outcome) set(err error) { *o = outcome{err, err == nil, true} }

// ask begins another question, which err, if not nil, kept from being sent.
func (o *outcome) ask(err error) {
	if !o.fresh {
		*o = outcome{}
	}
	if o.fresh = false; err != nil {
		o.set(err)
	}
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
// CAP_NET_RAW), nothing is heard, and log and Deaf say so.
func Open(node string, log *slog.Logger) *Prober {
	p := &Prober{node: node, tick: tick, ends: map[model.FarEnd]*end{}, remotes: map[netip.Addr]*outcome{}}
	for i, is4 := range []bool{true, false} {
		s, err := open(is4)
		switch {
		case err == nil:
			p.sockets[i] = s
		case !errors.Is(err, unix.EAFNOSUPPORT):
			const mend = "set net.ipv4.ping_group_range, or give the agent CAP_NET_RAW"
			log.Warn("nobody asks other nodes whether they are heard: "+mend, "error", err)
			p.deaf = fmt.Sprintf("other nodes are not asked whether they are heard: %v: %s", err, mend)
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

// Deaf says why nobody can be asked, and what to do; "": they can.
func (p *Prober) Deaf() string { return p.deaf }

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
			switch e, r := p.ends[of], p.remotes[a.To]; {
			case waits && a.To == of.To.WithZone("") && e != nil:
				if e.set(a.Err); e.answers {
					e.asked, e.Heard = false, model.Heard{Last: time.Now()}
				}
			case r != nil:
				r.set(a.Err)
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
	remotes := map[netip.Addr]*outcome{}
	for _, of := range due[:min(len(due), most)] {
		e := now[of]
		e.rest, e.asked = turns-1, true
		s := p.socket(of.To)
		s.number++
		s.waiting[s.number] = of
		e.ask(s.Send(s.number, of.To))
		if own := p.socket(of.Remote); e.Missed > 0 && of.Carrier != (model.Carrier{}) && own != nil && remotes[of.Remote] == nil {
			r := cmp.Or(p.remotes[of.Remote], &outcome{})
			own.number++
			r.ask(own.Send(own.number, of.Remote))
			remotes[of.Remote] = r
		}
	}
	p.down = map[string]string{}
	for of, e := range now {
		if e.Missed == 0 || of.Carrier == (model.Carrier{}) {
			continue
		}
		if r := p.remotes[of.Remote]; r != nil && remotes[of.Remote] == nil {
			remotes[of.Remote] = r
		}
		for _, device := range []string{of.Device, of.Uplink} {
			if _, known := p.down[device]; !known && device != "" {
				p.down[device] = p.socket(of.To).down(device)
			}
		}
	}
	p.remotes = remotes
}

// down says why an interface carries nothing; "": it does.
func (s *socket) down(device string) string {
	f, err := unix.NewIfreq(device)
	if err == nil {
		err = unix.IoctlIfreq(s.FD(), unix.SIOCGIFFLAGS, f)
	}
	switch {
	case errors.Is(err, unix.ENODEV):
		return "there is no interface " + device
	case err != nil: // it cannot be told
	case f.Uint16()&unix.IFF_UP == 0:
		return device + " is down"
	case f.Uint16()&unix.IFF_RUNNING == 0:
		return device + " has no carrier"
	}
	return ""
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
			h := e.Heard
			h.Why, _ = p.why(of, e)
			heard[of] = h
		}
	}
	return heard
}

// why says why a far end is silent, and whether that lies with this node; "": packets leave it, and
// nothing comes back.
func (p *Prober) why(of model.FarEnd, e *end) (text string, here bool) {
	if !e.Silent() {
		return "", false
	}
	if text = cmp.Or(p.down[of.Device], p.down[of.Uplink]); text != "" {
		return text, true
	}
	err := e.err
	if r := p.remotes[of.Remote]; r != nil && err == nil {
		switch err = r.err; {
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ECONNREFUSED): // as for echoes alone
			err = nil
		}
	}
	if err == nil {
		return "", false
	}
	return Cause(err, of.Remote.Is4())
}

// Cause says in words what a kernel's error to a packet means, and whether it lies with this node.
func Cause(err error, is4 bool) (text string, here bool) {
	asks, family := "ARP", "ipv4"
	if !is4 {
		asks, family = "NDP", "ipv6"
	}
	full := "its table of neighbours is likely to be full: raise the sysctl net." + family + ".neigh.default.gc_thresh3"
	switch {
	case errors.Is(err, unix.EHOSTUNREACH):
		return fmt.Sprintf("%v: its address, or the router before it, does not answer %s, or a router says so", unix.EHOSTUNREACH, asks), false
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EACCES):
		return fmt.Sprintf("a firewall rejects what is sent there: %v", err), false
	case errors.Is(err, unix.ENETUNREACH):
		return "this node has no route there", true
	case errors.Is(err, unix.EPERM):
		return fmt.Sprintf("a rule of this node drops what is sent there: %v", err), true
	case errors.Is(err, unix.ENOBUFS):
		return fmt.Sprintf("this node's kernel cannot send: %v: %s", err, full), true
	case errors.Is(err, unix.EINVAL) && is4:
		return "this node has a blackhole route there", true
	case errors.Is(err, unix.EINVAL): // of IPv6 it means both
		return "this node's kernel cannot send: it has a blackhole route there, or " + full, true
	}
	return fmt.Sprintf("this node's kernel says: %v", err), true
}

// Issues names the nodes at whose end of a tunnel nobody answers. If that is so of all nodes, or
// lies with this one, it is one fault of this node.
func (p *Prober) Issues() (list []model.Issue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	type tunnel struct{ device, carrier string }
	type fault struct {
		tunnel
		why  string
		here bool
	}
	all, silent := map[tunnel]int{}, map[fault][]model.FarEnd{}
	for of, e := range p.ends {
		if t := (tunnel{of.Device, of.Carrier.String()}); of.Carrier != (model.Carrier{}) && p.socket(of.To) != nil {
			if all[t]++; e.Silent() {
				why, here := p.why(of, e)
				f := fault{t, why, here}
				silent[f] = append(silent[f], of)
			}
		}
	}
	add := func(node, format string, args ...any) {
		list = append(list, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: node}}.Issue(fmt.Sprintf(format, args...)))
	}
	for f, ends := range silent {
		if everybody := len(ends) == all[f.tunnel] && len(ends) > 1; everybody || f.here {
			add(p.node, "%s heard through %s: %s", others(ends, everybody), f.device, cmp.Or(f.why, "have firewalls let "+f.carrier+" pass, in both directions"))
			continue
		}
		for _, of := range ends {
			if f.why != "" {
				add(of.Node, "it is not heard through %s, at %s: %s", f.device, of.Remote, f.why)
				continue
			}
			alive := "and neither does " + of.Remote.String() + ": if the node is up,"
			if r := p.remotes[of.Remote]; r != nil && r.answers {
				alive = "though " + of.Remote.String() + " does: if its agent runs,"
			}
			add(of.Node, "it is not heard through %s: its tunnel's address %s does not answer ICMP echo, %s have firewalls let %s pass between this node and %s, in both directions",
				f.device, of.To, alive, f.carrier, of.Remote)
		}
	}
	slices.SortFunc(list, model.Issue.Compare)
	return list
}

// others is "none of 3 other nodes is", or "nodes a, b are not".
func others(ends []model.FarEnd, everybody bool) string {
	if everybody {
		return fmt.Sprintf("none of %d other nodes is", len(ends))
	}
	names := make([]string, len(ends))
	for i, of := range ends {
		names[i] = of.Node
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 1 {
		return "node " + names[0] + " is not"
	}
	const few = 3
	return "nodes " + model.FirstFew(names, few) + " are not"
}
