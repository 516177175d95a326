package kube

import (
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

const mediaJSONPatch = "application/json-patch+json"

// NewUntaint returns what takes the taints of a key away from a Node; others stay. It does nothing
// until it runs.
func NewUntaint(config Config, node, key string, log *slog.Logger) *NodeChange {
	c := newNodeChange(config, node, log, func(now *corev1.Node) any {
		// The server refuses the patch if somebody has moved a taint to another place meanwhile.
		var steps []map[string]string
		for i, t := range slices.Backward(now.Spec.Taints) {
			if t.Key == key {
				path := fmt.Sprintf("/spec/taints/%d", i)
				steps = append(steps, map[string]string{"op": "test", "path": path + "/key", "value": key}, map[string]string{"op": "remove", "path": path})
			}
		}
		if len(steps) == 0 {
			return nil
		}
		return steps
	})
	c.field, c.media, c.retry = []string{"spec", "taints"}, mediaJSONPatch, networkRetry
	c.made = func() {
		log.Info("the node is ready for pods: its taint is taken away", "node", node, "taint", key)
	}
	c.failure = fmt.Sprintf("the taint %s of this node's Node cannot be taken away", key)
	c.undone = fmt.Sprintf("somebody puts the taint %s back that is taken away (--remove-taint)", key)
	return c
}
