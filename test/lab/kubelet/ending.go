package kubelet

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// minCommandTime is how long a command of a completing pod takes at least.
const minCommandTime = time.Second

// completes reports whether a pod's containers run their commands to an end: those of a Job do, and
// those of other pods that are never restarted, unless they declare ports, as servers do.
func completes(pod *corev1.Pod) bool {
	if pod.Spec.RestartPolicy == corev1.RestartPolicyAlways {
		return false
	}
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "Job" {
		return true
	}
	for _, c := range pod.Spec.Containers {
		if len(c.Ports) > 0 {
			return false
		}
	}
	return true
}

// complete ends the containers whose commands have ended, and the pod with the last of them.
func (r *runner) complete(now time.Time) time.Duration {
	wait, left, phase := never, 0, corev1.PodSucceeded
	for _, c := range r.life.containers {
		if c.sidecar {
			continue
		}
		if c.exit == nil && c.open && completes(r.pod) {
			wait = min(wait, r.runCommand(c, now))
		}
		switch {
		case c.exit == nil:
			left++
		case c.exit.ExitCode != 0:
			phase = corev1.PodFailed
		}
	}
	if left == 0 {
		r.finish(phase, now)
	}
	return wait
}

// runCommand ends a container whose command has ended, or returns when it will.
func (r *runner) runCommand(c *container, now time.Time) time.Duration {
	cmd := readCommand(slices.Concat(c.spec.Command, c.spec.Args))
	if left := c.startTime.Add(max(cmd.takes, minCommandTime)).Sub(now); left > 0 {
		return left
	}
	if cmd.code != 0 && r.pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure {
		r.restart(c, cmd.code, c.backOff(now))
		return 0
	}
	r.exit(c, cmd.code, now)
	return never
}

// exit ends a container for good.
func (r *runner) exit(c *container, code int, now time.Time) {
	r.stopProbes(c)
	r.k.server.Remove(c.served)
	c.open, c.exit = false, c.ended(code, now)
}

// finish ends the running containers, and the pod.
func (r *runner) finish(phase corev1.PodPhase, now time.Time) {
	for _, c := range r.life.containers {
		if c.exit == nil {
			r.exit(c, 0, now)
		}
	}
	r.tearDown()
	r.life.phase = phase
}

// stop ends a deleted pod in the steps that the API documents: preStop hooks, the stop signal, and
// the time that the servers then need, all within the grace period.
func (r *runner) stop(now time.Time) time.Duration {
	term, end := ending(r.pod, r.deletedAt)
	if !r.draining && !now.Before(term) {
		r.draining = true
		for _, s := range r.serves() {
			r.k.server.Drain(s)
		}
	}
	if now.Before(end) {
		if !r.draining {
			return term.Sub(now)
		}
		return end.Sub(now)
	}
	phase := corev1.PodSucceeded
	for _, c := range r.life.containers {
		if c.exit != nil && c.exit.ExitCode != 0 {
			phase = corev1.PodFailed
		}
	}
	r.finish(phase, now)
	return never
}

// extraGrace is the extra time for a pod whose preStop hooks take all of its grace period.
const extraGrace = 2 * time.Second

// ending returns when a pod's servers get the stop signal, and when they stop. deletedAt is when
// the node learnt of the pod's deletion.
func ending(pod *corev1.Pod, deletedAt time.Time) (term, end time.Time) {
	grace := time.Duration(0)
	if pod.DeletionGracePeriodSeconds != nil {
		grace = time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	}
	deadline := deletedAt.Add(grace)
	// The API's time was cut to a second, so deletedAt was later.
	if t := pod.DeletionTimestamp; t != nil && t.Add(time.Second).Before(deadline) {
		deadline = t.Add(time.Second)
	}
	term = deletedAt
	if hooks := preStop(pod); hooks > 0 {
		term = deletedAt.Add(hooks)
		if !term.Before(deadline) {
			term, deadline = deadline, deadline.Add(extraGrace)
		}
	}
	end = term.Add(drain(pod))
	if end.After(deadline) {
		end = deadline
	}
	return term, end
}

// preStop returns how long the pod's preStop hooks take, which run at the same time.
func preStop(pod *corev1.Pod) time.Duration {
	longest := time.Duration(0)
	for _, c := range pod.Spec.Containers {
		if c.Lifecycle == nil || c.Lifecycle.PreStop == nil {
			continue
		}
		switch h := c.Lifecycle.PreStop; {
		case h.Sleep != nil:
			longest = max(longest, time.Duration(h.Sleep.Seconds)*time.Second)
		case h.Exec != nil:
			longest = max(longest, readCommand(h.Exec.Command).takes)
		}
	}
	return longest
}
