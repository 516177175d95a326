package config

import (
	"context"
	"maps"
	"slices"
	"time"

	"sluice.dev/sluice/internal/balancer/health"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// Checker checks backends and reports to Source.Report. Set names those to check from now on; nil:
// no longer. It does not wait for Report.
type Checker interface {
	Set(changes map[health.Key]*health.Target)
}

// findings are what checks found of backends, by farm and backend. A backend counts as up until a
// check fails.
type findings map[string]map[string]*finding

type finding struct {
	down   bool
	why    string
	rising time.Time // when it came up, while its weight rises; else zero
}

// steps is how many steps a weight rises in.
const steps = 10

// effective is a farm as it is to be programmed: as configured, except for what checks found.
func (h findings) effective(f *farm, now time.Time) *model.Farm {
	found := h[f.name]
	if len(found) == 0 {
		return f.base
	}
	m := *f.base
	m.Backends = slices.Clone(f.base.Backends)
	up, rising := 0, false
	for i := range m.Backends {
		b := &m.Backends[i]
		is := found[b.Name]
		if is != nil && is.down && b.State == model.BackendUp {
			b.State, b.Why = model.BackendDown, is.why
		}
		if b.State == model.BackendUp {
			up++
			rising = rising || is != nil && !is.rising.IsZero()
		}
	}
	if up == 0 && f.keepDown {
		return f.base
	}
	if rising {
		for i := range m.Backends {
			b := &m.Backends[i]
			b.Weight *= f.risen(found[b.Name], now)
		}
	}
	return &m
}

// risen is how many steps of its weight a backend has.
func (f *farm) risen(is *finding, now time.Time) int {
	if is == nil || is.rising.IsZero() {
		return steps
	}
	whole := time.Duration(f.slowStart) * time.Second
	return 1 + int(min(max(now.Sub(is.rising), 0)*steps/max(whole, 1), steps-1))
}

// reasons are what checks hold against backends of a farm.
func (h findings) reasons(farm string) map[string]string {
	var all map[string]string
	for name, is := range h[farm] {
		if is.down {
			if all == nil {
				all = map[string]string{}
			}
			all[name] = is.why
		}
	}
	return all
}

// resolved is the check of farms that have none, but forward to Ethernet addresses: a backend whose
// address nobody has would get packets all the same, and lose them.
var resolved = health.Check{Type: health.ARP, Interval: 2 * time.Second, Rise: 1, Fall: 2}.WithDefaults()

// checked is how a farm's backends are checked; nil: they are not.
func (f *farm) checked() *health.Check {
	switch {
	case f == nil:
		return nil
	case f.check == nil && f.base != nil && f.base.Mode == model.DSR:
		return &resolved
	}
	return f.check
}

// targets is what is to be checked of a farm.
func (f *farm) targets() map[string]health.Target {
	check := f.checked()
	if check == nil || served(f) == nil {
		return nil
	}
	all := map[string]health.Target{}
	for _, b := range f.backends {
		if b.Addr.IsValid() && b.State == up && !b.unchecked {
			all[b.Name] = health.Target{Check: check, Addr: b.Addr, Port: portOf(b, f.base)}
		}
	}
	return all
}

// follow adds to changes what is checked otherwise after an edit. What was found of a backend is
// forgotten if it is another server now; another check of the same server has to find it up first.
func (h findings) follow(name string, was, now *farm, changes map[health.Key]*health.Target) {
	if was.checked() == nil && now.checked() == nil {
		return
	}
	before, after := was.targets(), now.targets()
	for backend, t := range after {
		if old, ok := before[backend]; !ok || !old.Equal(t) {
			changes[health.Key{Farm: name, Backend: backend}] = &t
			if old.Addr != t.Addr || old.Port != t.Port {
				h.forget(name, backend)
			}
		}
	}
	for backend := range before {
		if _, ok := after[backend]; !ok {
			changes[health.Key{Farm: name, Backend: backend}] = nil
			h.forget(name, backend)
		}
	}
}

func (h findings) forget(farm, backend string) {
	delete(h[farm], backend)
	if len(h[farm]) == 0 {
		delete(h, farm)
	}
}

// Report takes in what checks found. Each farm concerned is delivered anew.
func (s *Source) Report(results []health.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	touched := map[string]bool{}
	for _, r := range results {
		f := s.doc.farms.Get(r.Farm)
		if _, checked := f.targets()[r.Backend]; !checked {
			continue
		}
		if s.found.enter(f, r, now) {
			touched[r.Farm] = true
		}
	}
	s.deliverFarms(slices.Sorted(maps.Keys(touched)), now)
}

// enter notes a result, and reports whether it changes anything.
func (h findings) enter(f *farm, r health.Result, now time.Time) bool {
	found := h[f.name]
	if found == nil {
		found = map[string]*finding{}
		h[f.name] = found
	}
	is := found[r.Backend]
	switch {
	case r.Up && (is == nil || !is.down):
		return false
	case r.Up && f.slowStart > 0:
		found[r.Backend] = &finding{rising: now}
	case r.Up:
		h.forget(f.name, r.Backend)
	case is != nil && is.down && is.why == r.Why:
		return false
	default:
		found[r.Backend] = &finding{down: true, why: r.Why}
	}
	return true
}

// deliverFarms delivers farms as they are to be programmed now, and those whose weights rise again
// and again.
func (s *Source) deliverFarms(names []string, now time.Time) {
	var events []store.Event
	for _, name := range names {
		f := s.doc.farms.Get(name)
		if served(f) == nil {
			continue
		}
		events = append(events, s.farmEvent(f, now))
	}
	if len(events) > 0 && s.begun {
		s.sink.Apply(events)
	}
}

// farmEvent is a farm that is served, as it is to be programmed now.
func (s *Source) farmEvent(f *farm, now time.Time) store.Event {
	s.settle(f, now)
	return event(f.name, s.found.effective(f, now))
}

// settle ends the rise of weights that have reached their end, and has the timer come back while
// others rise.
func (s *Source) settle(f *farm, now time.Time) {
	whole := time.Duration(f.slowStart) * time.Second
	rising := false
	for name, is := range s.found[f.name] {
		switch {
		case is.rising.IsZero():
		case now.Sub(is.rising) >= whole:
			s.found.forget(f.name, name)
		default:
			rising = true
		}
	}
	if !rising {
		delete(s.rising, f.name)
		return
	}
	s.rising[f.name] = now.Add(max(whole/steps, 100*time.Millisecond))
	s.wakeRise.Set()
}

// rise delivers farms again while weights rise in them.
func (s *Source) rise(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wakeRise:
		case <-timer.C:
		}
		timer.Reset(s.riseDue())
	}
}

// riseDue delivers the farms whose next step is due, and returns the time until the next.
func (s *Source) riseDue() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var due []string
	for name, at := range s.rising {
		if !at.After(now) {
			due = append(due, name)
			delete(s.rising, name)
		}
	}
	slices.Sort(due)
	s.deliverFarms(due, now)
	wait := time.Hour
	for _, at := range s.rising {
		wait = min(wait, at.Sub(now))
	}
	return wait
}
