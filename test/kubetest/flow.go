package kubetest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/drivertest"
	"sluice.dev/sluice/test/lab/echo"
)

// flow is a socket that sends more than one request.
type flow struct {
	net.Conn
	reader *bufio.Reader
	answer echo.Answer // the last
	broken error       // of a connection: it cannot be used again
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

// strays sends segments far outside their windows, in all TCP flows of the case, from the pods at
// their other ends. If one reached its client untranslated, the client would reset the connection:
// https://issues.k8s.io/74839.
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
