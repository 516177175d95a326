package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/sluice/test/lab/kubeapi"
)

// deletionSeen is what whoever deletes the API server's pod has to look that it is gone.
const deletionSeen = 300 * time.Millisecond

// AsPod keeps a pod in kube-system that stands for the API server, with the label that kubeadm's
// has, until ctx ends. Whoever deletes the pod restarts the API server: Kubernetes' tests do.
// image is what the pod runs.
func (p *Plane) AsPod(ctx context.Context, image string) error {
	config, err := clientcmd.BuildConfigFromFlags("", p.Admin())
	if err != nil {
		return fmt.Errorf("read %s: %w", p.Admin(), err)
	}
	config.Dial = p.Dial
	api, err := kubeapi.New(config)
	if err != nil {
		return err
	}
	pods, pod := api.Pods("kube-system"), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: APIServer, Namespace: "kube-system", Labels: map[string]string{"component": APIServer, "tier": "control-plane"}},
		Spec:       corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: APIServer, Image: image}}},
	}
	if _, err := pods.Create(ctx, pod); err != nil {
		return fmt.Errorf("make the API server's pod: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pods.Follow(ctx, "metadata.name="+APIServer, &deletions{see: func() {
		time.Sleep(deletionSeen)
		if err := p.Restart(ctx, APIServer); err != nil {
			cancel(err)
			return
		}
		if _, err := pods.Create(ctx, pod); err != nil {
			cancel(fmt.Errorf("make the API server's pod again: %w", err))
		}
	}})
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// deletions is a store that calls see when its only object is deleted.
type deletions struct {
	see   func()
	there bool
}

func (d *deletions) Add(any) error    { d.there = true; return nil }
func (d *deletions) Update(any) error { return nil }
func (d *deletions) Resync() error    { return nil }

func (d *deletions) Delete(any) error {
	d.there = false
	d.see()
	return nil
}

// Replace is called with what there is, at first, and after the API was away.
func (d *deletions) Replace(objects []any, _ string) error {
	if d.there && len(objects) == 0 {
		return d.Delete(nil)
	}
	d.there = len(objects) > 0
	return nil
}

var _ cache.ReflectorStore = (*deletions)(nil)
