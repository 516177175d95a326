package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"sluice.dev/sluice/test/lab/echo"
)

// run asks until the outcome is as expected, or patience ends.
func (q Question) run(ctx context.Context, e *Env) error {
	want := q.want(e.dataplane)
	err := until(ctx, func() error {
		to, err := q.To.resolve(ctx, e, q.Protocol)
		if err != nil {
			return err
		}
		from, err := e.place(ctx, q.From)
		if err != nil {
			return err
		}
		return q.round(e, want, from, to)
	})
	if err != nil {
		return fmt.Errorf("want %s: %w", want, err)
	}
	return nil
}

// round asks all addresses at the same time, or one after the other if their results count
// together.
func (q Question) round(e *Env, want Want, from *place, to []netip.AddrPort) error {
	if want.together {
		return q.judge(e, want, from, to)
	}
	errs := make(chan error)
	for _, addr := range to {
		go func() {
			err := q.judge(e, want, from, []netip.AddrPort{addr})
			if err != nil {
				err = fmt.Errorf("%s: %w", addr, err)
			}
			errs <- err
		}()
	}
	var all []error
	for range to {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// judge sends requests until they suffice for a result.
func (q Question) judge(e *Env, want Want, from *place, to []netip.AddrPort) error {
	var results []result
	for i := 0; ; i = (i + 1) % len(to) {
		r := q.request(e, want, from, to[i])
		if err := want.fits(r, e.cluster.nodeAddrs); err != nil {
			return err
		}
		results = append(results, r)
		if done, err := want.enough(results); done || err != nil {
			return err
		}
		time.Sleep(want.pause)
	}
}

// request sends one.
func (q Question) request(e *Env, want Want, from *place, to netip.AddrPort) result {
	r := result{from: from.addrs}
	if q.Flow != "" || q.Size != 0 {
		r.answer, r.err = e.exchange(q, from, to, want.timeout())
		return r
	}
	r.err = from.Do(func() (err error) {
		switch {
		case want.outcome == isStatus:
			r.status, err = echo.Status(to, want.timeout())
		case q.Protocol == sctp:
			r.answer, err = e.askSCTP(from, to, want.timeout())
		default:
			r.answer, err = echo.Ask(string(q.Protocol), to, want.timeout())
		}
		return err
	})
	return r
}

// reason returns one of echo's errors that says why a request got no answer; nil stays nil. What
// the client's own host rejects on the way out fails with "not permitted".
func reason(err error) error {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH, syscall.EACCES, syscall.EPERM} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", echo.ErrRefused, err)
		}
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return fmt.Errorf("%w: %w", echo.ErrSilent, err)
	}
	return err
}
