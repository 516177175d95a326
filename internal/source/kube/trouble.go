package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/source/calico"
	"sluice.dev/sluice/internal/source/kinds"
)

// trouble is the reason why a kind cannot be followed at present. The zero value is none.
type trouble struct {
	reason string
	// common means that the cause may not lie in the kind: the API server cannot be reached, or
	// does not accept our credentials. The source reports it once for all kinds affected.
	common bool
}

// tooShort is how many watches in a row have to end at once before that is reported.
const tooShort = 5

// fail records why an attempt failed. asks are the requests for a list that the attempt was to
// meet. It returns the time until the next attempt; 0 means the usual back-off.
func (f *follower) fail(ctx context.Context, err error, asks []chan struct{}) time.Duration {
	ready := apierrors.IsForbidden(err) && f.api.ready(ctx)
	f.mu.Lock()
	defer f.notify()
	defer f.mu.Unlock()
	if apierrors.IsForbidden(err) && f.doubts(ready) {
		f.asks = append(f.asks, asks...)
		return 0
	}
	answered := apierrors.IsForbidden(err) || apierrors.IsNotFound(err) && !f.kind.Optional
	if answered && ctx.Err() == nil {
		release(asks)
	} else {
		f.asks = append(f.asks, asks...)
	}
	switch {
	case ctx.Err() != nil:
		return 0
	case isExpired(err), errors.Is(err, errRewound):
		f.log.Info("reading everything again", "error", err)
		f.version = ""
		return 0
	case apierrors.IsNotFound(err) && f.kind.Optional:
		f.lost()
		return 0
	}
	f.setTrouble(f.explain(err))
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		return jitter(min(time.Duration(seconds)*time.Second, f.api.timing.answer))
	}
	if !answered {
		return 0
	}
	if f.phase != listed {
		f.phase = absent
		if apierrors.IsForbidden(err) {
			f.phase = denied
		}
	}
	return jitter(f.api.timing.refused)
}

// doubts reports whether a refusal may come from an API server that is just starting.
func (f *follower) doubts(ready bool) bool {
	if f.doubted.IsZero() {
		f.doubted = time.Now()
	}
	return !ready && time.Since(f.doubted) < f.api.timing.doubt
}

// resource is where the API serves the kind, or is thought to.
func (f *follower) resource() kinds.Resource { return ptr.Deref(f.place, f.kind.Places[0]) }

// explain describes what is wrong and what to do.
func (f *follower) explain(err error) trouble {
	place := f.resource()
	var status apierrors.APIStatus
	_, unreached := errors.AsType[unreachable](err)
	switch {
	case unreached, errors.Is(err, errSilent):
		return trouble{reason: err.Error(), common: true}
	case !errors.As(err, &status):
		return trouble{reason: "read " + place.String() + ": " + err.Error()}
	case apierrors.IsUnauthorized(err):
		return trouble{reason: unauthorized(err), common: true}
	case apierrors.IsForbidden(err):
		return trouble{reason: fmt.Sprintf("%s; allow it by a rule of the agent's ClusterRole: apiGroups: [%q], resources: [%q], verbs: [list, watch]",
			status.Status().Message, place.Group, place.Plural)}
	case apierrors.IsNotFound(err):
		return trouble{reason: fmt.Sprintf("the API does not serve %s; it takes a Kubernetes that has %s %s", place, place.APIVersion(), place.Plural)}
	}
	return trouble{reason: "the API server fails to serve " + place.String() + ": " + err.Error()}
}

func unauthorized(err error) string {
	return "the API server does not accept the credentials: " + err.Error() + "; renew the token or certificate that the kubeconfig file names"
}

// setTrouble records a trouble, and logs it if it is new. The source logs what several kinds have
// in common.
func (f *follower) setTrouble(t trouble) {
	if t != f.trouble && !t.common {
		f.log.Warn("a kind of objects cannot be read; what was read of it before stays in force", "reason", t.reason)
	}
	f.trouble = t
	if f.since.IsZero() {
		f.since = time.Now()
	}
	if t.common && f.away.IsZero() {
		f.away = time.Now()
	}
}

// clearTrouble records that the kind can be read, and reports whether it could not before.
func (f *follower) clearTrouble() (cleared bool) {
	f.doubted = time.Time{}
	if f.trouble == (trouble{}) {
		return false
	}
	if !f.trouble.common {
		f.log.Info("a kind of objects can be read again")
	}
	f.trouble, f.since, f.away = trouble{}, time.Time{}, time.Time{}
	return true
}

// logFaults logs new faults, and faults that are gone.
func (f *follower) logFaults(was, is map[model.Name]fault) {
	for name, fault := range is {
		f.logFault(name, was[name], fault)
	}
	for name, gone := range was {
		if _, still := is[name]; !still {
			f.logFault(name, gone, fault{})
		}
	}
}

func (f *follower) logFault(name model.Name, was, is fault) {
	switch {
	case was == is:
	case is != (fault{}):
		f.log.Warn("object is at fault", "object", f.refOf(name), "reason", is.reason, "inForce", is.inForce)
	default:
		f.log.Info("object is no longer at fault", "object", f.refOf(name))
	}
}

// refOf returns the object's name for users.
func (f *follower) refOf(name model.Name) model.Ref {
	if name.Name == "" {
		return model.Ref{Kind: f.kind.Kind + " without a name"}
	}
	return model.Ref{Kind: f.kind.Kind, Name: name}
}

// issues returns everything that is wrong with the kind and its objects, sorted, without what
// several kinds may have in common.
func (f *follower) issues() []model.Issue {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []model.Issue
	place := f.resource()
	if f.trouble.reason != "" && !f.trouble.common {
		all = append(all, model.Issue{Object: model.Ref{Kind: f.kind.Kind}, Source: place.APIVersion(), Reason: f.trouble.reason})
	}
	if f.short >= tooShort {
		all = append(all, model.Issue{Object: model.Ref{Kind: f.kind.Kind}, Source: place.APIVersion(),
			Reason: "the API server, or a proxy on the way to it, ends watches at once, again and again; changes come late"})
	}
	for _, name := range slices.SortedFunc(maps.Keys(f.ledger.faults), model.Name.Compare) {
		fault := f.ledger.faults[name]
		all = append(all, model.Issue{
			Object: f.refOf(name), Source: place.APIVersion(), Reason: fault.reason, InForce: fault.inForce, Everywhere: true,
		})
	}
	return all
}

// following returns the status of the kind.
func (f *follower) following() source.Following {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := source.Following{
		Kind: f.kind.Kind, Synced: f.phase == listed || f.phase == absent && f.kind.Optional, Faults: len(f.ledger.faults),
		Reconnects: f.reconnects, Lists: f.lists, ListTook: model.Duration(f.listTook),
	}
	if !f.since.IsZero() {
		s.Behind = model.Duration(time.Since(f.since))
	}
	return s
}

// lacking lists what has never been read of the kind, sorted.
func (f *follower) lacking() (reasons []string, objects []model.Ref) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.phase == listed && f.kind.Minor, f.phase == absent && f.kind.Optional:
		return nil, nil
	case f.phase == listed:
		holes := f.ledger.holes()
		for _, name := range slices.SortedFunc(maps.Keys(holes), model.Name.Compare) {
			reasons = append(reasons, f.refOf(name).String()+": "+holes[name])
			objects = append(objects, calico.KnownAs(model.Ref{Kind: f.kind.Kind, Name: name})...)
		}
		return reasons, objects
	}
	return []string{string(f.kind.Kind) + ": " + cmp.Or(f.trouble.reason, "it has not been read yet")}, nil
}
