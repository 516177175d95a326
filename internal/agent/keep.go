package agent

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/store"
)

// The agent keeps no state on disk: the kernel holds all that is left of an earlier agent. Until
// the source has read everything once, an object that was deleted looks like one that cannot be
// read, so nothing is removed from the kernel.

// checkSource asks the source what is still lacking, and reports whether that has changed: once
// nothing is lacking, the kernel is adopted for good. It is called before compile, so that the
// store has by then what the source says.
func (l *loop) checkSource() (changed bool) {
	was := l.lacking
	if !was.Any && len(was.Policies) == 0 {
		return false
	}
	s := Await(source.Status{}, l.Store) // what has been read once is not lacking again
	if was.Any {
		s = l.sourceStatus()
	}
	changed = l.setPodsUnread(slices.Contains(s.Unread, model.PodKind))
	l.lacking = Lacking(s)
	if !l.lacking.Any {
		l.Store.SetWhole()
	}
	l.kernel.Lack(l.lacking)
	if l.Compiler.Addresses != nil {
		l.compiling.Lock()
		l.Compiler.Addresses.SetLacking(l.lacking.Any && len(l.lacking.Policies) == 0)
		l.compiling.Unlock()
	}
	return changed || was.Any && !l.lacking.Any || !slices.Equal(was.Policies, l.lacking.Policies)
}

// Lacking translates what a source lacks for the reconciler. If only single objects are lacking,
// and all of them are policies, the kernel need not keep anything else. Policies that wait have
// been read, so nothing else is kept because of them.
func Lacking(s source.Status) reconcile.Lacking {
	l := reconcile.Lacking{Any: len(s.Lacking) > len(s.Waiting)}
	isOther := func(o model.Ref) bool { return !slices.Contains(model.PolicyKinds, o.Kind) }
	if !l.Any || len(s.LackingObjects) > 0 && !slices.ContainsFunc(s.LackingObjects, isOther) {
		l.Policies = slices.Concat(s.LackingObjects, s.Waiting)
		slices.SortFunc(l.Policies, model.Ref.Compare)
	}
	return l
}

// Await adds to what a source lacks the policies that have waited since the start: an earlier agent
// may have carried them out.
func Await(s source.Status, objects *store.Store) source.Status {
	s.Waiting, s.Lacking = nil, slices.Clone(s.Lacking)
	for _, p := range objects.Awaiting() {
		s.Waiting = append(s.Waiting, p.Key)
		s.Lacking = append(s.Lacking, fmt.Sprintf("%v waits for %v", p.Key, p.For))
	}
	return s
}

// setPodsUnread opens policy while no Pod could be read, and reports whether that has changed.
func (l *loop) setPodsUnread(unread bool) (changed bool) {
	if unread == l.unread {
		return false
	}
	l.unread = unread
	l.compiling.Lock()
	l.Compiler.SetPodsUnread(unread)
	l.compiling.Unlock()
	if unread {
		l.Log.Error("not ready: " + Unread([]model.Kind{model.PodKind}))
	} else {
		l.Log.Info("Pods have been read: policy is in force")
	}
	return true
}

// Unread describes what follows if kinds could not be read since the start.
func Unread(kinds []model.Kind) string {
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = string(kind)
	}
	text := strings.Join(names, ", ") + ": none could be read since the start"
	if slices.Contains(kinds, model.PodKind) {
		text += "; policy is not in force, except for pods that an earlier agent knew: what all others send and get passes"
	}
	return text
}

// recordKept records how many frontends and parts of policy an adoption only kept.
func (l *loop) recordKept(kept int) {
	l.mu.Lock()
	was := l.record.kept
	l.record.kept = kept
	l.mu.Unlock()
	switch {
	case kept > 0 && was == 0:
		l.Log.Warn("the kernel has services or policies that may belong to what cannot be read; they stay until all is read once", "elements", kept, "lacking", l.sourceStatus().Lacking)
	case kept == 0 && was > 0:
		l.Log.Info("the kernel has nothing any more that was only kept", "were", was)
	}
}

// Contradicts is the warning beside an answer about the desired state that the kernel may differ
// from it while it keeps something; policy says whether policy is carried out.
func Contradicts(policy bool, kept int, lacking []string) string {
	text := "the kernel may do otherwise, as services of an earlier agent still work"
	if policy {
		text += ", and pods whose policies did not change since the start are still judged by what it programmed"
	}
	return text + ": " + Keeping(kept, lacking)
}

// maxLacking bounds what is named of what is lacking; the source's faults name all.
const maxLacking = 5

// Keeping describes what the kernel keeps, and how that ends.
func Keeping(kept int, lacking []string) string {
	if len(lacking) == 0 {
		return model.Count(kept, "element") + " of services or policies in the kernel still to be removed: all has been read, and nothing declares any of it"
	}
	if len(lacking) > maxLacking {
		lacking = append(lacking[:maxLacking:maxLacking], fmt.Sprintf("and %d more", len(lacking)-maxLacking))
	}
	return fmt.Sprintf("%s of services or policies in the kernel may belong to what could not be read since the start, or waits (%s): kept until that is mended or deleted; to remove everything, stop the agent and run 'sluice cleanup'",
		model.Count(kept, "element"), strings.Join(lacking, "; "))
}
