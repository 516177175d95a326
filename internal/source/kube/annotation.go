package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
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
	place := kinds.Find(model.NodeKind).Places[0]
	c := newNodeChange(config, node, []string{"metadata", "annotations", name}, log, func(ctx context.Context, a *api) (bool, error) {
		now, err := named[metav1.PartialObjectMetadata](ctx, a, place, model.Name{Name: node}, mediaMetadata, true)
		if err != nil || now == nil || now.Annotations[name] == value {
			return false, err
		}
		err = a.write(ctx, http.MethodPatch, place.Path()+"/"+url.PathEscape(node), nil, mediaMergePatch, patch)
		return err == nil, err
	})
	c.failure = fmt.Sprintf("the annotation %s of this node's Node cannot be written", name)
	c.undone = fmt.Sprintf("somebody writes over the annotation %s", name)
	return c
}
