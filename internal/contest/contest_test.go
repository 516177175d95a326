package contest

import (
	"math/rand/v2"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Someone who undoes each write at once is answered ever more slowly, and is noticed. Once a write
// stands, all is as at the beginning.
func TestPace(t *testing.T) {
	p := Pace{First: time.Second, Most: 10 * time.Minute, Lasts: time.Minute}
	now := start
	var writes, in10s int
	for ; now.Before(start.Add(24 * time.Hour)); now = now.Add(100 * time.Millisecond) {
		p.Undone(now)
		if now.Before(p.Due()) {
			continue
		}
		p.Wrote(now)
		if writes++; now.Before(start.Add(10 * time.Second)) {
			in10s++
		}
		if lost := p.Lost(now); lost != (writes >= 3) {
			t.Errorf("after %d writes: lost %v", writes, lost)
		}
	}
	if in10s != 4 || writes < 140 || writes > 160 {
		t.Errorf("%d writes in 10 s, %d in a day", in10s, writes)
	}
	now = now.Add(time.Hour)
	if p.Lost(now) || !p.Over(now) || now.Before(p.Due()) {
		t.Error("what has stood for an hour is still contested")
	}
	if p.Wrote(now); p.Due() != now.Add(time.Second) || p.Lost(now) || p.Over(now) {
		t.Error("the first write after that is not as the first")
	}
}

// A contest lasts as long as something is undone, however often that is, and not much longer: not
// until the pauses have ended to which it led.
func TestLost(t *testing.T) {
	for _, every := range []time.Duration{time.Second, 10 * time.Second, 35 * time.Second, time.Minute, 2 * time.Minute, 10 * time.Minute} {
		p := Pace{First: 10 * time.Second, Most: 10 * time.Minute, Lasts: 3 * time.Minute}
		undone, writes, since := start, 0, time.Time{}
		ends, end := start.Add(5*time.Hour), time.Time{}
		for now := start; now.Before(ends.Add(time.Hour)); now = now.Add(time.Second) {
			if now.Before(ends) && !undone.After(now) {
				if p.Undone(now); !now.Before(p.Due()) {
					p.Wrote(now)
					writes++
					undone = now.Add(every)
				}
			}
			switch lost := p.Lost(now); {
			case lost && since.IsZero():
				since = now
				if writes != 3 {
					t.Errorf("undone every %v: noticed at write %d", every, writes)
				}
			case lost:
				end = now
			case !since.IsZero() && now.Before(ends):
				t.Fatalf("undone every %v: it seems to have ended after %v", every, now.Sub(start))
			}
		}
		if every > p.Lasts {
			if !since.IsZero() {
				t.Errorf("undone every %v is a contest", every)
			}
		} else if since.IsZero() || end.Sub(ends) > p.Lasts {
			t.Errorf("undone every %v: noticed since %v, until %v after its end", every, since, end.Sub(ends))
		}
	}
}

// However often somebody asks, two writes of one thing are never closer than First.
func TestPaceIsKept(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		p := Pace{First: time.Second, Most: time.Minute}
		now, last := start, time.Time{}
		for range 500 {
			now = now.Add(time.Duration(r.ExpFloat64() * float64(time.Second)))
			if now.Before(p.Due()) {
				continue
			}
			if now.Sub(last) < p.First {
				t.Fatalf("seed %d: two writes within %v", seed, now.Sub(last))
			}
			p.Wrote(now)
			last = now
		}
	}
}
