package kubelet

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/lab/echo"
)

// container is a pod's container: a server, and the state of its probes.
type container struct {
	spec        corev1.Container
	sidecar     bool // an init container that keeps running
	id          string
	startTime   time.Time // in the future while it waits for a restart
	restarts    int32
	failures    int // number of quick failures in a row
	served      echo.Pod
	open        bool   // the server listens
	listenError string // why it cannot
	started     bool   // the startup probe has succeeded
	ready       bool   // the readiness probe succeeds
	exit        *corev1.ContainerStateTerminated
	last        *corev1.ContainerStateTerminated // how it ended before its last restart
}

// newContainers makes a pod's long-running containers. The status from an earlier run of this
// process applies until the probes decide otherwise.
func newContainers(pod *corev1.Pod, now time.Time) []*container {
	var cs []*container
	for _, spec := range pod.Spec.InitContainers {
		if sidecar(&spec) {
			cs = append(cs, newContainer(pod, spec, pod.Status.InitContainerStatuses, now))
			cs[len(cs)-1].sidecar = true
		}
	}
	for _, spec := range pod.Spec.Containers {
		cs = append(cs, newContainer(pod, spec, pod.Status.ContainerStatuses, now))
	}
	return cs
}

func sidecar(spec *corev1.Container) bool {
	return spec.RestartPolicy != nil && *spec.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func newContainer(pod *corev1.Pod, spec corev1.Container, known []corev1.ContainerStatus, now time.Time) *container {
	c := &container{spec: spec, startTime: now}
	for _, s := range known {
		if s.Name != spec.Name {
			continue
		}
		c.restarts, c.last, c.exit = s.RestartCount, s.LastTerminationState.Terminated, s.State.Terminated
		if s.State.Running != nil {
			c.startTime, c.started, c.ready = s.State.Running.StartedAt.Time, s.Started != nil && *s.Started, s.Ready
		}
	}
	c.id = containerID(pod, spec.Name, c.restarts)
	c.started = c.started || spec.StartupProbe == nil
	c.ready = c.ready || spec.ReadinessProbe == nil
	return c
}

// containerID makes an ID that stays the same until the container is restarted.
func containerID(pod *corev1.Pod, name string, restarts int32) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", pod.UID, name, restarts))
	return "sluice://" + hex.EncodeToString(sum[:])
}

// restart starts the container again after the wait.
func (c *container) restart(pod *corev1.Pod, code int, now time.Time, wait time.Duration) {
	c.last = c.ended(code, now)
	c.restarts++
	c.id = containerID(pod, c.spec.Name, c.restarts)
	c.startTime, c.open, c.listenError = now.Add(wait), false, ""
	c.started, c.ready = c.spec.StartupProbe == nil, c.spec.ReadinessProbe == nil
}

func (c *container) ended(code int, now time.Time) *corev1.ContainerStateTerminated {
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	return &corev1.ContainerStateTerminated{
		ExitCode: int32(code), Reason: reason, StartedAt: apiTime(c.startTime), FinishedAt: apiTime(now), ContainerID: c.id,
	}
}

// apiTime returns a time with the API's precision, a second.
func apiTime(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

// failureMemory is how long a container has to run until its earlier failures no longer count.
const failureMemory = 10 * time.Minute

// backOff counts a failure, and returns how long the container waits for its next start: not at all
// after the first, then a second, and twice as long each time, up to some minutes. (Kubelets begin
// with ten seconds.)
func (c *container) backOff(now time.Time) time.Duration {
	if now.Sub(c.startTime) > failureMemory {
		c.failures = 0
	}
	c.failures++
	if c.failures == 1 {
		return 0
	}
	return time.Second << min(c.failures-2, 8)
}

// listens lists the ports of a container's server: the declared ones, the probed ones, since a
// container need not declare its ports, and the extra ones.
func listens(spec *corev1.Container, extra []echo.Port) []echo.Port {
	ports := slices.Clone(extra)
	for _, p := range spec.Ports {
		if protocol := cmp.Or(p.Protocol, corev1.ProtocolTCP); protocol != corev1.ProtocolSCTP {
			ports = append(ports, echo.Port{Protocol: string(protocol), Port: uint16(p.ContainerPort)})
		}
	}
	for _, probe := range []*corev1.Probe{spec.StartupProbe, spec.LivenessProbe, spec.ReadinessProbe} {
		if n := probed(spec, probe); n > 0 {
			ports = append(ports, echo.Port{Protocol: "TCP", Port: uint16(n)})
		}
	}
	slices.SortFunc(ports, func(a, b echo.Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	return slices.Compact(ports)
}

// probed returns the port of the pod's own address that a probe uses; 0 if there is none.
func probed(spec *corev1.Container, probe *corev1.Probe) int32 {
	if probe == nil {
		return 0
	}
	switch h := probe.ProbeHandler; {
	case h.HTTPGet != nil && h.HTTPGet.Host == "":
		n, _ := portNumber(spec, h.HTTPGet.Port) // an unknown name fails the probe
		return n
	case h.TCPSocket != nil && h.TCPSocket.Host == "":
		n, _ := portNumber(spec, h.TCPSocket.Port)
		return n
	case h.GRPC != nil:
		return h.GRPC.Port
	}
	return 0
}
