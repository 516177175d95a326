package upkeep

import (
	"context"
	"net/netip"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// usable are the endpoints to which the frontend's existing connections may go on, sorted.
func usable(p model.Protocol, f *state.Frontend) []netip.AddrPort {
	if p == model.UDP {
		return f.Serving
	}
	return f.Alive
}

// cuts are the connections that may not go on when a frontend changes.
func cuts(k state.FrontendKey, before, after *state.Frontend) (cut []conntrack.Filter) {
	if (before == nil || len(before.Backends) == 0) && after != nil && len(after.Backends) > 0 {
		cut = append(cut, astray(k))
	}
	switch {
	case before == nil:
		return cut
	case after == nil:
		return append(cut, abandoned(k))
	}
	filter := conntrack.Filter{Protocol: k.Protocol, Frontend: netip.AddrPortFrom(k.Addr, k.Port)}
	now := usable(k.Protocol, after)
	for _, b := range usable(k.Protocol, before) {
		if !state.Has(now, b) {
			filter.Backend = b
			cut = append(cut, filter)
		}
	}
	return cut
}

// astray are flows that began before there was anyone to serve them: as long as connection tracking
// has an entry, their packets pass by the rules that translate. What was answered, except for UDP,
// is a connection to somebody else, and goes on.
func astray(k state.FrontendKey) conntrack.Filter {
	at := netip.AddrPortFrom(k.Addr, k.Port)
	return conntrack.Filter{Protocol: k.Protocol, Frontend: at, Backend: at, Unanswered: k.Protocol != model.UDP}
}

// abandoned are flows to what is not served any more. What was answered, except for UDP, goes on.
func abandoned(k state.FrontendKey) conntrack.Filter {
	return conntrack.Filter{Protocol: k.Protocol, Frontend: netip.AddrPortFrom(k.Addr, k.Port), Unanswered: k.Protocol != model.UDP}
}

// frontendsNow returns the kernel's frontends of the same keys.
func (d *Driver) frontendsNow(like map[state.FrontendKey]*state.Frontend) map[state.FrontendKey]*state.Frontend {
	now := make(map[state.FrontendKey]*state.Frontend, len(like))
	if len(like) == 0 {
		return now
	}
	d.Held(func(s *state.State) {
		for k := range like {
			if s.Services != nil {
				now[k] = s.Services.Frontends[k]
			}
		}
	})
	return now
}

// frontendsWithout returns the frontends that the kernel has and that are not wanted; none if
// services are to stay as they are. A sweep deals with all others. The driver does not know what an
// earlier process has left: that is listed, if the plan may remove some of it.
func (d *Driver) frontendsWithout(ctx context.Context, want *state.State, keep driver.Keep, p driver.Plan) map[state.FrontendKey]*state.Frontend {
	if want.Services == nil && want.Farms == nil {
		return nil
	}
	var wanted map[state.FrontendKey]*state.Frontend
	if want.Services != nil {
		wanted = want.Services.Frontends
	}
	gone := map[state.FrontendKey]*state.Frontend{}
	if lister := d.Capabilities().Lister; lister != nil && d.unlisted && !keep.Services && p.Len() > 0 {
		there, err := lister.Frontends(ctx)
		if err != nil {
			d.log.Warn("datagrams to services and farms that went while nothing followed them may still reach their backends", "error", err)
		}
		farms := newFarms()
		farms.replace(want.Farms)
		for k := range there {
			if f := farms.exact[k]; wanted[k] == nil && (f == nil || !translates(f)) {
				gone[k] = &state.Frontend{}
			}
		}
	}
	d.Held(func(s *state.State) {
		if s.Services == nil {
			return
		}
		for k, before := range s.Services.Frontends {
			if wanted[k] == nil {
				gone[k] = before
			}
		}
	})
	return gone
}

// cutsBetween are the connections that may not go on when frontends change.
func cutsBetween(before, after map[state.FrontendKey]*state.Frontend) (all []conntrack.Filter) {
	for k, f := range before {
		all = append(all, cuts(k, f, after[k])...)
	}
	return all
}

// frontendOf is the frontend that a connection was opened to; nil: none.
func frontendOf(s *state.State, f *conntrack.Flow) *state.Frontend {
	if s.Services == nil {
		return nil
	}
	return s.Services.Frontends[state.FrontendKey{Addr: f.Orig.Dst.Addr(), Protocol: f.Protocol, Port: f.Orig.Dst.Port()}]
}

// stillServed reports whether a connection goes where the state sends it: it was opened after its
// endpoint came back.
func (d *Driver) stillServed(f *conntrack.Flow) (is bool) {
	if d.farms.served(f) {
		return true
	}
	d.Held(func(s *state.State) {
		fe := frontendOf(s, f)
		is = fe != nil && state.Has(usable(f.Protocol, fe), f.Reply.Src)
	})
	return is
}

// stale reports whether a connection goes where the state does not send it.
func stale(s *state.State, f conntrack.Flow) bool {
	fe := frontendOf(s, &f)
	switch {
	case fe == nil:
		return false
	case f.Protocol != model.UDP && !f.Translated():
		return !f.Answered() && len(fe.Backends) > 0
	}
	return !state.Has(usable(f.Protocol, fe), f.Reply.Src)
}
