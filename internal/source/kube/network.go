package kube

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

const (
	mediaStrategicPatch = "application/strategic-merge-patch+json"
	// networkRetry is short, as a node with the taint gets no pods.
	networkRetry = 2 * time.Second
)

// conditionsOf is what is read of a Node, and what is merged into it.
type conditionsOf struct {
	Status struct {
		Conditions []corev1.NodeCondition `json:"conditions"`
	} `json:"status"`
}

// NewNetworkAvailable returns what tells the API that a node's network is there: its condition
// NetworkUnavailable becomes False, whereupon the control plane takes the taint of that name away.
// It does nothing until it runs.
func NewNetworkAvailable(config Config, node string, log *slog.Logger) *NodeChange {
	place := kinds.Find(model.NodeKind).Places[0]
	field := []string{"status", "conditions", `k:{"type":"NetworkUnavailable"}`, "status"}
	c := newNodeChange(config, node, field, log, func(ctx context.Context, a *api) (bool, error) {
		now, err := named[conditionsOf](ctx, a, place, model.Name{Name: node}, mediaJSON, true)
		if err != nil || now == nil || slices.ContainsFunc(now.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse
		}) {
			return false, err
		}
		var patch conditionsOf
		patch.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "SluiceIsUp", Message: "Sluice attaches pods on this node",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}
		if err := a.write(ctx, http.MethodPatch, place.Path()+"/"+url.PathEscape(node)+"/status", nil, mediaStrategicPatch, patch); err != nil {
			return false, err
		}
		log.Info("the API knows that the node's network is available", "node", node)
		return true, nil
	})
	c.failure = "the API does not learn that the node's network is available"
	c.undone = "somebody writes over the condition NetworkUnavailable, which is False as Sluice attaches pods (--cni)"
	c.retry = networkRetry
	return c
}
