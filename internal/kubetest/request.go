package kubetest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/driver/drivertest"
	"sluice.dev/sluice/internal/lab/echo"
)

// run asks until what comes of it is as expected, or patience ends.
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

// round asks all addresses at the same time, or one after the other if they count together.
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

// judge sends requests until there are enough for a verdict.
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

// meanwhile sends the question's requests, one after the other and each on a connection of its own, while steps are carried
// out. Each has to be as expected, from the first to the last, in Sluice; others may fail tolerated ones.
func meanwhile(q Question, steps ...Step) Step {
	return action{fmt.Sprintf("while %s", q), func(ctx context.Context, e *Env) error {
		to, err := q.To.resolve(ctx, e, q.Protocol)
		if err != nil {
			return err
		}
		from, err := e.place(ctx, q.From)
		if err != nil {
			return err
		}
		done := make(chan struct{})
		var asking sync.WaitGroup
		for _, addr := range to {
			asking.Go(func() { q.keepAsking(e, from, addr, done) })
		}
		err = e.steps(ctx, steps)
		close(done)
		asking.Wait()
		return errors.Join(err, e.load.judge(e.dataplane))
	}}
}

// tolerated is one of how many requests may fail while pods are exchanged: as Kubernetes' end-to-end tests have it.
const tolerated = 20

// Load is what became of requests that were sent while something changed.
type Load struct {
	Sent, Failed int
	First        error // of those that failed
}

func (l *Load) judge(d Dataplane) error {
	if l.Failed == 0 || d != Sluice && l.Failed*tolerated <= l.Sent {
		return nil
	}
	return fmt.Errorf("%d of %d requests: the first: %w", l.Failed, l.Sent, l.First)
}

// keepAsking sends requests until done.
func (q Question) keepAsking(e *Env, from *place, to netip.AddrPort, done <-chan struct{}) {
	want := q.want(e.dataplane)
	for n := 1; ; n++ {
		err := want.fits(q.request(e, want, from, to), e.cluster.nodeAddrs)
		e.mu.Lock()
		e.load.Sent++
		if err != nil {
			e.load.Failed++
			e.load.First = cmp.Or(e.load.First, fmt.Errorf("%s, request %d: %w", to, n, err))
		}
		e.mu.Unlock()
		select {
		case <-done:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// flow is a socket that more than one request is sent from.
type flow struct {
	net.Conn
	reader *bufio.Reader
	answer echo.Answer // the last
	broken error       // of a connection: it cannot be asked again
}

func (f *flow) close() error {
	if err := f.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// exchange sends a request of a flow, or a large one.
func (e *Env) exchange(q Question, from *place, to netip.AddrPort, timeout time.Duration) (echo.Answer, error) {
	key := fmt.Sprintf("%s of %s to %s/%s", q.Flow, q.From, to, q.Protocol)
	e.mu.Lock()
	f := e.flows[key]
	e.mu.Unlock()
	if f == nil {
		var err error
		if f, err = open(from, q.Protocol, to, timeout); err != nil {
			return echo.Answer{}, err
		}
		if q.Flow == "" {
			defer func() { _ = f.Close() }()
		} else {
			e.mu.Lock()
			e.flows[key] = f
			e.mu.Unlock()
		}
	}
	return f.exchange(q.Protocol, q.Size, timeout)
}

func open(from *place, protocol corev1.Protocol, to netip.AddrPort, timeout time.Duration) (*flow, error) {
	f := &flow{}
	err := from.Do(func() (err error) {
		d := net.Dialer{Timeout: timeout, KeepAlive: -1}
		d.SetMultipathTCP(false)
		f.Conn, err = d.Dial(map[corev1.Protocol]string{tcp: "tcp", udp: "udp"}[protocol], to.String())
		return err
	})
	if err != nil {
		return nil, reason(err)
	}
	f.reader = bufio.NewReader(f.Conn)
	return f, nil
}

func (f *flow) exchange(protocol corev1.Protocol, size int, timeout time.Duration) (echo.Answer, error) {
	if f.broken != nil {
		return echo.Answer{}, final{fmt.Errorf("the connection is broken: %w", f.broken)}
	}
	text, err := f.talk(protocol, size, timeout)
	if err == nil {
		err = json.Unmarshal(text, &f.answer)
	}
	if err != nil && protocol == tcp {
		f.broken = err
	}
	return f.answer, reason(err)
}

func (f *flow) talk(protocol corev1.Protocol, size int, timeout time.Duration) ([]byte, error) {
	if err := f.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	payload := bytes.Repeat([]byte("."), max(1, size))
	if protocol == udp {
		if _, err := f.Write(payload); err != nil {
			return nil, err
		}
		answer := make([]byte, 4096)
		n, err := f.Read(answer)
		return answer[:n], err
	}
	if _, err := fmt.Fprintf(f, "POST / HTTP/1.1\r\nHost: kubetest\r\nContent-Length: %d\r\n\r\n%s", len(payload), payload); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(f.reader, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	return io.ReadAll(answer.Body)
}

// reason says in echo's words why a request got no answer; nil stays nil. What the client's own host rejects as it
// leaves is not permitted.
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

// strays sends segments far outside their windows, in all TCP flows of the case, from the pods at their other ends. Were one to
// reach its client untranslated, the client would reset the connection: https://issues.k8s.io/74839.
func strays() Step {
	return action{"pods send segments outside their connections' windows", func(ctx context.Context, e *Env) error {
		for key, f := range e.flows {
			if err := f.stray(ctx, e); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
		return nil
	}}
}

func (f *flow) stray(ctx context.Context, e *Env) error {
	conn, ok := f.Conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	p, err := e.pod(ctx, f.answer.Pod)
	if err != nil {
		return err
	}
	at, err := e.place(ctx, f.answer.Pod)
	if err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	for _, ip := range p.Status.PodIPs {
		if is4(ip.IP) != f.answer.Client.Addr().Is4() {
			continue
		}
		pod := netip.AddrPortFrom(netip.MustParseAddr(ip.IP), f.answer.Port)
		for range 3 {
			if err := at.Do(func() error { return drivertest.InjectStray(raw, pod, f.answer.Client) }); err != nil {
				return err
			}
		}
	}
	return nil
}
