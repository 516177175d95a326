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

// probeResult is the result of a probe once a threshold is reached.
type probeResult struct {
	c        *container
	restarts int32 // of the container when the probe was started
	probe    string
	ok       bool
}

// startProbes starts the due probes of a container: the startup probe until it succeeds, then the
// others.
func (r *runner) startProbes(ctx context.Context, c *container) {
	r.stopProbes(c)
	ctx, cancel := context.WithCancel(ctx)
	r.probes[c] = cancel
	if !c.started {
		r.runProbe(ctx, c, startup, c.spec.StartupProbe)
		return
	}
	r.runProbe(ctx, c, liveness, c.spec.LivenessProbe)
	r.runProbe(ctx, c, readiness, c.spec.ReadinessProbe)
}

func (r *runner) stopProbes(c *container) {
	if stop := r.probes[c]; stop != nil {
		stop()
		delete(r.probes, c)
	}
}

// runProbe runs a probe periodically, and sends each result that reaches its threshold to the
// runner, until ctx ends.
func (r *runner) runProbe(ctx context.Context, c *container, name string, probe *corev1.Probe) {
	if probe == nil {
		return
	}
	spec, pod := c.spec, r.pod
	if probe.Exec != nil && !readCommand(probe.Exec.Command).known {
		r.k.event(pod, corev1.EventTypeWarning, "NotRun",
			"%s probe of container %s: a lab has no images to run %q in, it counts as success", name, spec.Name, probe.Exec.Command)
	}
	p := &prober{node: r.k.node, inside: r.k.inside, addr: r.life.addrs[0], ctr: &spec}
	result := probeResult{c: c, restarts: c.restarts, probe: name}
	delay, period, _ := schedule(probe)
	first := time.Until(c.startTime.Add(delay))
	r.k.wg.Go(func() {
		if pause(ctx, first) != nil {
			return
		}
		ticks := time.NewTicker(period)
		defer ticks.Stop()
		for t := newResultCount(probe); ; {
			err := p.probe(ctx, probe)
			if ctx.Err() != nil {
				return
			}
			result.ok = err == nil
			if t.add(result.ok) {
				select {
				case r.results <- result:
				case <-ctx.Done():
					return
				}
			}
			if !result.ok && t.run == 1 {
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

// applyResult acts on a probe's result.
func (r *runner) applyResult(ctx context.Context, result probeResult) {
	c := result.c
	if result.restarts != c.restarts || c.exit != nil {
		return // from before a restart
	}
	switch {
	case result.probe == readiness:
		c.ready = result.ok
	case r.stage != running: // a stopping container is not restarted
	case !result.ok:
		r.fail(c, result.probe)
	case result.probe == startup && !c.started:
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
