package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"sluice.dev/sluice/internal/driver"
)

// DropReport is one line for a watcher of drops: a drop, or how many were missed so far.
type DropReport struct {
	Drop   *Drop   `json:"drop,omitempty"`
	Missed *Missed `json:"missed,omitempty"`
	Error  string  `json:"error,omitempty"` // why no more follow
}

// Missed counts the drops that the watcher has not been shown since it began.
type Missed struct {
	Limited uint64 `json:"limited"` // above the rate at which the kernel logs
	Lost    uint64 `json:"lost"`    // logged, and not taken in time
}

// missedEvery is the time between two counts of missed drops.
const missedEvery = time.Second

// serveDrops streams drops, one JSON object a line, until the client closes.
func (a *Agent) serveDrops(w http.ResponseWriter, r *http.Request) {
	watcher, err := a.drops.watch()
	if err != nil {
		reply(w, nil, err)
		return
	}
	defer a.drops.leave(watcher)
	tally := newTally(r.Context(), a.Driver)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	out := json.NewEncoder(w)
	flush := http.NewResponseController(w).Flush
	if flush() != nil { // tells the client that it misses nothing from now on
		return
	}
	tick := time.NewTicker(missedEvery)
	defer tick.Stop()
	for {
		var report DropReport
		select {
		case <-r.Context().Done():
			return
		case p, ok := <-watcher.packets:
			if !ok {
				_ = out.Encode(DropReport{Error: "the kernel's log of dropped packets has ended: ask again"})
				return
			}
			d := a.explain(p)
			report.Drop = &d
		case <-tick.C:
			if report.Missed = tally.missed(r.Context(), watcher); report.Missed == nil {
				continue
			}
		}
		if out.Encode(report) != nil || flush() != nil {
			return
		}
	}
}

// tally counts the drops that a watcher misses.
type tally struct {
	counter driver.Counter // nil if the driver does not count
	known   bool           // it has been read
	read    uint64         // when it was read last
	dropped uint64         // packets dropped since the watcher began, up to then
	told    Missed
}

func newTally(ctx context.Context, d driver.Driver) *tally {
	t := &tally{counter: d.Capabilities().Counter}
	t.count(ctx, 0)
	return t
}

// count reads the counter. At the first reading, the watcher's share is the number of packets that
// came to it. A counter that has fallen began anew.
func (t *tally) count(ctx context.Context, came uint64) {
	if t.counter == nil {
		return
	}
	counts, err := t.counter.DropCounts(ctx)
	if err != nil {
		return
	}
	var n uint64
	for _, c := range counts {
		n += c
	}
	switch {
	case !t.known:
		t.dropped = came
	case n < t.read:
		t.dropped += n
	default:
		t.dropped += n - t.read
	}
	t.known, t.read = true, n
}

// missed returns the drops missed since the beginning, or nil if there are none since the previous
// count. It compares the drops up to the previous count with the packets that have come by now:
// packets in transit are not missed.
func (t *tally) missed(ctx context.Context, w *dropWatcher) *Missed {
	lost := w.lost.Load()
	came := w.received.Load() + lost
	now := Missed{Limited: t.told.Limited, Lost: lost}
	if t.dropped > came {
		now.Limited = t.dropped - came
	}
	t.count(ctx, came)
	if now == t.told {
		return nil
	}
	t.told = now
	return &now
}
