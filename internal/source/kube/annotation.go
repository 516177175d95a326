package kube

import (
	"context"
	"log/slog"
	"net/http"
	"time"
)

// Annotation keeps one annotation of a Node. Nothing waits for it; a failure is logged once, and
// tried again.
type Annotation struct {
	api         *api
	log         *slog.Logger
	node, name  string
	value       string
	look, retry time.Duration // between two looks, and after a failure
}

// NewAnnotation returns what gives a Node an annotation of a name, or takes it away if value is "".
// It does nothing until it runs.
func NewAnnotation(config Config, node, name, value string, log *slog.Logger) *Annotation {
	credentials := &credentials{path: config.Kubeconfig, mount: podMount, agent: config.UserAgent, log: log}
	return &Annotation{api: &api{credentials: credentials, timing: usualTiming()}, log: log, node: node, name: name, value: value, look: time.Second, retry: 10 * time.Second}
}

// annotationPatch is what is merged into a Node.
type annotationPatch struct {
	Metadata struct {
		Annotations map[string]*string `json:"annotations"`
	} `json:"metadata"`
}

// Run writes the annotation until ctx ends, whenever wrong says that the Node is there and lacks
// it.
func (a *Annotation) Run(ctx context.Context, wrong func() bool) {
	var patch annotationPatch
	patch.Metadata.Annotations = map[string]*string{a.name: &a.value}
	if a.value == "" {
		patch.Metadata.Annotations[a.name] = nil
	}
	for failing, pause := false, a.look; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if pause = a.look; !wrong() {
			continue
		}
		pause = a.retry // also for what was written to be told of
		err := a.api.write(ctx, http.MethodPatch, "/api/v1/nodes/"+a.node, nil, mediaMergePatch, patch)
		if err != nil && ctx.Err() == nil && !failing {
			a.log.Warn("the annotation of this node's Node cannot be written; trying again", "node", a.node, "annotation", a.name, "error", err)
		}
		failing = err != nil
	}
}
