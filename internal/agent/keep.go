package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// The agent keeps no state on disk: what the kernel holds is all that is left of
// an earlier life. Until the source has read everything once, nothing tells what
// was deleted from what merely can't be read, so nothing is taken from the kernel.

// look asks the source whether something is lacking still, and reports whether
// that matters less than before: if nothing is lacking any more, the kernel is to be adopted for good. It comes before
// compile, so that what the source says is in the store by then.
func (l *loop) look() (changed bool) {
	if !l.lacking {
		return false
	}
	s := l.sourceStatus()
	changed = l.open(slices.Contains(s.Unread, store.Pods.String()))
	if len(s.Lacking) > 0 {
		return changed
	}
	l.lacking, l.stale, l.had = false, true, nil
	return true
}

// open has policy cut nobody off while no Pod could be read, and reports whether that is news.
func (l *loop) open(unread bool) (changed bool) {
	if unread == l.unread {
		return false
	}
	l.unread = unread
	l.compiling.Lock()
	l.Compiler.SetPodsUnread(unread)
	l.compiling.Unlock()
	if unread {
		l.Log.Error("not ready: " + Unread([]string{store.Pods.String()}))
	} else {
		l.Log.Info("Pods have been read: policy is in force")
	}
	return true
}

// Unread says in words what follows from kinds of which nothing was read since the start.
func Unread(kinds []string) string {
	text := strings.Join(kinds, ", ") + ": none could be read since the start"
	if slices.Contains(kinds, store.Pods.String()) {
		text += "; policy is not in force, but for pods that an earlier agent knew: what all others send and get passes"
	}
	return text
}

// note remembers which frontends have had endpoints: once those of a frontend were
// read, those in the kernel are no better.
func (l *loop) note(d state.Delta) {
	for k, f := range d.Services.Frontends {
		if f != nil && hasEndpoints(f) {
			l.had[k] = true
		}
	}
}

// adopt plans to bring the whole kernel in step: taking nothing from it while something is lacking.
func (l *loop) adopt(ctx context.Context) (p driver.Plan, kept int, err error) {
	return Adopt(ctx, l.Driver, l.Compiler.State(), l.lacking, l.sourceStatus().LackingPolicies, l.had)
}

// keeps records how much an adoption left in the kernel that is only kept: frontends, and parts of policy.
func (l *loop) keeps(kept int) {
	l.keeping = kept > 0
	l.mu.Lock()
	was := l.record.kept
	l.record.kept = kept
	l.mu.Unlock()
	switch {
	case kept > 0 && was == 0:
		l.Log.Warn("the kernel has services or policies that may belong to what can't be read; they stay until all is read once", "elements", kept, "lacking", l.sourceStatus().Lacking)
	case kept == 0 && was > 0:
		l.Log.Info("the kernel has nothing any more that was only kept", "were", was)
	}
}

// Adopt plans to bring the kernel in step with want. If something may be lacking
// in want, the plan takes nothing from the kernel, as far as the driver knows how, and kept is how
// much stays for that reason alone: frontends, and parts of policy. The frontends in had have had
// endpoints in this life: if they have none now, they lost them. If policies are all that is lacking, they
// are named.
func Adopt(ctx context.Context, d driver.Driver, want *state.State, lacking bool, policies []model.PolicyKey, had map[state.FrontendKey]bool) (p driver.Plan, kept int, err error) {
	keeper, ok := d.(driver.Keeper)
	if !ok || !lacking {
		p, err = d.Adopt(ctx, want)
		return p, 0, err
	}
	if len(policies) > 0 {
		return keeper.AdoptKeeping(ctx, want, policies)
	}
	p, kept, err = keeper.AdoptKeeping(ctx, withBackends(want, had), nil)
	if err == nil && kept == 0 {
		// The kernel has nothing that may be lacking, so those without endpoints are new to it, or
		// were put there by us: they are programmed as they stand, as Update does it.
		return keeper.AdoptKeeping(ctx, want, nil)
	}
	return p, kept, err
}

// withBackends is the state without those frontends that never had an endpoint: theirs may be
// what is lacking, and then those in the kernel are better.
func withBackends(want *state.State, had map[state.FrontendKey]bool) *state.State {
	s := *want.Services
	s.Frontends = maps.Clone(s.Frontends)
	maps.DeleteFunc(s.Frontends, func(k state.FrontendKey, f *state.Frontend) bool {
		return !hasEndpoints(f) && !had[k]
	})
	return &state.State{Services: &s, Policy: want.Policy}
}

func hasEndpoints(f *state.Frontend) bool { return len(f.Backends) > 0 || len(f.Local) > 0 }

// Contradicts warns those who ask what is wanted that the kernel may do otherwise while it keeps
// something; policy says whether policy is carried out.
func Contradicts(policy bool, kept int, lacking []string) string {
	text := "the kernel may do otherwise, as services of an earlier agent still work"
	if policy {
		text += ", and pods whose policies did not change since the start are still judged by what it programmed"
	}
	return text + ": " + Keeping(kept, lacking)
}

// maxLacking bounds what is named of what is lacking; the source's faults name all.
const maxLacking = 5

// Keeping says in words what is kept, and how that ends.
func Keeping(kept int, lacking []string) string {
	if len(lacking) == 0 {
		return Count(kept, "element") + " of services or policies in the kernel still to be removed: all has been read, and nothing declares any of it"
	}
	if len(lacking) > maxLacking {
		lacking = append(lacking[:maxLacking:maxLacking], fmt.Sprintf("and %d more", len(lacking)-maxLacking))
	}
	return fmt.Sprintf("%s of services or policies in the kernel may belong to what could not be read since the start (%s): kept until that is mended or deleted; to remove everything, stop the agent and run 'sluice cleanup'",
		Count(kept, "element"), strings.Join(lacking, "; "))
}
