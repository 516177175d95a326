package kube

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
type Conditions struct{ reports }

// NewConditions returns a writer of conditions. It does nothing until it runs.
func NewConditions(config Config, log *slog.Logger) *Conditions {
	c := &Conditions{newReports(config, log)}
	c.failure, c.tell, c.ends = "faults cannot be reported as conditions", c.settle, true
	return c
}

// Report sets the present faults; what is not among them is taken to be mended, so all objects
// should have been read. It returns at once, and is safe for concurrent use.
func (c *Conditions) Report(issues []model.Issue) {
	now := map[model.Issue]string{}
	for _, i := range slices.SortedFunc(slices.Values(issues), model.Issue.Compare) {
		if kind := kinds.Find(i.Object.Kind); !i.Everywhere || i.Object.Name.Name == "" || kind == nil || !kind.Conditions {
			continue
		}
		object := model.Issue{Object: i.Object}
		if text, known := now[object]; known {
			now[object] = text + "; " + i.Reason
		} else if len(now) < maxReported {
			now[object] = i.Reason
		}
	}
	c.set(now)
}

// Run writes conditions until ctx ends.
func (c *Conditions) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-c.wake: // the first report
	}
	c.states[model.Issue{}] = &report{due: time.Now().Add(c.pace.spread + rand.N(c.pace.spread))}
	c.reports.Run(ctx)
}

// findStale has all objects looked at that have the condition and are not at fault.
func (c *Conditions) findStale(ctx context.Context) error {
	for i := range kinds.All {
		kind := &kinds.All[i]
		if !kind.Conditions {
			continue
		}
		var list metav1.PartialObjectMetadataList
		for _, place := range kind.Places {
			err := c.api.read(ctx, place.Path(), url.Values{"resourceVersion": {"0"}}, mediaMetadata, &list)
			if err == nil {
				break
			}
			if !apierrors.IsNotFound(err) || !kind.Optional {
				return fmt.Errorf("list %v: %w", place, err)
			}
		}
		for i := range list.Items {
			o := &list.Items[i]
			object := model.Issue{Object: model.Ref{Kind: kind.Kind, Name: model.Name{Namespace: o.Namespace, Name: o.Name}}}
			if c.states[object] == nil && slices.ContainsFunc(o.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Manager == conditionManager }) {
				c.states[object] = &report{due: time.Now()}
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
// is, nothing is written unless the condition says something else. Of no object, it has conditions
// of those looked for that are not at fault.
func (c *Conditions) settle(ctx context.Context, about model.Issue, s *report) (again time.Duration, err error) {
	if about == (model.Issue{}) {
		return 0, c.findStale(ctx)
	}
	return c.pace.others, c.write(ctx, about.Object, s.fault)
}

func (c *Conditions) write(ctx context.Context, object model.Ref, fault string) error {
	kind := kinds.Find(object.Kind)
	found, at, err := find[conditioned](ctx, c.api, kind, object.Name, mediaJSON, true)
	if found == nil || err != nil {
		return err
	}
	meta, conditions := &found.Metadata, found.Status.Conditions
	is := apimeta.FindStatusCondition(conditions, acceptedCondition)
	want := metav1.Condition{Type: acceptedCondition, Status: metav1.ConditionTrue, Reason: "Accepted", Message: "it is carried out as it is written", ObservedGeneration: meta.Generation}
	if fault != "" {
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, "Fault", public(fault, object.Name.Namespace)
	} else if is == nil || is.Status == want.Status {
		return nil
	}
	if !apimeta.SetStatusCondition(&conditions, want) {
		return nil
	}
	want = *apimeta.FindStatusCondition(conditions, acceptedCondition) // with the time of its last transition
	_, err = c.api.applyStatus(ctx, kind, at, object.Name, meta.UID, conditionManager, map[string]any{"conditions": []metav1.Condition{want}})
	return err
}
