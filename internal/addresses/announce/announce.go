// Package announce answers for addresses that no interface has: whoever asks by ARP or NDP where
// such an address is gets the MAC of the interface that the question came by. When it begins to
// answer for one, it also says so to all neighbours, some times.
//
// It changes nothing in the kernel but memberships in multicast groups, which end with its sockets.
package announce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/lib/wake"
)

// repeats are the times at which neighbours are told of an address, since this node began to answer
// for it. Frames get lost, and a machine that has just learnt another MAC may not learn a new one
// at once.
var repeats = []time.Duration{0, time.Second, 3 * time.Second}

// spacing is the least time between two announcements of an address, however fast it comes and
// goes.
const spacing = time.Second

// Responder answers in the network namespace of the thread that opened it. Make it with Open, and
// run it once.
type Responder struct {
	log      *slog.Logger
	segments <-chan []link.Segment
	arp, ndp *socket
	groups   *groups
	wake     wake.Signal // set when addresses change

	mu      sync.Mutex
	on      map[int]link.Segment // nil: they are not known yet
	answers map[netip.Addr]*answer
	said    map[netip.Addr]time.Time // when neighbours were told of an address, within spacing
	counts  Counts

	failing string // what failed last; of Run alone
}

// answer is an address that this node answers for.
type answer struct {
	interfaces []string
	begun      time.Time
	told       int // how often neighbours were told
}

// Counts are what a Responder has done.
type Counts struct {
	Addresses int    // that it answers for now
	Answers   uint64 // sent
	Unasked   uint64 // frames that told all neighbours
}

// Open opens the sockets. Segments are the interfaces to answer on, as they are after each change.
func Open(segments <-chan []link.Segment, log *slog.Logger) (*Responder, error) {
	r := &Responder{log: log, segments: segments, wake: wake.New(), answers: map[netip.Addr]*answer{}, said: map[netip.Addr]time.Time{}}
	var err error
	if r.arp, err = openSocket(typeARP, onlyRequests); err != nil {
		return nil, err
	}
	if r.ndp, err = openSocket(typeIPv6, onlySolicitations); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if r.groups, err = openGroups(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close releases the sockets.
func (r *Responder) Close() (err error) {
	for _, s := range []*socket{r.arp, r.ndp} {
		if s != nil {
			err = errors.Join(err, s.file.Close())
		}
	}
	if r.groups != nil {
		r.groups.close()
	}
	return err
}

// Answer has it answer for an address on the interfaces of these names; none: on all that have a
// subnet of its family. It returns at once, and is safe for concurrent use.
func (r *Responder) Answer(a netip.Addr, interfaces []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[a] = &answer{interfaces: interfaces, begun: time.Now()}
	r.wake.Set()
}

// Stop has it no longer answer for an address. It is safe for concurrent use.
func (r *Responder) Stop(a netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.answers, a)
	r.wake.Set()
}

// Answered returns the addresses that it is to answer for, with the interfaces on which it does,
// sorted; nothing until it knows the interfaces. It is safe for concurrent use.
func (r *Responder) Answered() map[netip.Addr][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on == nil {
		return nil
	}
	all := make(map[netip.Addr][]string, len(r.answers))
	for addr, a := range r.answers {
		names := []string(nil)
		for _, s := range r.on {
			if a.holds(addr, s) {
				names = append(names, s.Name)
			}
		}
		slices.Sort(names)
		all[addr] = names
	}
	return all
}

// Counts is safe for concurrent use.
func (r *Responder) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counts
	c.Addresses = len(r.answers)
	return c
}

// Run answers until ctx ends.
func (r *Responder) Run(ctx context.Context) {
	var reading sync.WaitGroup
	for s, read := range map[*socket]func([]byte) (question, bool){r.arp: readARP, r.ndp: readSolicitation} {
		reading.Go(func() { r.listen(s, read) })
	}
	defer reading.Wait()
	defer func() { _ = r.Close() }()
	for {
		next := r.tell(time.Now())
		select {
		case <-ctx.Done():
			return
		case segments, ok := <-r.segments:
			if !ok {
				r.segments = nil
			} else {
				r.move(segments)
			}
		case <-r.wake:
			r.follow()
		case <-time.After(next):
		}
	}
}

