// Package contest is for what another program may write, too: it spaces out our writes while the
// other one goes on undoing them, and tells that it does.
package contest

import "time"

// Pace says when something may be written again that was written before. It may be at once if the
// last write has stood for a while. Otherwise the pauses double, from First up to Most. The zero
// time of the last write is long ago. It is not safe for concurrent use.
type Pace struct {
	First, Most time.Duration

	last  time.Time // when it was written last
	pause time.Duration
	soon  int // how many writes came soon after one another, up to the last
}

// Due returns the time before which it should not be written.
func (p *Pace) Due() time.Time { return p.last.Add(p.pause) }

// Wrote notes that it is written now.
func (p *Pace) Wrote(now time.Time) {
	if p.settled(now) {
		p.soon, p.pause = 0, p.First
	} else {
		p.soon, p.pause = p.soon+1, min(2*p.pause, p.Most)
	}
	p.last = now
}

// settled reports whether the last write has stood for so long that nobody else seems to write.
func (p *Pace) settled(now time.Time) bool { return now.Sub(p.last) > 2*p.pause+p.First }

// Lost reports whether another program goes on undoing what we write: it did so again soon after
// several writes.
func (p *Pace) Lost(now time.Time) bool { return p.soon >= 2 && !p.settled(now) }

// Over reports whether nothing is left to be remembered: the next write is as the first.
func (p *Pace) Over(now time.Time) bool { return p.settled(now) && !now.Before(p.Due()) }
