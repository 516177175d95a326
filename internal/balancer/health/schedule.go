package health

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

const (
	// pace is between the first checks of new targets: a few are known at once, and ten thousand
	// within five seconds.
	pace = 500 * time.Microsecond
	// slot is how exact times are: what is due within one is done together, which saves wake-ups.
	slot = 10 * time.Millisecond
)

// schedule has for each target when something is next to be done: to start its check, or to give
// up the one that runs. A target whose check ends by itself is not in it meanwhile.
type schedule struct {
	targets []*target
	paced   time.Time // when the newest target's first check is due
}

// first enters a new target. Its first check comes soon, but not with those of all others.
func (s *schedule) first(t *target, now time.Time) {
	if s.paced.Before(now) {
		s.paced = now
	}
	s.paced = s.paced.Add(pace)
	at := s.paced
	if at.Sub(now) > t.check.Interval {
		at = now.Add(rand.N(t.check.Interval))
	}
	s.set(t, at)
}

// next enters a target whose check, begun at t.begun, has ended. The second check comes anywhere
// in the interval after the first: from then on, the checks of many targets are spread evenly.
func (s *schedule) next(t *target, now time.Time) {
	interval := t.check.Interval
	wait := interval - interval/10 + rand.N(interval/5)
	if !t.spread {
		t.spread = true
		wait = rand.N(interval)
	}
	at := t.begun.Add(wait)
	if at.Before(now) {
		at = now
	}
	s.set(t, at)
}

// set enters a target, or moves it.
func (s *schedule) set(t *target, at time.Time) {
	t.due = at
	if t.index < 0 {
		heap.Push(s, t)
		return
	}
	heap.Fix(s, t.index)
}

func (s *schedule) remove(t *target) {
	if t.index >= 0 {
		heap.Remove(s, t.index)
	}
}

// due returns the target whose time has come first, nil if there is none by now. It stays in the
// schedule.
func (s *schedule) due(now time.Time) *target {
	if len(s.targets) == 0 || s.targets[0].due.After(now) {
		return nil
	}
	return s.targets[0]
}

// wait returns how long to sleep, in whole slots: until the first target is due, and about a minute
// at most.
func (s *schedule) wait(now time.Time, slot time.Duration) time.Duration {
	idle := time.Minute
	if len(s.targets) > 0 {
		idle = min(max(s.targets[0].due.Sub(now), 0), idle)
	}
	return (idle/slot + 1) * slot
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (s *schedule) Len() int           { return len(s.targets) }
func (s *schedule) Less(i, j int) bool { return s.targets[i].due.Before(s.targets[j].due) }
func (s *schedule) Swap(i, j int) {
	s.targets[i], s.targets[j] = s.targets[j], s.targets[i]
	s.targets[i].index, s.targets[j].index = i, j
}

func (s *schedule) Push(x any) {
	t := x.(*target)
	t.index = len(s.targets)
	s.targets = append(s.targets, t)
}

func (s *schedule) Pop() any {
	last := len(s.targets) - 1
	t := s.targets[last]
	s.targets[last], s.targets = nil, s.targets[:last]
	t.index = -1
	return t
}