// listen answers the questions that come by a socket, until that is closed.
func (r *Responder) listen(s *socket, read func([]byte) (question, bool)) {
	b := make([]byte, 1024)
	for {
		n, index, err := s.receive(b)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		q, ok := read(b[:n])
		if err != nil || !ok {
			continue // an interface that went down, or no question
		}
		r.mu.Lock()
		seg, known := r.on[index]
		a := r.answers[q.target]
		if ok = known && a != nil && a.holds(q.target, seg) && q.mac != seg.MAC; ok {
			r.counts.Answers++
		}
		r.mu.Unlock()
		if ok {
			_ = s.send(q.answer(seg.MAC), index) // who asked asks again
		}
	}
}

// holds reports whether an address is answered for on a segment.
func (a *answer) holds(addr netip.Addr, s link.Segment) bool {
	if len(a.interfaces) > 0 {
		return slices.Contains(a.interfaces, s.Name)
	}
	return addr.Is4() && s.IPv4 || addr.Is6() && s.IPv6
}

// move takes over the interfaces. If one is new or has another MAC, neighbours are told of all
// addresses again.
func (r *Responder) move(segments []link.Segment) {
	r.mu.Lock()
	now, news := map[int]link.Segment{}, false
	for _, s := range segments {
		now[s.Index] = s
		news = news || r.on[s.Index] != s
	}
	r.on = now
	if news {
		for _, a := range r.answers {
			a.begun, a.told = time.Now(), 0
		}
	}
	r.mu.Unlock()
	r.follow()
}

// follow has the sockets receive the questions for the present addresses.
func (r *Responder) follow() {
	want := map[membership]bool{}
	var four, six bool
	r.mu.Lock()
	for addr, a := range r.answers {
		four, six = four || addr.Is4(), six || addr.Is6()
		for index, s := range r.on {
			if addr.Is6() && a.holds(addr, s) {
				want[membership{index, solicitedNode(addr)}] = true
			}
		}
	}
	r.mu.Unlock()
	err := r.groups.set(want)
	if four {
		err = errors.Join(err, r.arp.listen())
	}
	if six {
		err = errors.Join(err, r.ndp.listen())
	}
	text := fmt.Sprint(err)
	if err != nil && text != r.failing {
		r.log.Warn("not all addresses of Services are answered for", "error", err)
	}
	r.failing = text
}

// tell tells neighbours of the addresses that are due, and returns the time until the next ones.
func (r *Responder) tell(now time.Time) time.Duration {
	type frame struct {
		of    *socket
		data  []byte
		index int
	}
	var frames []frame
	next := time.Hour
	r.mu.Lock()
	maps.DeleteFunc(r.said, func(_ netip.Addr, at time.Time) bool { return now.Sub(at) >= spacing })
	for addr, a := range r.answers {
		if a.told == len(repeats) {
			continue
		}
		wait := a.begun.Add(repeats[a.told]).Sub(now)
		if at, lately := r.said[addr]; lately {
			wait = max(wait, at.Add(spacing).Sub(now))
		}
		if wait > 0 {
			next = min(next, wait)
			continue
		}
		if a.told++; a.told < len(repeats) {
			next = min(next, max(spacing, a.begun.Add(repeats[a.told]).Sub(now)))
		}
		s := r.arp
		if addr.Is6() {
			s = r.ndp
		}
		for index, seg := range r.on {
			if !a.holds(addr, seg) {
				continue
			}
			r.said[addr] = now
			for _, data := range unasked(seg.MAC, addr) {
				frames = append(frames, frame{s, data, index})
			}
		}
	}
	r.counts.Unasked += uint64(len(frames))
	r.mu.Unlock()
	for _, f := range frames {
		_ = f.of.send(f.data, f.index) // it is repeated
	}
	return max(next, 0)
}
