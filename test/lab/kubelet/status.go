package kubelet

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// life is the state from which a pod's status is made.
type life struct {
	phase      corev1.PodPhase
	hosts      []netip.Addr // the node's addresses
	addrs      []netip.Addr // the pod's; none before it is started
	start      metav1.Time
	containers []*container
	problem    string // why it cannot be started
	reason     string // the reason in one word, if it can never start
}

// status returns the status in the API's form. Unchanged conditions keep the times of the pod's
// present status.
func (l *life) status(pod *corev1.Pod, now metav1.Time) corev1.PodStatus {
	s := corev1.PodStatus{
		Phase: l.phase, StartTime: &l.start, Reason: l.reason, Message: l.problem, ObservedGeneration: pod.Generation,
	}
	for i, a := range l.hosts {
		if i == 0 {
			s.HostIP = a.String()
		}
		s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: a.String()})
	}
	for i, a := range l.addrs {
		if i == 0 {
			s.PodIP = a.String()
		}
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: a.String()})
	}
	var unready []string
	for _, c := range l.containers {
		cs := l.containerStatus(pod, c)
		if !cs.Ready {
			unready = append(unready, c.spec.Name)
		}
		if !c.sidecar {
			s.ContainerStatuses = append(s.ContainerStatuses, cs)
		}
	}
	s.InitContainerStatuses = l.initStatuses(pod)
	s.Conditions = l.conditions(pod, unready, now)
	return s
}

func (l *life) containerStatus(pod *corev1.Pod, c *container) corev1.ContainerStatus {
	started := c.open && c.started
	cs := corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: "sluice://" + c.spec.Image, ContainerID: c.id,
		RestartCount: c.restarts, Started: &started, Ready: started && c.ready && !heldUnready(pod),
	}
	if c.last != nil {
		cs.LastTerminationState.Terminated = c.last
	}
	switch {
	case c.exit != nil:
		cs.State.Terminated = c.exit
	case c.listenError != "":
		cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CannotListen", Message: c.listenError}
	case !c.open:
		cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "it failed and waits for its next try"}
	default:
		cs.State.Running = &corev1.ContainerStateRunning{StartedAt: apiTime(c.startTime)}
	}
	return cs
}

// initStatuses returns the init containers: sidecars as they are, the others as completed when the
// pod was started.
func (l *life) initStatuses(pod *corev1.Pod) []corev1.ContainerStatus {
	if len(l.containers) == 0 {
		return nil
	}
	var all []corev1.ContainerStatus
	for _, spec := range pod.Spec.InitContainers {
		if sidecar(&spec) {
			continue
		}
		started, id := false, containerID(pod, spec.Name, 0)
		all = append(all, corev1.ContainerStatus{
			Name: spec.Name, Image: spec.Image, ImageID: "sluice://" + spec.Image, ContainerID: id, Ready: true, Started: &started,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Reason: "Completed", StartedAt: l.start, FinishedAt: l.start, ContainerID: id,
			}},
		})
	}
	for _, c := range l.containers {
		if c.sidecar {
			all = append(all, l.containerStatus(pod, c))
		}
	}
	return all
}

// conditions follows the kubelet's documentation of readiness: a pod is ready if all its containers
// are, and all its readiness gates are true.
func (l *life) conditions(pod *corev1.Pod, unready []string, now metav1.Time) []corev1.PodCondition {
	running := len(l.addrs) > 0
	reason, message := "", ""
	ready := running && len(unready) == 0 && l.phase == corev1.PodRunning
	switch {
	case l.phase == corev1.PodSucceeded:
		reason = "PodCompleted"
	case l.phase == corev1.PodFailed:
		reason = "PodFailed"
	case !running:
		reason, message = "ContainersNotReady", l.problem
	case !ready && heldUnready(pod):
		reason, message = "ContainersNotReady", fmt.Sprintf("annotation %s holds it back", ReadyAnnotation)
	case !ready:
		reason, message = "ContainersNotReady", fmt.Sprintf("containers with unready status: [%s]", strings.Join(unready, " "))
	}
	gated, gatedReason, gatedMessage := ready, reason, message
	for _, gate := range pod.Spec.ReadinessGates {
		if ready && !hasCondition(pod, gate.ConditionType) {
			gated, gatedReason = false, "ReadinessGatesNotReady"
			gatedMessage = fmt.Sprintf("the status of pod readiness gate %q is not \"True\"", gate.ConditionType)
		}
	}
	var all []corev1.PodCondition
	add := func(kind corev1.PodConditionType, ok bool, reason, message string) {
		c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message,
			LastTransitionTime: now, ObservedGeneration: pod.Generation}
		if ok {
			c.Status = corev1.ConditionTrue
		}
		for _, had := range pod.Status.Conditions {
			if had.Type == kind && had.Status == c.Status && !had.LastTransitionTime.IsZero() {
				c.LastTransitionTime = had.LastTransitionTime
			}
		}
		all = append(all, c)
	}
	add(corev1.PodReadyToStartContainers, running && !finishedPhase(l.phase), "", "")
	add(corev1.PodInitialized, running, initReason(l.phase), "")
	add(corev1.PodReady, gated, gatedReason, gatedMessage)
	add(corev1.ContainersReady, ready, reason, message)
	add(corev1.PodScheduled, true, "", "")
	return all
}

func finishedPhase(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

func initReason(p corev1.PodPhase) string {
	if p == corev1.PodSucceeded {
		return "PodCompleted"
	}
	return ""
}

func hasCondition(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// covers reports whether have contains everything in want; others may have added more.
func covers(have, want *corev1.PodStatus) bool {
	own := *have
	own.Conditions = nil
	for _, w := range want.Conditions {
		for _, h := range have.Conditions {
			if h.Type == w.Type {
				h.LastProbeTime = metav1.Time{}
				own.Conditions = append(own.Conditions, h)
			}
		}
	}
	rest := *want
	rest.QOSClass = have.QOSClass // the API's own
	return equality.Semantic.DeepEqual(own, rest)
}

// statusPatch returns a strategic merge patch that overwrites the status of this pod, and leaves
// alone what other writers add. Empty fields have to be named to be removed.
func statusPatch(uid types.UID, s *corev1.PodStatus) ([]byte, error) {
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write status: %w", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("write status: %w", err)
	}
	setMissingToNull(fields, "message", "reason")
	if conditions, ok := fields["conditions"].([]any); ok {
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok {
				setMissingToNull(c, "message", "reason")
			}
		}
	}
	data, err = json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": fields})
	if err != nil {
		return nil, fmt.Errorf("write status: %w", err)
	}
	return data, nil
}

// setMissingToNull makes a patch remove the fields that it does not set.
func setMissingToNull(fields map[string]any, keys ...string) {
	for _, k := range keys {
		if _, ok := fields[k]; !ok {
			fields[k] = nil
		}
	}
}
