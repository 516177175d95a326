package kube

import (
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	mediaStrategicPatch = "application/strategic-merge-patch+json"
	// networkRetry is short, as a node with the taint gets no pods.
	networkRetry = 2 * time.Second
)

// NewNetworkAvailable returns what tells the API that a node's network is there: its condition
// NetworkUnavailable becomes False, whereupon the control plane takes the taint of that name away.
// It does nothing until it runs.
func NewNetworkAvailable(config Config, node string, log *slog.Logger) *NodeChange {
	c := newNodeChange(config, node, log, func(now *corev1.Node) any {
		if slices.ContainsFunc(now.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse
		}) {
			return nil
		}
		condition := corev1.NodeCondition{
			Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "SluiceIsUp", Message: "Sluice attaches pods on this node",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}
		return map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}}
	})
	c.field = []string{"status", "conditions", `k:{"type":"NetworkUnavailable"}`, "status"}
	c.sub, c.media, c.retry = "/status", mediaStrategicPatch, networkRetry
	c.made = func() { log.Info("the API knows that the node's network is available", "node", node) }
	c.failure = "the API does not learn that the node's network is available"
	c.undone = "somebody writes over the condition NetworkUnavailable, which is False as Sluice attaches pods (--cni)"
	return c
}
