package health

import (
	"fmt"
	"testing"
	"time"
)

// A few new targets are checked at once, many within their interval.
func TestFirstChecks(t *testing.T) {
	for _, test := range []struct {
		targets int
		within  time.Duration
	}{
		{1, time.Millisecond},
		{100, 50 * time.Millisecond},
		{30000, 5 * time.Second},
	} {
		t.Run(fmt.Sprint(test.targets), func(t *testing.T) {
			var s schedule
			now := time.Unix(1, 0)
			for range test.targets {
				s.first(&target{check: Check{}.WithDefaults(), index: -1}, now)
			}
			if got := counts(&s, now, test.within, 1)[0]; got != test.targets {
				t.Errorf("%d of %d within %v", got, test.targets, test.within)
			}
		})
	}
}

// From the first interval on, checks are spread evenly, and keep their distance of an interval.
func TestChecksAreSpread(t *testing.T) {
	const targets, intervals = 10000, 5
	var s schedule
	start := time.Unix(1, 0)
	var all []*target
	for range targets {
		x := &target{check: Check{}.WithDefaults(), index: -1}
		s.first(x, start)
		all = append(all, x)
	}
	interval := all[0].check.Interval
	perSlot := make([]int, 10*(intervals+1))
	checks := map[*target]int{}
	for end := start.Add(time.Duration(intervals) * interval); ; {
		x := s.due(end)
		if x == nil {
			break
		}
		if last := x.begun; checks[x] >= 2 && (x.due.Sub(last) < interval*9/10 || x.due.Sub(last) > interval*11/10) {
			t.Fatalf("%v between two checks, the interval is %v", x.due.Sub(last), interval)
		}
		checks[x]++
		perSlot[int(x.due.Sub(start)/(interval/10))]++
		x.begun = x.due
		s.next(x, x.due)
	}
	for i, n := range perSlot[10 : 10*intervals] {
		if n < targets/10/2 || n > targets/10*2 {
			t.Errorf("%d checks in the tenth %d of an interval, want about %d", n, i, targets/10)
		}
	}
}

// A check that took longer than the interval is followed by the next one at once, not by all that
// it has kept from being made.
func TestLateCheck(t *testing.T) {
	var s schedule
	now := time.Unix(1, 0)
	x := &target{check: Check{}.WithDefaults(), index: -1, spread: true, begun: now}
	s.next(x, now.Add(time.Hour))
	if want := now.Add(time.Hour); !x.due.Equal(want) {
		t.Errorf("due at %v, want %v", x.due, want)
	}
}

func TestWait(t *testing.T) {
	now := time.Unix(1, 0)
	for _, test := range []struct {
		name string
		due  time.Duration // -1: nothing is
		want time.Duration
	}{
		{"nothing to do", -1, time.Minute + slot},
		{"something in an hour", time.Hour, time.Minute + slot},
		{"something in 25 ms", 25 * time.Millisecond, 3 * slot},
		{"something that is overdue", -time.Second, slot},
	} {
		var s schedule
		if test.due != -1 {
			s.set(&target{index: -1}, now.Add(test.due))
		}
		if got := s.wait(now, slot); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

// counts returns how many targets are due in each part of a time.
func counts(s *schedule, from time.Time, length time.Duration, parts int) []int {
	n := make([]int, parts)
	for _, x := range s.targets {
		if since := x.due.Sub(from); since >= 0 && since <= length {
			n[min(int(since*time.Duration(parts)/length), parts-1)]++
		}
	}
	return n
}
