// Package contest is for settings that another program may write, too: it spaces out our writes
// while the other program goes on undoing them, and reports that.
package contest

import "time"

// Lasts is the usual time for which a contest lasts.
const Lasts = 3 * time.Minute

// Pace says when something may be written again that was written before. It may be at once if the
// last write has stood for a while. Otherwise the pauses double, from First up to Most. The zero
// time of the last write is long ago. It is not safe for concurrent use.
type Pace struct {
	First, Most time.Duration
	// Lasts is for how long nothing may be undone until a contest has ended. It does not matter to
	// the pauses.
	Lasts time.Duration

	last  time.Time // when it was written last
	pause time.Duration
	seen  time.Time // when it was written last, or found undone
	again int       // how many writes of the contest followed another
}

// Due returns the time before which it should not be written.
func (p *Pace) Due() time.Time { return p.last.Add(p.pause) }

// Wrote notes that it is written now.
func (p *Pace) Wrote(now time.Time) {
	if p.settled(now) {
		p.pause = p.First
	} else {
		p.pause = min(2*p.pause, p.Most)
	}
	if p.ended(now) {
		p.again = 0
	} else {
		p.again++
	}
	p.last, p.seen = now, now
}

// Undone notes that somebody has undone the last write, though it may not be written yet.
func (p *Pace) Undone(now time.Time) {
	if !p.ended(now) {
		p.seen = now
	}
}

func (p *Pace) ended(now time.Time) bool { return now.Sub(p.seen) > p.Lasts }

// settled reports whether the last write has stood for so long that nobody else seems to write.
func (p *Pace) settled(now time.Time) bool { return now.Sub(p.last) > 2*p.pause+p.First }

// Lost reports whether another program goes on undoing what we write: it did so at least twice.
func (p *Pace) Lost(now time.Time) bool { return p.again >= 2 && !p.ended(now) }

// Over reports whether the Pace can be forgotten: the next write is like the first.
func (p *Pace) Over(now time.Time) bool {
	return p.settled(now) && p.ended(now) && !now.Before(p.Due())
}
