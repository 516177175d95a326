package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// SetAside implements driver.Driver.
func (d *Driver) SetAside() []driver.SetAside {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Compact(slices.SortedFunc(maps.Values(d.aside), driver.SetAside.Compare))
}

// refused reports whether the kernel refuses what it was asked for, so that a part of it may pass.
// It is no refusal if it could not be asked, or others were in the way.
func refused(err error) bool {
	var exit *exec.ExitError
	var errno unix.Errno
	return errors.Is(err, unix.EOPNOTSUPP) ||
		!errors.Is(err, ErrLocked) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) &&
			!errors.Is(err, unix.EPERM) && (errors.As(err, &exit) && exit.Exited() || errors.As(err, &errno))
}

// admit carries out a plan that was refused as a whole, without the frontends that are to blame.
func (d *Driver) admit(ctx context.Context, p *plan, refusal error) error {
	base, new := p.want, p.delta.Services.Frontends
	if base == nil {
		base = d.state.Clone() // the frontends that change are at first what they were
		rest := p.delta
		rest.Services.Frontends = nil
		base.Apply(rest)
	} else if p.of.services {
		base, new = base.Clone(), p.suspects()
		for k := range new {
			delete(base.Services.Frontends, k)
		}
	}
	aside := d.aside
	if err := d.adoptAgain(ctx, base); err != nil {
		return errors.Join(refusal, err)
	}
	if p.want == nil {
		d.aside = aside
	}
	return d.admitFrontends(ctx, new)
}

// adoptAgain brings the kernel from whatever a refusal has left in step with services.
func (d *Driver) adoptAgain(ctx context.Context, s *state.State) error {
	p, err := d.planAdoption(ctx, s, driver.Keep{})
	if err != nil {
		return err
	}
	return d.apply(ctx, p)
}

// admitFrontends carries out a change of frontends, in halves while it is refused.
func (d *Driver) admitFrontends(ctx context.Context, change map[state.FrontendKey]*state.Frontend) error {
	if len(change) == 0 {
		return nil
	}
	held, aside := d.state, maps.Clone(d.aside)
	refusal := d.applyFrontends(ctx, change)
	if refusal == nil || !refused(refusal) {
		return refusal
	}
	if err := d.adoptAgain(ctx, held.Clone()); err != nil {
		return errors.Join(refusal, err)
	}
	d.aside = aside
	keys := slices.SortedFunc(maps.Keys(change), state.FrontendKey.Compare)
	if len(keys) > 1 {
		for _, half := range [][]state.FrontendKey{keys[:len(keys)/2], keys[len(keys)/2:]} {
			part := map[state.FrontendKey]*state.Frontend{}
			for _, k := range half {
				part[k] = change[k]
			}
			if err := d.admitFrontends(ctx, part); err != nil {
				return err
			}
		}
		return nil
	}
	k := keys[0]
	f := change[k]
	if f == nil {
		return refusal
	}
	if err := d.applyFrontends(ctx, map[state.FrontendKey]*state.Frontend{k: nil}); err != nil {
		return err
	}
	if d.aside == nil {
		d.aside = map[state.FrontendKey]driver.SetAside{}
	}
	d.aside[k] = driver.SetAside{Kind: "Service", Name: f.Service, InForce: model.InForceRest,
		Reason: fmt.Sprintf("the kernel refuses what is made of it for %s: %v; everything else works", k, refusal)}
	return nil
}

func (d *Driver) applyFrontends(ctx context.Context, change map[state.FrontendKey]*state.Frontend) error {
	p, err := d.planUpdate(state.Delta{Services: state.ServicesDelta{Frontends: change}})
	if err != nil {
		return err
	}
	return d.apply(ctx, p)
}

// suspects are the frontends of an adoption for which something was to be added or changed.
func (p *plan) suspects() map[state.FrontendKey]*state.Frontend {
	all := map[state.FrontendKey]*state.Frontend{}
	suspect := func(k state.FrontendKey) {
		if f := p.want.Services.Frontends[k]; f != nil {
			all[k] = f
		}
	}
	for i, c := range p.changes {
		for _, m := range c.add {
			suspect(state.FrontendKey{Addr: m.addr, Protocol: m.protocol, Port: m.port})
		}
		t := p.trees[i]
		t.each(func(at place, keys []state.FrontendKey) {
			t.chains(at, keys, func(name string, _ []string) {
				if c.chains[name] && len(keys) <= leafSize {
					for _, k := range keys {
						suspect(k)
					}
				}
			})
		})
		for k, f := range p.want.Services.Frontends {
			for name := range p.d.families[i].bundle(k, f).chains {
				if c.chains[name] && p.d.families[i].holds(k.Addr) {
					suspect(k)
				}
			}
		}
	}
	return all
}
