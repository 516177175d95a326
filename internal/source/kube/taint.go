package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

const mediaJSONPatch = "application/json-patch+json"

// taintsOf is what is read of a Node.
type taintsOf struct {
	Spec struct {
		Taints []struct {
			Key string `json:"key"`
		} `json:"taints"`
	} `json:"spec"`
}

// patchStep is a step of a JSON patch.
type patchStep struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value string `json:"value,omitempty"`
}

// NewUntaint returns what takes the taints of a key away from a Node; others stay. It does nothing
// until it runs.
func NewUntaint(config Config, node, key string, log *slog.Logger) *NodeChange {
	place := kinds.Find(model.NodeKind).Places[0]
	c := newNodeChange(config, node, []string{"spec", "taints"}, log, func(ctx context.Context, a *api) (bool, error) {
		now, err := named[taintsOf](ctx, a, place, model.Name{Name: node}, mediaJSON, true)
		if err != nil || now == nil {
			return false, err
		}
		// The server refuses the patch if somebody has moved a taint to another place meanwhile.
		var patch []patchStep
		for i, t := range slices.Backward(now.Spec.Taints) {
			if t.Key == key {
				path := fmt.Sprintf("/spec/taints/%d", i)
				patch = append(patch, patchStep{Op: "test", Path: path + "/key", Value: key}, patchStep{Op: "remove", Path: path})
			}
		}
		if len(patch) == 0 {
			return false, nil
		}
		if err := a.write(ctx, http.MethodPatch, place.Path()+"/"+url.PathEscape(node), nil, mediaJSONPatch, patch); err != nil {
			return false, err
		}
		log.Info("the node is ready for pods: its taint is taken away", "node", node, "taint", key)
		return true, nil
	})
	c.failure = fmt.Sprintf("the taint %s of this node's Node cannot be taken away", key)
	c.undone = fmt.Sprintf("somebody puts the taint %s back that is taken away (--remove-taint)", key)
	c.retry = networkRetry
	return c
}
