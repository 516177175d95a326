package drivertest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/state"
)

// expectOfFlow makes an exchange over a flow, which has its fate as soon as the change is done.
func (r *run) expectOfFlow(c *client, s send, to netip.AddrPort) error {
	if s.stray {
		if err := r.inject(r.flows[s.flow]); err != nil {
			return err
		}
	}
	timeout := silence
	if s.fate.outcome == answered {
		timeout = patience
	}
	return r.judgeFlow(s, r.exchange(c, s, to, timeout))
}

// exchange makes one more exchange over the flow that a send names.
func (r *run) exchange(c *client, s send, to netip.AddrPort, timeout time.Duration) (res result) {
	flow := r.flows[s.flow]
	if flow == nil {
		if flow, res.err = c.dial(s.proto, s.port, to, timeout); res.err != nil {
			return res
		}
		r.flows[s.flow] = flow
	}
	res.local = flow.local()
	res.answer, res.err = flow.exchange(s.size, timeout)
	return res
}

func (r *run) judgeFlow(s send, res result) error {
	switch {
	case s.fate.outcome == answered:
		return r.judge(s, res, r.backends(r.family, s))
	case s.fate.outcome == cut && res.err != nil, // in either direction
		s.fate.outcome == rejected && refused(res.err),
		s.fate.outcome == dropped && silent(res.err):
		return nil
	}
	return r.notNone(res)
}

// inject sends a segment far outside the window from the flow's backend to the client, with the
// client's address as the backend sees it. A driver that counts what it drops counts it.
func (r *run) inject(flow *conn) error {
	raw, err := flow.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	before, err := r.strays()
	if err != nil {
		return err
	}
	a := flow.answer
	err = r.owner[a.server.Addr()].ns.Do(func() error {
		return InjectStray(raw, a.server, a.client)
	})
	for end := time.Now().Add(patience); err == nil; {
		after, readErr := r.strays()
		if err = readErr; after > before || after < 0 {
			break
		}
		if time.Now().After(end) {
			err = errors.New("the stray segment is not counted as dropped")
		}
	}
	return err
}

// strays is how many stray segments the driver counts as dropped; -1 if it counts nothing, or
// connections are in a flow table, or connection tracking is told so: then windows are not asked
// for, and what is outside is translated, too.
func (r *run) strays() (int, error) {
	can := r.driver.Capabilities()
	if can.Counter == nil || can.Offloader != nil {
		return -1, nil
	}
	var liberal string
	err := r.node.Do(func() (err error) { liberal, err = sysctl.Read(sysctl.AnyWindow); return err })
	if err != nil || liberal == "1" {
		return -1, err
	}
	drops, err := can.Counter.DropCounts(context.Background())
	return int(drops[state.DropStray]), err
}
