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
	"sluice.dev/sluice/internal/lib/sift"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// SetAside implements driver.Driver.
func (d *Driver) SetAside() []driver.SetAside {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Concat(slices.Collect(maps.Values(d.rulesAside))...)
	all = slices.AppendSeq(all, maps.Values(d.aside))
	slices.SortFunc(all, driver.SetAside.Compare)
	return slices.Compact(all)
}

// refused reports whether the kernel refuses what it was asked for, so that a part of it may pass.
// It is no refusal if it could not be asked, or others were in the way.
func refused(err error) bool {
	var exit *exec.ExitError
	var errno unix.Errno
	return errors.Is(err, unix.EOPNOTSUPP) ||
		!errors.Is(err, driver.ErrLocked) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) &&
			!errors.Is(err, unix.EPERM) && (errors.As(err, &exit) && exit.Exited() || errors.As(err, &errno))
}

// admit carries out a plan that was refused as a whole, without the rules and the frontends that
// are to blame.
func (d *Driver) admit(ctx context.Context, p *plan, refusal error) error {
	base, new, aside, rulesAside := p.want, p.delta.Services.Frontends, d.aside, d.rulesAside
	if base == nil {
		base = d.state.Clone()
		base.Apply(p.delta)
		for k := range new { // at first they are what they were
			if base.Services.Frontends[k] = d.state.Services.Frontends[k]; base.Services.Frontends[k] == nil {
				delete(base.Services.Frontends, k)
			}
		}
	} else {
		base, aside, rulesAside = base.Clone(), nil, nil
		if p.of.services {
			new = p.suspects()
		}
		for k := range new {
			delete(base.Services.Frontends, k)
		}
	}
	if p.of.policy {
		found, err := d.refusedRules(ctx, base.Policy)
		if err != nil {
			return errors.Join(refusal, err)
		}
		for id := range found {
			delete(base.Policy.Rules, id)
		}
		rulesAside = maps.Clone(rulesAside)
		maps.DeleteFunc(rulesAside, func(id state.RulesID, _ []driver.SetAside) bool {
			_, named := p.delta.Policy.Rules[id]
			return named
		})
		if maps.Copy(found, rulesAside); len(found) > 0 {
			rulesAside = found
		}
	}
	if err := d.adoptAgain(ctx, base, p.keep); err != nil {
		return errors.Join(refusal, err)
	}
	d.aside, d.rulesAside = aside, rulesAside
	return d.admitFrontends(ctx, new)
}

// refusedRules finds the rules that the kernel does not take, in a network namespace of its own.
func (d *Driver) refusedRules(ctx context.Context, p *state.Policy) (map[state.RulesID][]driver.SetAside, error) {
	found := map[state.RulesID][]driver.SetAside{}
	sieve := sift.Sieve[state.RulesID]{
		Apply: func(ids []state.RulesID) error {
			part := *p
			part.Rules = map[state.RulesID]*state.Rules{}
			for _, id := range ids {
				part.Rules[id] = p.Rules[id]
			}
			return d.tryPolicy(ctx, &part)
		},
		Refused: refused,
		SetAside: func(id state.RulesID, refusal error) error {
			blamed, err := d.blamed(ctx, p, id)
			for _, k := range blamed {
				found[id] = append(found[id], driver.SetAside{Kind: string(k.Kind), Name: k.Name, InForce: model.InForceDeny,
					Reason: fmt.Sprintf("the kernel refuses what is made of it: %v; nothing is allowed at the pods and host endpoints that it selects, everything else works", refusal)})
			}
			return err
		},
	}
	return found, sieve.Sift(slices.Sorted(maps.Keys(p.Rules)))
}

// blamed are those of the rules' policies that are refused alone; all, if none is.
func (d *Driver) blamed(ctx context.Context, p *state.Policy, id state.RulesID) (found []model.PolicyKey, err error) {
	whole := p.Rules[id]
	for _, k := range whole.Declared() {
		one := *whole
		one.Tiers = slices.Clone(whole.Tiers)
		for i := range one.Tiers {
			one.Tiers[i].Policies = slices.DeleteFunc(slices.Clone(one.Tiers[i].Policies), func(own *state.PolicyRules) bool { return own.Policy != k })
		}
		part := *p
		part.Rules = map[state.RulesID]*state.Rules{id: &one}
		if err := d.tryPolicy(ctx, &part); refused(err) {
			found = append(found, k)
		} else if err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		found = whole.Declared()
	}
	return found, nil
}

// tryPolicy has the kernel take a policy in a network namespace of its own.
func (d *Driver) tryPolicy(ctx context.Context, p *state.Policy) error {
	for _, j := range d.judges {
		fresh := &judge{family: j.family, names: j.names, written: map[writtenAt]*written{}}
		if err := try(ctx, d.chosen, fresh.enforce(p, nil).image, j.v6, d.refuse); err != nil {
			return err
		}
	}
	return nil
}

// adoptAgain brings the kernel from whatever a refusal has left in step with services.
func (d *Driver) adoptAgain(ctx context.Context, s *state.State, keep driver.Keep) error {
	p, err := d.planAdoption(ctx, s, keep)
	if err != nil {
		return err
	}
	return d.apply(ctx, p)
}

// admitFrontends carries out a change of frontends, in parts while it is refused.
func (d *Driver) admitFrontends(ctx context.Context, change map[state.FrontendKey]*state.Frontend) error {
	sieve := sift.Sieve[state.FrontendKey]{
		Apply: func(keys []state.FrontendKey) error {
			part := map[state.FrontendKey]*state.Frontend{}
			for _, k := range keys {
				part[k] = change[k]
			}
			held, aside, rulesAside := d.state, maps.Clone(d.aside), d.rulesAside
			refusal := d.applyFrontends(ctx, part)
			if refusal != nil && refused(refusal) {
				if err := d.adoptAgain(ctx, held.Clone(), driver.Keep{}); err != nil {
					return fmt.Errorf("undo what was refused (%v): %v", refusal, err) // another answer is no refusal of the change
				}
				d.aside, d.rulesAside = aside, rulesAside
			}
			return refusal
		},
		Refused: refused,
		SetAside: func(k state.FrontendKey, refusal error) error {
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
		},
	}
	return sieve.Sift(slices.SortedFunc(maps.Keys(change), state.FrontendKey.Compare))
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
		t := p.shared[i].tree
		for at, keys := range t.prefixes() {
			t.chains(at, keys, func(name string, _ []string) {
				if c.chains[name] && len(keys) <= leafSize {
					for _, k := range keys {
						suspect(k)
					}
				}
			})
		}
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
