package userspace

import (
	"context"
	"errors"
	"time"

	"sluice.dev/sluice/internal/model"
)

// drainPause is the time between two looks at connections that are to end.
const drainPause = 100 * time.Millisecond

// Drain is for when another program serves all that this driver does. New connections and all
// datagrams pass by the proxy then; Drain returns when the connections that go through it have
// ended, or ctx has, and removes all that Purge does. Without CAP_NET_ADMIN it does only that.
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
	for d.connected() && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(drainPause):
		}
	}
	return errors.Join(err, forget(), d.Purge(ctx))
}

// connected reports whether a TCP connection goes through the proxy.
func (d *Driver) connected() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for k, fe := range d.frontends {
		fe.mu.Lock()
		n := len(fe.sessions)
		fe.mu.Unlock()
		if k.Protocol == model.TCP && n > 0 {
			return true
		}
	}
	return false
}
