package nftables

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
)

// This file is about adopting a kernel without taking from it what want may lack.

// AdoptKeeping implements driver.Keeper. After a plan that kept something, Update fails.
func (d *Driver) AdoptKeeping(ctx context.Context, want *state.State) (driver.Plan, int, error) {
	return d.adoptTrying(ctx, want, true)
}

// sameSets reports whether the kernel has all of this program's sets, whatever else.
func (a *adoption) sameSets() bool {
	return !slices.ContainsFunc(a.d.prog.sets, func(s *set) bool { return a.have.sets[s.name] != s.def() })
}

// settleRest plans what becomes of the elements that want has no use for.
func (a *adoption) settleRest(content map[*set]map[elementKey]element) {
	if a.keeping {
		for _, fp := range a.d.prog.fam {
			for _, s := range []*set{fp.frontends, fp.otherIPs} {
				for _, e := range content[s] {
					if a.stays(&e) {
						a.kept++
					}
				}
			}
		}
	}
	for s, rest := range content {
		for _, e := range rest {
			switch {
			case a.kept > 0 && a.stays(&e):
				a.keepElement(&e)
			case a.reused[s]:
				a.change.batch.delete(&e)
			}
		}
	}
}

// stays reports whether an element that want has no use for may belong to something that
// want lacks: not if it is a setting's, or a remnant of a frontend that want names or named.
func (a *adoption) stays(e *element) bool {
	if e.set.interval && len(e.set.key) == 1 {
		return false
	}
	k, ok := e.frontend()
	if !ok {
		return true // an address
	}
	if _, named := a.want.Frontends[k]; named || a.d.state == nil {
		return !named
	}
	_, was := a.d.state.Frontends[k]
	return !was // what was named since this driver began was seen to go
}

// keepElement keeps an element, with the chain that it leads to, and writes it again where
// its set is created anew.
func (a *adoption) keepElement(e *element) {
	if name := e.verdict.chain; isLearn(name) {
		fp := a.d.prog.family(!strings.HasPrefix(name, ipv6.name+"-"))
		if seconds, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:]); err == nil {
			a.learn[name] = fp.learnChain(time.Duration(seconds) * time.Second)
			a.change.learn[name]++
		}
	}
	a.change.sums[e.set.id].add(e)
	if !a.reused[e.set] {
		a.change.batch.add(e)
	}
}
