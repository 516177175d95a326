package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// plan is a change of what is served.
type plan struct {
	d       *Driver
	delta   state.ServicesDelta
	named   map[state.FrontendKey]*state.Frontend // those of them that are set aside are tried again
	whole   bool                                  // of Adopt: all that is set aside is tried again
	missing []string                              // of what leads packets to the proxy
	kept    driver.Kept
}

// Len implements driver.Plan.
func (p *plan) Len() int { return p.delta.Len() + len(p.missing) }

// Kept implements driver.Plan.
func (p *plan) Kept() driver.Kept { return p.kept }

// String implements driver.Plan.
func (p *plan) String() string {
	lines := slices.Clone(p.missing)
	for _, k := range slices.SortedFunc(maps.Keys(p.delta.Frontends), state.FrontendKey.Compare) {
		if f := p.delta.Frontends[k]; f != nil {
			lines = append(lines, fmt.Sprintf("serve %v of %v by %s", k, f.Service, model.Count(len(f.Backends), "backend")))
		} else {
			lines = append(lines, fmt.Sprintf("stop serving %v", k))
		}
	}
	if rest := p.Len() - len(lines); rest > 0 {
		lines = append(lines, "change "+model.Count(rest, "other setting"))
	}
	return strings.Join(append(lines, ""), "\n")
}

// Apply implements driver.Plan. What is new is ready before packets are led to it, and what goes is
// closed after they are not any more.
func (p *plan) Apply(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	first := p.whole && d.want == nil
	if first {
		d.want, d.held = state.NewServices(), state.NewServices()
	}
	if d.want == nil {
		return nil // the services stay as they are: there are none
	}
	change := p.delta
	change.Frontends = d.prepare(p.frontends())
	if first && d.options.Remembered != nil {
		clients, err := d.options.Remembered(ctx)
		if err != nil {
			d.log.Warn("cannot tell where another program sent clients of services with session affinity", "error", err)
		}
		d.recall(clients)
	}
	if change.Settings != nil {
		d.settings.Store(change.Settings)
	}
	if d.redirect != nil {
		if err := d.redirect.apply(d.held, change); err != nil {
			return fmt.Errorf("lead packets to the proxy: %w", err)
		}
	}
	for k, f := range change.Frontends {
		d.frontends[k].settle(f)
		if f == nil {
			delete(d.frontends, k)
		}
	}
	d.held.Apply(change)
	d.want.Apply(p.delta)
	return nil
}

// frontends are those that change, and those that are tried again.
func (p *plan) frontends() map[state.FrontendKey]*state.Frontend {
	all := maps.Clone(p.delta.Frontends)
	if all == nil {
		all = map[state.FrontendKey]*state.Frontend{}
	}
	for k := range p.d.aside {
		_, changes := all[k]
		if _, named := p.named[k]; !changes && (named || p.whole) {
			all[k] = p.d.want.Frontends[k]
		}
	}
	return all
}

// prepare returns what is to be served, nil for what is not, with all listening that has to.
func (d *Driver) prepare(want map[state.FrontendKey]*state.Frontend) map[state.FrontendKey]*state.Frontend {
	served := make(map[state.FrontendKey]*state.Frontend, len(want))
	for k, f := range want {
		delete(d.aside, k)
		if served[k] = nil; f == nil || k.Protocol == model.SCTP {
			continue
		}
		fe := d.frontends[k]
		if fe == nil {
			fe = &frontend{d: d, key: k, sessions: map[*session]struct{}{}, flows: map[netip.AddrPort]*flow{}}
			d.frontends[k] = fe
		}
		if err := fe.listen(f); err != nil {
			d.aside[k] = driver.SetAside{Kind: string(model.ServiceKind), Name: f.Service, Reason: fmt.Sprintf("%v is not served: %s", k, whyNot(err))}
			continue
		}
		fe.update(f)
		served[k] = f
	}
	return served
}

// whyNot says for people why the driver can't listen, and what would help.
func whyNot(err error) string {
	switch {
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return "this machine does not have the address, and serving others takes CAP_NET_ADMIN"
	case errors.Is(err, unix.EACCES):
		return "a port this low takes CAP_NET_BIND_SERVICE, or a lower net.ipv4.ip_unprivileged_port_start"
	case errors.Is(err, unix.EADDRINUSE):
		return "another program listens there; stop it, or give the service another port"
	}
	return err.Error()
}

// difference is what makes one the other; with keep, nothing goes, and its number is returned.
func difference(have, want *state.Services, keep bool) (d state.ServicesDelta, kept int) {
	d = driver.Whole(want)
	for k := range have.Frontends {
		if want.Frontends[k] == nil && keep {
			kept++
		} else if want.Frontends[k] == nil {
			d.Frontends[k] = nil
		}
	}
	addresses := func(have map[netip.Addr]struct{}, to map[netip.Addr]bool) {
		for a := range have {
			to[a] = to[a] || keep
		}
	}
	addresses(have.ClusterIPs, d.ClusterIPs)
	addresses(have.OtherIPs, d.OtherIPs)
	addresses(have.Hairpins, d.Hairpins)
	addresses(have.Peers, d.Peers)
	return changes(have, d), kept
}

// changes are those of a delta that change something.
func changes(have *state.Services, d state.ServicesDelta) state.ServicesDelta {
	if d.Settings != nil && d.Settings.Equal(have.Settings) {
		d.Settings = nil
	}
	d.Frontends = maps.Clone(d.Frontends)
	maps.DeleteFunc(d.Frontends, func(k state.FrontendKey, f *state.Frontend) bool { return f.Equal(have.Frontends[k]) })
	addresses := func(have map[netip.Addr]struct{}, d map[netip.Addr]bool) map[netip.Addr]bool {
		d = maps.Clone(d)
		maps.DeleteFunc(d, func(a netip.Addr, in bool) bool {
			_, is := have[a]
			return is == in
		})
		return d
	}
	d.ClusterIPs, d.OtherIPs = addresses(have.ClusterIPs, d.ClusterIPs), addresses(have.OtherIPs, d.OtherIPs)
	d.Hairpins, d.Peers = addresses(have.Hairpins, d.Hairpins), addresses(have.Peers, d.Peers)
	return d
}
