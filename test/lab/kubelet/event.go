package kubelet

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// event reports something about a pod, for `kubectl describe pod`. Events that come faster than
// they can be sent are lost: nothing depends on them.
func (k *kubelet) event(pod *corev1.Pod, kind, reason, format string, args ...any) {
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%.200s.%x", pod.Name, now.UnixNano()), Namespace: pod.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		},
		Type: kind, Reason: reason, Message: fmt.Sprintf(format, args...), Count: 1,
		Source:         corev1.EventSource{Component: "kubelet", Host: k.Node},
		FirstTimestamp: now, LastTimestamp: now, ReportingController: "kubelet", ReportingInstance: k.Node,
	}
	select {
	case k.events <- e:
	default:
	}
}

func (k *kubelet) sendEvents(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-k.events:
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			_, err := k.api.Events(e.Namespace).Create(ctx, e)
			cancel()
			if err != nil {
				k.Log.Debug("send event", "pod", e.Namespace+"/"+e.InvolvedObject.Name, "err", err)
			}
		}
	}
}
