package kubelet

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/internal/lib/wake"
)

// publisher writes a pod's newest status to the API, however long that takes, so that its runner
// never waits for the API.
type publisher struct {
	k    *kubelet
	name types.NamespacedName
	uid  types.UID
	wake wake.Signal

	mu     sync.Mutex
	status *corev1.PodStatus // to be written; nil: nothing
	remove bool              // the pod, after that
}

func newPublisher(k *kubelet, pod *corev1.Pod) *publisher {
	return &publisher{k: k, name: nameOf(pod), uid: pod.UID, wake: wake.New()}
}

// set schedules a status to write and, if remove is set, the removal of the pod from the API
// afterwards.
func (p *publisher) set(status *corev1.PodStatus, remove bool) {
	p.mu.Lock()
	p.status, p.remove = status, remove
	p.mu.Unlock()
	p.wake.Set()
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		logged := false
		for wait := 20 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
			err := p.send(ctx)
			if err == nil || ctx.Err() != nil {
				break
			}
			if !logged {
				p.k.Log.Warn("write the status of a pod: trying again", "pod", p.name, "err", err)
				logged = true
			}
			if pause(ctx, wait) != nil {
				return
			}
		}
	}
}

// send writes what is scheduled; nil if that is done, or no longer possible.
func (p *publisher) send(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	p.mu.Lock()
	status, remove := p.status, p.remove
	p.mu.Unlock()
	if status != nil {
		if err := p.write(ctx, status); err != nil {
			return err
		}
	}
	if remove {
		now := int64(0)
		err := p.k.api.Pods(p.name.Namespace).Delete(ctx, p.name.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &p.uid},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status == status {
		p.status = nil
	}
	return nil
}

func (p *publisher) write(ctx context.Context, status *corev1.PodStatus) error {
	patch, err := statusPatch(p.uid, status)
	if err != nil {
		return err
	}
	_, err = p.k.api.Pods(p.name.Namespace).Patch(ctx, p.name.Name, types.StrategicMergePatchType, patch, "status")
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil // by now it is another pod, or deleted
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		p.k.Log.Error("write the status of a pod: the API rejects it", "pod", p.name, "err", err)
		return nil
	}
	return err
}
