package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/source/kinds"
)

// discovery finds out where the API serves the optional kinds.
//
// An API server that is just starting may not know all of its kinds yet, so its word that a kind is
// not served does not count. That a kind is no longer served counts when two checks in a row say
// so.
type discovery struct {
	api       *api
	log       *slog.Logger
	followers []*follower
	kick      wake.Signal // asks for a check at once

	mu      sync.Mutex // held during a check
	missing map[*follower]bool
	doubted time.Time // since when the absence of kinds is in doubt; zero: it is not

	trouble atomic.Pointer[string] // why the last check failed; nil: it succeeded
}

func newDiscovery(a *api, log *slog.Logger, followers []*follower) *discovery {
	return &discovery{api: a, log: log, followers: followers, kick: wake.New(), missing: make(map[*follower]bool)}
}

// run checks from time to time until ctx ends.
func (d *discovery) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	backoff := d.api.timing.first
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.kick:
		case <-timer.C:
		}
		again, err := d.check(ctx)
		switch {
		case err != nil, again:
			timer.Reset(jitter(backoff))
			backoff = min(2*backoff, d.api.timing.last)
		default:
			backoff = d.api.timing.first
			timer.Reset(jitter(d.api.timing.discover))
		}
	}
}

// soon asks for a check.
func (d *discovery) soon() { d.kick.Set() }

// check tells the followers where the API serves their kinds. again means that another check soon
// is needed to know all.
func (d *discovery) check(ctx context.Context) (again bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	served, unknown, err := d.served(ctx)
	d.recordResult(ctx, err)
	if err != nil {
		switch {
		case !apierrors.IsForbidden(err):
			d.doubted = time.Time{}
		case d.trusts(ctx):
			for _, f := range d.followers {
				f.refuse(fmt.Errorf("%w; bind the ClusterRole system:discovery to the agent's user", err))
			}
		}
		return false, err
	}
	asked := false
	believed := sync.OnceValue(func() bool { asked = true; return d.trusts(ctx) })
	for _, f := range d.followers {
		place, known := choose(f.kind.Places, served, unknown)
		if !known || place == nil && !f.isNowhere() && !believed() || !d.certain(f, place) {
			again = true
			continue
		}
		f.moveTo(place)
	}
	if !asked {
		d.doubted = time.Time{}
	}
	return again, nil
}

// recordResult records the result of a check for the status.
func (d *discovery) recordResult(ctx context.Context, err error) {
	if err == nil {
		d.trouble.Store(nil)
		return
	}
	if ctx.Err() != nil {
		return
	}
	reason := err.Error()
	if apierrors.IsUnauthorized(err) {
		reason = unauthorized(err)
	}
	d.trouble.Store(&reason)
}

// trusts reports whether the API server's word counts when it says that it does not serve a kind,
// or does not let us ask.
func (d *discovery) trusts(ctx context.Context) bool {
	if d.doubted.IsZero() {
		d.doubted = time.Now()
	}
	return d.api.ready(ctx) || time.Since(d.doubted) > d.api.timing.doubt
}

// certain reports whether a follower may move to a place. It may not leave its present place,
// unless a second check says so or the other place is preferred.
func (d *discovery) certain(f *follower, place *kinds.Resource) bool {
	f.mu.Lock()
	at := f.place
	f.mu.Unlock()
	if at == nil || place != nil && (*place == *at || *place == f.kind.Places[0]) {
		delete(d.missing, f)
		return true
	}
	seen := d.missing[f]
	d.missing[f] = !seen
	return seen
}

// choose returns the first of some places that is served, or nil if none is. known is false if it
// is unknown whether a better place is served.
func choose(places []kinds.Resource, served map[kinds.Resource]bool, unknown map[string]bool) (place *kinds.Resource, known bool) {
	for i := range places {
		switch {
		case served[places[i]]:
			return &places[i], true
		case unknown[places[i].APIVersion()]:
			return nil, false
		}
	}
	return nil, true
}

// served asks which of the places the API serves. unknown has the groups and versions that it has
// but cannot describe, such as those of an extension API server that is away.
func (d *discovery) served(ctx context.Context) (served map[kinds.Resource]bool, unknown map[string]bool, err error) {
	var groups metav1.APIGroupList
	if err := d.api.read(ctx, "/apis", nil, mediaJSON, &groups); err != nil {
		return nil, nil, err
	}
	versions := make(map[string]bool)
	for i := range groups.Groups {
		for _, v := range groups.Groups[i].Versions {
			versions[v.GroupVersion] = true
		}
	}
	served, unknown = make(map[kinds.Resource]bool), make(map[string]bool)
	asked := make(map[string]bool)
	for _, f := range d.followers {
		for _, p := range f.kind.Places {
			at := p.APIVersion()
			if !versions[at] || asked[at] {
				continue
			}
			asked[at] = true
			var list metav1.APIResourceList
			switch err := d.api.read(ctx, "/apis/"+at, nil, mediaJSON, &list); {
			case apierrors.IsNotFound(err):
			case err != nil:
				unknown[at] = true
			}
			for i := range list.APIResources {
				served[kinds.Resource{Group: p.Group, Version: p.Version, Plural: list.APIResources[i].Name}] = true
			}
		}
	}
	return served, unknown, nil
}
