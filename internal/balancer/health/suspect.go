package health

import (
	"net/netip"
	"time"

	"sluice.dev/sluice/internal/lib/multimap"
)

// A backend that refuses connections of clients is checked before its time. As long as such checks
// fail they are repeated at once, until the backend is down; one success ends it. A pause between
// them would last several times as long on a machine whose CPUs are busy, as each wakes up late.
// What can be brought about so is bounded, as whoever forges refusals could do so, too.

const (
	// hurry is how exact times are meanwhile.
	hurry = time.Millisecond
	// calm is how long refusals of a backend are passed over after a success.
	calm = 100 * time.Millisecond
	// mostSuspects is how many targets may come to be checked so within calm.
	mostSuspects = 50
	// mostWaiting is how many refusals may wait for the loop.
	mostWaiting = 1000
)

// Suspect says that a backend has refused a connection: at its address and the port that clients'
// connections come to. Targets there are checked at once, those at other ports of the address where
// none has that port. It does not wait, and may be called for any number of refusals: a target that
// is down is not checked before its time, one whose check has just succeeded only 100 ms later, and
// of all targets no more than 500 a second.
func (c *Checker) Suspect(at netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.refused) < mostWaiting {
		c.refused = append(c.refused, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
		c.wake.Set()
	}
}

// suspicion is what a target knows of its refusals.
type suspicion struct {
	server    netip.AddrPort // where it refuses
	suspected time.Time      // the refusal on account of which it is checked; zero: none
	calm      time.Time      // when refusals count again
}

// suspects are the targets by their servers' addresses, and what bounds checks before their time.
type suspects struct {
	servers map[netip.Addr]map[*target]struct{}
	pending int       // targets that are suspected
	window  time.Time // when taken began
	taken   int       // targets that came to be suspected since
}

func newSuspects() suspects { return suspects{servers: map[netip.Addr]map[*target]struct{}{}} }

func (s *suspects) enter(t *target, server netip.AddrPort) {
	t.server = server
	multimap.Add(s.servers, server.Addr(), t)
}

func (s *suspects) leave(t *target) {
	s.acquit(t)
	multimap.Remove(s.servers, t.server.Addr(), t)
}

// acquit has a target be checked at its time again.
func (s *suspects) acquit(t *target) {
	if !t.suspected.IsZero() {
		t.suspected = time.Time{}
		s.pending--
	}
}

// slot is how exact the loop's times have to be.
func (s *suspects) slot() time.Duration {
	if s.pending > 0 {
		return hurry
	}
	return slot
}

// admit reports whether one more target may be checked before its time.
func (s *suspects) admit(now time.Time) bool {
	if now.Sub(s.window) >= calm {
		s.window, s.taken = now, 0
	}
	s.taken++
	return s.taken <= mostSuspects
}

// suspect has the targets at a server that refused a connection be checked now.
func (l *loop) suspect(at netip.AddrPort) {
	now := time.Now()
	here := l.servers[at.Addr()]
	exact := false
	for t := range here {
		exact = exact || t.server == at
	}
	for t := range here {
		if (t.server == at || !exact) && (t.up || !t.known) && t.suspected.IsZero() && !now.Before(t.calm) && l.admit(now) {
			t.suspected = now
			l.pending++
			if t.cancel == nil {
				l.schedule.set(t, now)
			}
		}
	}
}

// pursue goes on with a target whose check has ended. One that began before the refusal proves
// nothing.
func (l *loop) pursue(t *target, up bool, now time.Time) {
	switch {
	case t.suspected.IsZero():
	case t.known && !t.up:
		l.acquit(t)
	case up && !t.begun.Before(t.suspected):
		l.acquit(t)
		t.calm = now.Add(calm)
	default:
		l.schedule.set(t, now)
	}
}
