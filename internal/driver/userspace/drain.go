package userspace

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"sluice.dev/sluice/internal/conntrack"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// drainPause is the time between two looks at connections that are to end.
const drainPause = 100 * time.Millisecond

// Drain is for when another program serves all that this driver does. New connections and all
// datagrams pass by the proxy then; Drain returns when the connections that go through it have
// ended, or ctx has, and removes all that Purge does. Without CAP_NET_ADMIN it does only that.
func (d *Driver) Drain(ctx context.Context) error {
	if d.redirect == nil {
		return d.Purge(ctx)
	}
	if err := d.redirect.drain(); err != nil {
		return err
	}
	err := d.forgetDatagrams()
	for d.connected() && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(drainPause):
		}
	}
	// An answer that was on its way may have begun a flow again.
	return errors.Join(err, d.forgetDatagrams(), d.Purge(ctx))
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

// forgetDatagrams has connection tracking forget the flows of UDP, which it knows as not
// translated: the next datagram of each begins a new one, for whoever translates it.
func (d *Driver) forgetDatagrams() error {
	var flows []conntrack.Filter
	d.Held(func(s *state.State) {
		for k := range s.Services.Frontends {
			if k.Protocol == model.UDP {
				at := netip.AddrPortFrom(k.Addr, k.Port)
				flows = append(flows, conntrack.Filter{Protocol: k.Protocol, Frontend: at, Backend: at})
			}
		}
	})
	var tracked *conntrack.Conn
	err := d.sockets.in(func() (err error) {
		tracked, err = conntrack.Open()
		return err
	})
	if err != nil {
		return err
	}
	_, err = tracked.Delete(context.Background(), flows, nil)
	return errors.Join(err, tracked.Close())
}
