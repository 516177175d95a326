package health

import "time"

// outcome is what one check has found.
type outcome struct {
	up  bool
	why string
	err error // the check could not be made, by no fault of the backend's: it decides nothing
}

func up(why string) outcome   { return outcome{up: true, why: why} }
func down(why string) outcome { return outcome{why: why} }

// standing is what all checks of a target so far come to.
type standing struct {
	known, up bool
	against   int // checks in a row that disagree with up; while nothing is known, that failed
	why       string
	since     time.Time
}

// observe takes in a check that ended now. It reports whether up has changed or is known for the
// first time. That takes rise successes or fall failures in a row, but a success at the very first
// decides at once: the backend is taken for up until then.
func (s *standing) observe(o outcome, rise, fall int, now time.Time) (changed bool) {
	if s.known && o.up == s.up {
		s.against, s.why = 0, o.why
		return false
	}
	s.against++
	need := fall
	switch {
	case o.up && !s.known:
		need = 1
	case o.up:
		need = rise
	}
	if s.against < need {
		return false
	}
	*s = standing{known: true, up: o.up, why: o.why, since: now}
	return true
}
