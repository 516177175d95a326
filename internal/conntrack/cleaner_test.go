package conntrack

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/model"
)

// recorder is a deleter that takes its time and remembers what was asked of it, and when.
type recorder struct {
	begin time.Time
	takes time.Duration
	err   error
	calls []call
}

type call struct {
	at      time.Duration
	filters []Filter
}

func (r *recorder) Delete(_ context.Context, filters []Filter, _ func(*Flow) bool) (int, error) {
	r.calls = append(r.calls, call{time.Since(r.begin), slices.Clone(filters)})
	time.Sleep(r.takes)
	return len(filters), r.err
}

// Wait returns when all that was asked for is done, both times, or when ctx ends, with its error.
func (c *Cleaner) Wait(ctx context.Context) error {
	waits := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.fresh)+len(c.again) > 0
	}
	for ; waits() && ctx.Err() == nil; time.Sleep(time.Millisecond) {
	}
	// The Cleaner takes the signal once the last pass is over, or has ended.
	for c.wake.Set(); len(c.wake) > 0 && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		select {
		case <-c.done:
			return nil
		default:
		}
	}
	return ctx.Err()
}

func tcp(n uint16) Filter { f := udp(n); f.Protocol = model.TCP; return f }

func udp(n uint16) Filter {
	return Filter{Protocol: model.UDP, Frontend: netip.AddrPortFrom(netip.Addr{}, n)}
}

func TestCleaner(t *testing.T) {
	check := func(t *testing.T, r *recorder, want ...call) {
		t.Helper()
		same := func(a, b call) bool { return a.at == b.at && slices.Equal(a.filters, b.filters) }
		if !slices.EqualFunc(r.calls, want, same) {
			t.Errorf("calls %+v\nwant  %+v", r.calls, want)
		}
	}
	run := func(name string, r *recorder, f func(t *testing.T, c *Cleaner)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r.begin = time.Now()
				c := NewCleaner(r, nil, slog.New(slog.DiscardHandler))
				defer c.Close()
				f(t, c)
			})
		})
	}

	r := &recorder{}
	run("twice", r, func(t *testing.T, c *Cleaner) {
		c.Cut([]Filter{udp(1), udp(2)})
		c.Cut(nil)
		if err := c.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		both := []Filter{udp(1), udp(2)}
		check(t, r, call{0, both}, call{passInterval, both})
		if n := c.Deleted(); n != 4 {
			t.Errorf("deleted %d, want 4", n)
		}
	})

	r = &recorder{takes: 400 * time.Millisecond}
	run("together", r, func(t *testing.T, c *Cleaner) {
		c.Cut([]Filter{udp(1)})
		time.Sleep(time.Millisecond) // the worker is at it
		c.Cut([]Filter{udp(2)})
		c.Cut([]Filter{udp(3)})
		if err := c.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		check(t, r,
			call{0, []Filter{udp(1)}},
			call{passInterval, []Filter{udp(1), udp(2), udp(3)}},
			call{2 * passInterval, []Filter{udp(2), udp(3)}},
		)
	})

	r = &recorder{}
	run("without UDP there is time", r, func(t *testing.T, c *Cleaner) {
		c.Cut([]Filter{tcp(1)})
		synctest.Wait()
		c.Cut([]Filter{tcp(2)})
		time.Sleep(passInterval / 2)
		c.Cut([]Filter{udp(3)})
		if err := c.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		c.Cut([]Filter{tcp(4)})
		if err := c.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		check(t, r,
			call{0, []Filter{tcp(1)}},
			call{passInterval, []Filter{tcp(1), tcp(2), udp(3)}},
			call{2 * passInterval, []Filter{tcp(2), udp(3)}},
			call{2*passInterval + patientInterval, []Filter{tcp(4)}},
			call{2*passInterval + 2*patientInterval, []Filter{tcp(4)}},
		)
	})

	r = &recorder{err: errors.New("fault")}
	run("again after an error", r, func(t *testing.T, c *Cleaner) {
		c.Cut([]Filter{udp(1)})
		if err := c.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		check(t, r, call{0, []Filter{udp(1)}}, call{passInterval, []Filter{udp(1)}})
	})

	r = &recorder{}
	run("close does not wait", r, func(t *testing.T, c *Cleaner) {
		c.Cut([]Filter{udp(1)})
		synctest.Wait()
		c.Cut([]Filter{udp(2)})
		c.Close()
		c.Cut([]Filter{udp(3)})
		if err := c.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		for _, call := range r.calls {
			if call.at != 0 {
				t.Errorf("call at %v", call.at)
			}
		}
		for _, f := range []Filter{udp(1), udp(2)} {
			n := 0
			for _, call := range r.calls {
				if slices.Contains(call.filters, f) {
					n++
				}
			}
			if n != 2 {
				t.Errorf("%v was cut %d times, want 2", f, n)
			}
		}
	})

	r = &recorder{takes: time.Hour}
	run("wait ends with its context", r, func(t *testing.T, c *Cleaner) {
		c.Cut([]Filter{udp(1)})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestCleanerCuts cuts a burst of hundreds of backends out of a real table.
func TestCleanerCuts(t *testing.T) {
	conn := testConn(t, testNS(t))
	var entries []entry
	var filters []Filter
	for i := range uint16(600) {
		at, to := netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), 1000+i), netip.AddrPortFrom(netip.MustParseAddr("10.2.0.1"), 1000+i)
		entries = append(entries, entry{model.TCP, "10.1.0.1:1000", at.String(), to.String()})
		if i < 500 {
			filters = append(filters, Filter{Protocol: model.TCP, Frontend: at, Backend: to})
		}
	}
	create(t, conn, entries...)
	c := NewCleaner(conn, nil, slog.New(slog.DiscardHandler))
	defer c.Close()
	begin := time.Now()
	c.Cut(filters)
	t.Logf("Cut returned after %v", time.Since(begin))
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < passInterval {
		t.Errorf("done after %v, before the second pass was due", took)
	}
	if n := c.Deleted(); n != 500 {
		t.Errorf("deleted %d, want 500", n)
	}
	if n, err := conn.Count(); n != 100 || err != nil {
		t.Errorf("left %d, %v; want 100", n, err)
	}
}
