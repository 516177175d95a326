package kube

import (
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
)

const mediaMergePatch = "application/merge-patch+json"

// NewAnnotation returns what gives a Node an annotation of a name, or takes it away if value is "".
// It does nothing until it runs.
func NewAnnotation(config Config, node, name, value string, log *slog.Logger) *NodeChange {
	c := newNodeChange(config, node, log, func(now *corev1.Node) any {
		if now.Annotations[name] == value {
			return nil
		}
		annotations := map[string]*string{name: &value}
		if value == "" {
			annotations[name] = nil
		}
		return map[string]any{"metadata": map[string]any{"annotations": annotations}}
	})
	c.field, c.media = []string{"metadata", "annotations", name}, mediaMergePatch
	c.failure = fmt.Sprintf("the annotation %s of this node's Node cannot be written", name)
	c.undone = fmt.Sprintf("somebody writes over the annotation %s", name)
	return c
}
