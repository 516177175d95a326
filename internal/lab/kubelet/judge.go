package kubelet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// These are the kinds of a container's probes, as Events name them.
const (
	startup   = "Startup"
	liveness  = "Liveness"
	readiness = "Readiness"
)

// verdict is the result of a probe according to its thresholds.
type verdict struct {
	c     *container
	lives int32 // of the container, as its number of restarts
	probe string
	ok    bool
}

// startProbes starts the due probes of a container: the startup probe until it succeeds, then the
// others.
func (r *runner) startProbes(ctx context.Context, c *container) {
	r.stopProbes(c)
	ctx, cancel := context.WithCancel(ctx)
	r.probes[c] = cancel
	if !c.started {
		r.watch(ctx, c, startup, c.spec.StartupProbe)
		return
	}
	r.watch(ctx, c, liveness, c.spec.LivenessProbe)
	r.watch(ctx, c, readiness, c.spec.ReadinessProbe)
}

func (r *runner) stopProbes(c *container) {
	if stop := r.probes[c]; stop != nil {
		stop()
		delete(r.probes, c)
	}
}

// watch runs a probe periodically, and sends each verdict to the runner, until ctx ends.
func (r *runner) watch(ctx context.Context, c *container, name string, probe *corev1.Probe) {
	if probe == nil {
		return
	}
	spec, pod := c.spec, r.pod
	if probe.Exec != nil && !readCommand(probe.Exec.Command).known {
		r.k.event(pod, corev1.EventTypeWarning, "NotRun",
			"%s probe of container %s: a lab has no images to run %q in, it counts as success", name, spec.Name, probe.Exec.Command)
	}
	asker := &prober{node: r.k.node, inside: r.k.inside, addr: r.life.addrs[0], ctr: &spec}
	v := verdict{c: c, lives: c.restarts, probe: name}
	delay, period, _ := rhythm(probe)
	first := time.Until(c.begun.Add(delay))
	r.k.wg.Go(func() {
		if pause(ctx, first) != nil {
			return
		}
		ticks := time.NewTicker(period)
		defer ticks.Stop()
		for t := newTally(probe); ; {
			err := asker.ask(ctx, probe)
			if ctx.Err() != nil {
				return
			}
			v.ok = err == nil
			if t.add(v.ok) {
				select {
				case r.verdicts <- v:
				case <-ctx.Done():
					return
				}
			}
			if !v.ok && t.run == 1 {
				r.k.event(pod, corev1.EventTypeWarning, "Unhealthy", "%s probe of container %s failed: %v", name, spec.Name, err)
			}
			select {
			case <-ticks.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

// judge acts on a verdict.
func (r *runner) judge(ctx context.Context, v verdict) {
	c := v.c
	if v.lives != c.restarts || c.exit != nil {
		return // of an earlier life
	}
	switch {
	case v.probe == readiness:
		c.ready = v.ok
	case r.stage != running: // a stopping container is not restarted
	case !v.ok:
		r.fail(c, v.probe)
	case v.probe == startup && !c.started:
		c.started = true
		r.startProbes(ctx, c)
	}
}

// killed is the exit status after a signal KILL.
const killed = 137

// fail ends a container that failed its probe. It is restarted unless the pod's policy is Never.
func (r *runner) fail(c *container, probe string) {
	if r.pod.Spec.RestartPolicy == corev1.RestartPolicyNever && !c.sidecar {
		r.exit(c, killed, time.Now())
		return
	}
	r.k.event(r.pod, corev1.EventTypeNormal, "Killing", "Container %s failed %s probe, will be restarted", c.spec.Name, probe)
	r.restart(c, killed, c.backOff(time.Now()))
}
