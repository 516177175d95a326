package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

const (
	// acceptedCondition is False while an object is at fault, and True once it was mended. An
	// object that never was at fault does not have it.
	acceptedCondition = "sluice.dev/Accepted"
	conditionManager  = "sluice" // owns the condition
	mediaApplyPatch   = "application/apply-patch+yaml"
)

// Conditions reports faults to the Kubernetes API as a condition of the objects at fault, where
// their kind has conditions: Services and ClusterNetworkPolicies.
//
// It takes only faults that every node finds (model.Issue.Everywhere). So every node may write, and
// none has to be chosen: each looks at the object after a random time, and writes only if the
// condition does not say so yet, which it does once one of them was there. A fault that goes is
// treated alike, also one that went while no agent ran.
//
// Nothing waits for it. A failure is logged once, and tried again.
type Conditions struct {
	api  *api
	log  *slog.Logger
	pace pace
	wake wake.Signal // set when faults changes

	mu       sync.Mutex
	reported bool
	faults   map[model.Ref]string // what is wrong with each object; replaced as a whole

	// The following fields belong to Run alone.
	states  map[model.Ref]*conditionState // of no object: conditions of those not at fault are to be looked for
	failing bool                          // the last attempt failed
}

// conditionState is what is to be said of one object.
type conditionState struct {
	fault string    // "": it is not at fault any more
	due   time.Time // when to look at it
}

// NewConditions returns a writer of conditions. It does nothing until it runs.
func NewConditions(config Config, log *slog.Logger) *Conditions {
	return &Conditions{api: config.api(usualTiming(), log), log: log, pace: usualPace, wake: wake.New(), states: map[model.Ref]*conditionState{}}
}

// Report sets the present faults; what is not among them is taken to be mended, so all objects
// should have been read. It returns at once, and is safe for concurrent use.
func (c *Conditions) Report(issues []model.Issue) {
	now := map[model.Ref]string{}
	for _, i := range slices.SortedFunc(slices.Values(issues), model.Issue.Compare) {
		if kind := kinds.Find(i.Object.Kind); !i.Everywhere || i.Object.Name.Name == "" || kind == nil || !kind.Conditions {
			continue
		}
		if text, known := now[i.Object]; known {
			now[i.Object] = text + "; " + i.Reason
		} else if len(now) < maxEvents {
			now[i.Object] = i.Reason
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reported && maps.Equal(now, c.faults) {
		return
	}
	c.reported, c.faults = true, now
	c.wake.Set()
}

// Run writes conditions until ctx ends.
func (c *Conditions) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-c.wake: // the first report
	}
	c.states[model.Ref{}] = &conditionState{due: time.Now().Add(c.pace.spread + rand.N(c.pace.spread))}
	for {
		c.follow()
		wait := c.step(ctx)
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-time.After(wait):
		}
	}
}

// follow notes what has come to be at fault, and what is no longer.
func (c *Conditions) follow() {
	c.mu.Lock()
	faults := c.faults
	c.mu.Unlock()
	for object, s := range c.states {
		if _, still := faults[object]; !still && s.fault != "" {
			c.states[object] = &conditionState{due: time.Now().Add(rand.N(c.pace.spread))}
		}
	}
	for object, fault := range faults {
		if s := c.states[object]; s == nil || s.fault != fault {
			c.states[object] = &conditionState{fault: fault, due: time.Now().Add(rand.N(c.pace.spread))}
		}
	}
}

// step does what is due first, if anything is, and returns when to come back.
func (c *Conditions) step(ctx context.Context) time.Duration {
	var next model.Ref
	var s *conditionState
	for object, candidate := range c.states {
		if s == nil || candidate.due.Before(s.due) {
			next, s = object, candidate
		}
	}
	if s == nil {
		return time.Hour
	}
	if wait := time.Until(s.due); wait > 0 {
		return wait
	}
	var err error
	if next == (model.Ref{}) {
		err = c.findStale(ctx)
	} else {
		err = c.settle(ctx, next, s.fault)
	}
	switch {
	case err != nil:
		s.due = time.Now().Add(jitter(c.pace.failed))
	case s.fault == "":
		delete(c.states, next)
	default:
		s.due = time.Now().Add(jitter(c.pace.others))
	}
	if err != nil && ctx.Err() == nil && !c.failing {
		c.log.Warn("faults cannot be reported as conditions; trying again", "object", next, "error", err)
	}
	c.failing = err != nil
	return c.pace.between
}

// findStale has all objects looked at that have the condition and are not at fault.
func (c *Conditions) findStale(ctx context.Context) error {
	for i := range kinds.All {
		kind := &kinds.All[i]
		if !kind.Conditions {
			continue
		}
		var list metav1.PartialObjectMetadataList
		err := c.api.read(ctx, kind.Places[0].Path(), url.Values{"resourceVersion": {"0"}}, mediaMetadata, &list)
		switch {
		case apierrors.IsNotFound(err) && kind.Optional:
			continue
		case err != nil:
			return fmt.Errorf("list %v: %w", kind.Places[0], err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			ref := model.Ref{Kind: kind.Kind, Name: model.Name{Namespace: o.Namespace, Name: o.Name}}
			if c.states[ref] == nil && slices.ContainsFunc(o.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Manager == conditionManager }) {
				c.states[ref] = &conditionState{due: time.Now()}
			}
		}
	}
	return nil
}

// conditioned is of an object what its condition depends on.
type conditioned struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Status   struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// settle makes the condition of an object say what is wrong with it, if it does not. Where nothing
// is, nothing is written unless the condition says something else.
func (c *Conditions) settle(ctx context.Context, object model.Ref, fault string) error {
	kind := kinds.Find(object.Kind)
	found, err := named[conditioned](ctx, c.api, kind.Places[0], object.Name, mediaJSON, true)
	if apierrors.IsNotFound(err) || err == nil && found == nil {
		return nil
	}
	if err != nil {
		return err
	}
	meta, is := &found.Metadata, apimeta.FindStatusCondition(found.Status.Conditions, acceptedCondition)
	want := metav1.Condition{
		Type: acceptedCondition, Status: metav1.ConditionTrue, Reason: "Accepted", Message: "it is carried out as it is written",
		ObservedGeneration: meta.Generation, LastTransitionTime: metav1.Now(),
	}
	if fault != "" {
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, "Fault", public(fault, object.Name.Namespace)
	}
	switch {
	case is == nil && fault == "":
		return nil
	case is != nil && is.Status == want.Status:
		if fault == "" || is.Message == want.Message && is.ObservedGeneration == want.ObservedGeneration {
			return nil
		}
		want.LastTransitionTime = is.LastTransitionTime
	}
	_, err = c.api.applyStatus(ctx, kind, object.Name, meta.UID, conditionManager, map[string]any{"conditions": []metav1.Condition{want}})
	return err
}
