package passes

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// recorder has passes that take their time, and remembers when each began.
type recorder struct {
	*Passes[int]
	takes time.Duration
	err   error
	at    []time.Duration
	did   []int
}

func record(t *testing.T, pause, takes time.Duration, err error) *recorder {
	r := &recorder{takes: takes, err: err}
	begun := time.Now()
	r.Passes = Start(Work[int]{
		Merge: func(to *int, n int) { *to += n },
		Pass: func(n int) error {
			r.at, r.did = append(r.at, time.Since(begun)), append(r.did, n)
			time.Sleep(r.takes)
			return r.err
		},
		Pause: func(int) time.Duration { return pause },
	})
	t.Cleanup(func() {
		select {
		case <-r.ended:
		default:
			r.Close()
		}
	})
	return r
}

func TestPasses(t *testing.T) {
	fault := errors.New("fault")
	for name, c := range map[string]struct {
		pause, takes time.Duration
		err          error
		do           func(*testing.T, *recorder)
		want         []time.Duration // when passes begin
	}{
		"nothing to wait for": {time.Second, 0, nil, func(t *testing.T, r *recorder) {
			if err := r.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}, nil},
		"what is asked for meanwhile is done together, after the pause": {time.Second, 400 * time.Millisecond, nil, func(_ *testing.T, r *recorder) {
			r.Ask(1)
			time.Sleep(time.Millisecond) // the first pass is under way
			r.Ask(1)
			r.Ask(1)
			time.Sleep(time.Minute)
		}, []time.Duration{0, time.Second}},
		"whoever waits shortens the pause to the length of the last pass": {time.Minute, 100 * time.Millisecond, nil, func(t *testing.T, r *recorder) {
			for range 3 {
				r.Ask(1)
				if err := r.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}, []time.Duration{0, 200 * time.Millisecond, 400 * time.Millisecond}},
		"a pass that began before is not waited for": {time.Minute, 100 * time.Millisecond, nil, func(t *testing.T, r *recorder) {
			r.Ask(1)
			time.Sleep(time.Millisecond)
			r.Ask(1)
			if err := r.Wait(t.Context()); err != nil || len(r.at) != 2 {
				t.Errorf("after %d passes: %v", len(r.at), err)
			}
		}, []time.Duration{0, 200 * time.Millisecond}},
		"a failure is told": {time.Second, 0, fault, func(t *testing.T, r *recorder) {
			r.Ask(1)
			if err := r.Wait(t.Context()); !errors.Is(err, fault) {
				t.Error(err)
			}
		}, []time.Duration{0}},
		"waiting ends with its context": {time.Second, time.Hour, nil, func(t *testing.T, r *recorder) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r.Ask(1)
			if err := r.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}, []time.Duration{0}},
		"the end does what is left, without a pause": {time.Minute, 0, nil, func(t *testing.T, r *recorder) {
			r.Ask(1)
			synctest.Wait()
			time.Sleep(time.Second)
			r.Ask(1)
			r.Close()
		}, []time.Duration{0, time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := record(t, c.pause, c.takes, c.err)
				c.do(t, r)
				if !slices.Equal(r.at, c.want) {
					t.Errorf("passes began at %v, want %v", r.at, c.want)
				}
			})
		})
	}
}

// What is asked for while packets are awaited is of the next pass: those packets may be younger.
func TestAskedWhileAwaiting(t *testing.T) {
	var did []int
	var p *Passes[int]
	awaited := 0
	p = start(Work[int]{
		Merge: func(to *int, n int) { *to += n },
		Pass:  func(n int) error { did = append(did, n); return nil },
		Pause: func(int) time.Duration { return 0 },
	}, func() {
		if awaited++; awaited == 1 {
			p.Ask(10)
		}
	})
	p.Ask(1)
	for i := 0; i < 2; i++ {
		if err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	p.Close()
	if !slices.Equal(did, []int{1, 10}) || awaited != 2 {
		t.Errorf("passes did %v after %d grace periods", did, awaited)
	}
}

// What a pass fails to do is of the next one; the end tries once, and whoever waits then is told.
func TestFailingPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t, time.Second, 0, errors.New("fault"))
		r.Ask(1)
		time.Sleep(time.Second / 2)
		r.Ask(2)
		time.Sleep(time.Second)
		r.Close()
		if !slices.Equal(r.did, []int{1, 3, 3}) {
			t.Errorf("passes did %v", r.did)
		}
		r.Ask(4)
		if err := r.Wait(t.Context()); !errors.Is(err, errEnded) {
			t.Error(err)
		}
	})
}

// Nobody waits for what is only suggested.
func TestSuggest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t, time.Minute, time.Hour, nil)
		r.Suggest(1)
		if err := r.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if len(r.did) != 1 {
			t.Errorf("%d passes", len(r.did))
		}
	})
}
