package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
)

// annotationPatch is what is merged into a Node.
type annotationPatch struct {
	Metadata struct {
		Annotations map[string]*string `json:"annotations"`
	} `json:"metadata"`
}

// NewAnnotation returns what gives a Node an annotation of a name, or takes it away if value is "".
// It does nothing until it runs.
func NewAnnotation(config Config, node, name, value string, log *slog.Logger) *NodeChange {
	var patch annotationPatch
	patch.Metadata.Annotations = map[string]*string{name: &value}
	if value == "" {
		patch.Metadata.Annotations[name] = nil
	}
	c := newNodeChange(config, node, []string{"metadata", "annotations", name}, log, func(ctx context.Context, a *api) error {
		return a.write(ctx, http.MethodPatch, "/api/v1/nodes/"+node, nil, mediaMergePatch, patch)
	})
	c.failure = fmt.Sprintf("the annotation %s of this node's Node cannot be written", name)
	c.undone = fmt.Sprintf("somebody writes over the annotation %s", name)
	return c
}
