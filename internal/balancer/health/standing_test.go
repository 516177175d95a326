package health

import (
	"testing"
	"time"
)

// A word is a row of checks, + for a success and - for a failure; what stands below each is
// whether the backend is then up or down, in capitals where that is reported, or a dot as long as
// nothing is known.
func TestStanding(t *testing.T) {
	for _, test := range []struct {
		name       string
		rise, fall int
		checks     string
		want       string
	}{
		{"the first success decides", 3, 3, "+", "U"},
		{"a first failure is one of fall", 3, 3, "---", "..D"},
		{"a success ends the first failures", 3, 3, "--+--+---", "..UuuuuuD"},
		{"nothing is known before", 2, 3, "-+-", ".Uu"},
		{"failures in a row", 2, 3, "+---", "UuuD"},
		{"a success between them", 2, 3, "+--+--+---", "UuuuuuuuuD"},
		{"successes in a row", 2, 1, "-++", "DdU"},
		{"a failure between them", 2, 1, "-+-+-++", "DdddddU"},
		{"one is enough", 1, 1, "+-+-", "UDUD"},
		{"flapping that never lasts", 2, 2, "+-+-+-", "Uuuuuu"},
		{"down and up again", 2, 3, "+---++---", "UuuDdUuuD"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s standing
			got := ""
			start := time.Unix(1, 0)
			since := start
			for i, check := range test.checks {
				now := start.Add(time.Duration(i) * time.Second)
				changed := s.observe(outcome{up: check == '+', why: string(check)}, test.rise, test.fall, now)
				letter := map[bool]string{true: "u", false: "d"}
				if changed {
					letter = map[bool]string{true: "U", false: "D"}
					since = now
				}
				if !s.known {
					got += "."
					continue
				}
				got += letter[s.up]
				if !s.since.Equal(since) {
					t.Errorf("check %d: since %v, want %v", i, s.since, since)
				}
				if want := map[bool]string{true: "+", false: "-"}[s.up]; s.why != want {
					t.Errorf("check %d: the reason is %q, want that of a check that agrees, %q", i, s.why, want)
				}
			}
			if got != test.want {
				t.Errorf("%s: got %s, want %s", test.checks, got, test.want)
			}
		})
	}
}
