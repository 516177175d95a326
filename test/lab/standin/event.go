package standin

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/test/lab/kubeapi"
)

// Report says in an Event of each pod, for `kubectl describe`, what was changed of it, until ctx
// ends.
func Report(ctx context.Context, api *kubeapi.Client, log *slog.Logger) {
	api.Pods("").Follow(ctx, "", &reporter{ctx: ctx, api: api, log: log, said: map[types.UID]bool{}})
}

// reporter sees the pods of a cluster.
type reporter struct {
	ctx context.Context
	api *kubeapi.Client
	log *slog.Logger

	mu   sync.Mutex
	said map[types.UID]bool
}

func (r *reporter) see(object any) error {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Annotations[Annotation] == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.said[pod.UID] {
		return nil
	}
	r.said[pod.UID] = true
	for _, replaced := range Of(pod) {
		// Another process of this kind has said it under the same name.
		if _, err := r.api.Events(pod.Namespace).Create(r.ctx, event(pod, replaced.String())); err != nil && !apierrors.IsAlreadyExists(err) {
			r.log.Warn("cannot report a stand-in", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		}
	}
	return nil
}

func event(pod *corev1.Pod, text string) *corev1.Event {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, pod.UID, text) // it never fails
	now := metav1.Now()
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%.200s.%x", pod.Name, h.Sum64()), Namespace: pod.Namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeNormal, Reason: "StandIn", Message: text, Count: 1,
		Source: corev1.EventSource{Component: "sluice-lab"}, FirstTimestamp: now, LastTimestamp: now, ReportingController: "sluice-lab",
	}
}

// These methods make it a store of pods, as kubeapi's Follow wants one.

func (r *reporter) Add(object any) error    { return r.see(object) }
func (r *reporter) Update(object any) error { return r.see(object) }

func (r *reporter) Delete(object any) error {
	if pod, ok := object.(*corev1.Pod); ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.said, pod.UID)
	}
	return nil
}

func (r *reporter) Replace(objects []any, _ string) error {
	for _, o := range objects {
		if err := r.see(o); err != nil {
			return err
		}
	}
	return nil
}

func (r *reporter) Resync() error { return nil }
