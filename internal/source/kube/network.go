package kube

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	mediaStrategicPatch = "application/strategic-merge-patch+json"
	// networkRetry is short, as a node with the taint gets no pods.
	networkRetry = 2 * time.Second
)

// NetworkAvailable tells the API that a node's network is there: its condition NetworkUnavailable
// becomes False, whereupon the control plane takes the taint of that name away. It tries until that
// is done or ctx ends.
func NetworkAvailable(ctx context.Context, config Config, node string, log *slog.Logger) {
	a := &api{credentials: &credentials{path: config.Kubeconfig, mount: podMount, agent: config.UserAgent, log: log}, timing: usualTiming()}
	for failing := false; ; failing = true {
		now := metav1.Now()
		condition := map[string]any{
			"type": "NetworkUnavailable", "status": "False", "reason": "SluiceIsUp", "message": "Sluice attaches pods on this node",
			"lastHeartbeatTime": now, "lastTransitionTime": now,
		}
		patch := map[string]any{"status": map[string]any{"conditions": []any{condition}}}
		err := a.write(ctx, http.MethodPatch, "/api/v1/nodes/"+url.PathEscape(node)+"/status", nil, mediaStrategicPatch, patch)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			log.Info("the API knows that the node's network is available", "node", node)
			return
		case !failing:
			log.Warn("the API does not learn that the node's network is available; trying again", "node", node, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(jitter(networkRetry)):
		}
	}
}
