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
	*Passes
	takes time.Duration
	err   error
	at    []time.Duration
}

func record(t *testing.T, pause, takes time.Duration, err error) *recorder {
	r := &recorder{takes: takes, err: err}
	start := time.Now()
	r.Passes = Start(func() error {
		r.at = append(r.at, time.Since(start))
		time.Sleep(r.takes)
		return r.err
	}, func() time.Duration { return pause })
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
			r.Ask()
			time.Sleep(time.Millisecond) // the first pass is under way
			r.Ask()
			r.Ask()
			time.Sleep(time.Minute)
		}, []time.Duration{0, time.Second}},
		"whoever waits shortens the pause to the length of the last pass": {time.Minute, 100 * time.Millisecond, nil, func(t *testing.T, r *recorder) {
			for range 3 {
				r.Ask()
				if err := r.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}, []time.Duration{0, 200 * time.Millisecond, 400 * time.Millisecond}},
		"a pass that began before is not waited for": {time.Minute, 100 * time.Millisecond, nil, func(t *testing.T, r *recorder) {
			r.Ask()
			time.Sleep(time.Millisecond)
			r.Ask()
			if err := r.Wait(t.Context()); err != nil || len(r.at) != 2 {
				t.Errorf("after %d passes: %v", len(r.at), err)
			}
		}, []time.Duration{0, 200 * time.Millisecond}},
		"a failure is told": {time.Second, 0, fault, func(t *testing.T, r *recorder) {
			r.Ask()
			if err := r.Wait(t.Context()); !errors.Is(err, fault) {
				t.Error(err)
			}
		}, []time.Duration{0}},
		"waiting ends with its context": {time.Second, time.Hour, nil, func(t *testing.T, r *recorder) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r.Ask()
			if err := r.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}, []time.Duration{0}},
		"the end does what is left, without a pause": {time.Minute, 0, nil, func(t *testing.T, r *recorder) {
			r.Ask()
			synctest.Wait()
			time.Sleep(time.Second)
			r.Ask()
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
