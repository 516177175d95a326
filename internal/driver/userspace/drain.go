package userspace

import (
	"context"
	"errors"
	"time"

	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
)

const (
	drainPause = 100 * time.Millisecond // between two looks at connections that are to end
	answerTime = time.Second            // in which most datagrams are answered that ever are
)

// Drain is for when another program serves all that this driver does. New connections and all
// datagrams pass by the proxy then; Drain returns when the connections that go through it have
// ended, and the last datagrams are answered, or ctx has ended, and removes all that Purge does.
// Without CAP_NET_ADMIN it does only that.
//
// forget has connection tracking forget untranslated flows of UDP to the driver's frontends, so
// that the next datagram of each is for whoever translates it. It is called twice, as an answer
// that was on its way may have begun a flow again.
func (d *Driver) Drain(ctx context.Context, forget func() error) error {
	if d.redirect == nil {
		return d.Purge(ctx)
	}
	if err := d.redirect.drain(); err != nil {
		return err
	}
	err := forget()
	for busy := true; busy && ctx.Err() == nil; busy = d.busy() { // what is in sockets is read meanwhile
		wake.Sleep(ctx, drainPause)
	}
	return errors.Join(err, forget(), d.Purge(ctx))
}

// busy reports whether a TCP connection goes through the proxy, or a datagram that did may be
// answered still.
func (d *Driver) busy() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	late := time.Now().Add(-answerTime).UnixNano()
	for k, fe := range d.frontends {
		fe.mu.Lock()
		for s := range fe.sessions {
			if k.Protocol == model.TCP || s.asked.Load() > late {
				fe.mu.Unlock()
				return true
			}
		}
		fe.mu.Unlock()
	}
	return false
}
