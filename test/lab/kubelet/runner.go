package kubelet

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/test/lab/echo"
)

// stage is a stage of a pod's life.
type stage int

const (
	waiting stage = iota // to be started
	running
	stopping // deleted, and still serving
	ended    // nothing runs any more; the API may still have the pod
)

// runner runs one pod, from when the node learns of it until the API has deleted it. Everything
// except the channels and the labels belongs to its goroutine.
type runner struct {
	k          *kubelet
	uid        types.UID
	updates    chan *corev1.Pod  // the newest version, not processed yet
	newTargets chan []echo.Port  // ports that Services send to, not yet processed
	labels     map[string]string // of the newest version; guarded by the kubelet's mu
	gone       chan struct{}     // closed when the API has deleted the pod
	markGone   func()            // closes it
	before     <-chan struct{}   // closed when the previous pod of that name is gone; nil: there was none
	done       chan struct{}     // closed when nothing of this pod remains

	pod       *corev1.Pod
	stage     stage
	life      life
	attached  *attachment
	deletedAt time.Time // when it learnt of the pod's deletion
	draining  bool
	results   chan probeResult
	probes    map[*container]context.CancelFunc
	publisher *publisher
	published *corev1.PodStatus

	// These are the ports that Services send to and that are not served yet; true: opening was
	// tried, and reported.
	targets    map[echo.Port]bool
	undeclared []echo.Pod // what is served besides the containers
}

func newRunner(k *kubelet, pod *corev1.Pod) *runner {
	r := &runner{
		k: k, uid: pod.UID, pod: pod, labels: pod.Labels, newTargets: make(chan []echo.Port, 1),
		updates: make(chan *corev1.Pod, 1), gone: make(chan struct{}), done: make(chan struct{}),
		results: make(chan probeResult), probes: map[*container]context.CancelFunc{}, targets: map[echo.Port]bool{},
		life:      life{phase: corev1.PodPending, hosts: k.IPs, start: apiTime(time.Now())},
		publisher: newPublisher(k, pod),
	}
	r.markGone = sync.OnceFunc(func() { close(r.gone) })
	if pod.Status.StartTime != nil {
		r.life.start = *pod.Status.StartTime
	}
	return r
}

// update passes a newer version to the runner. It never waits. Only one goroutine may call it at a
// time.
func (r *runner) update(pod *corev1.Pod) {
	select {
	case <-r.updates: // an unprocessed version, which is obsolete
	default:
	}
	r.updates <- pod
}

// run runs the pod. It returns when nothing of it remains, or when ctx ends; then it leaves the
// pod's network for the next run of this process.
func (r *runner) run(ctx context.Context) {
	defer close(r.done)
	if r.before != nil {
		select {
		case <-r.before:
		case <-ctx.Done():
			return
		}
	}
	select {
	case <-r.gone: // before it began
		return
	default:
	}
	ctx, cancel := context.WithCancel(ctx)
	var publishing sync.WaitGroup
	defer publishing.Wait()
	defer cancel()
	publishing.Go(func() { r.publisher.run(ctx) })
	select {
	case ports := <-r.newTargets: // before it is ready
		r.addTargets(ports)
	default:
	}
	for {
		wake := time.NewTimer(r.step(ctx, time.Now()))
		r.publish()
		select {
		case <-ctx.Done():
			return
		case <-r.gone:
			r.tearDown()
			return
		case pod := <-r.updates:
			r.accept(pod)
		case ports := <-r.newTargets:
			r.addTargets(ports)
		case v := <-r.results:
			r.applyResult(ctx, v)
		case <-wake.C:
		}
		wake.Stop()
	}
}

// never is the time of the next check if only news can cause one.
const never = time.Hour

// step brings the pod as far as possible now, and returns when to check again.
func (r *runner) step(ctx context.Context, now time.Time) time.Duration {
	if r.stage == waiting {
		if err := r.start(now); err != nil {
			r.life.problem = err.Error()
			r.k.Log.Error("start a pod: trying again", "pod", nameOf(r.pod), "err", err)
			return time.Second
		}
	}
	wait := never
	if r.stage == running { // even if it has to stop soon
		wait = min(r.open(ctx, now), r.listen())
	}
	if r.stage == running && r.pod.DeletionTimestamp != nil {
		r.stage, r.deletedAt = stopping, now
		r.k.event(r.pod, corev1.EventTypeNormal, "Killing", "Stopping the pod")
	}
	switch r.stage {
	case running:
		return min(wait, r.complete(now))
	case stopping:
		return r.stop(now)
	}
	return never
}

// start gives the pod its network and servers, or resumes it as an earlier run of this process left
// it.
func (r *runner) start(now time.Time) error {
	if finished(r.pod) || r.pod.DeletionTimestamp != nil && len(r.pod.Status.PodIPs) == 0 {
		r.stage = ended
		return nil
	}
	if !r.pod.Spec.HostNetwork {
		if err := r.k.checkName(r.pod); err != nil {
			r.reject("NameTooLong", err)
			return nil
		}
	}
	if err := r.connect(); err != nil {
		return err
	}
	extra, err := extraPorts(r.pod)
	if err != nil {
		r.k.event(r.pod, corev1.EventTypeWarning, "BadAnnotation", "%v", err)
	}
	r.life.containers = newContainers(r.pod, now)
	r.life.phase, r.life.problem, r.stage = corev1.PodRunning, "", running
	for _, c := range r.life.containers {
		c.served = echo.Pod{
			Namespace: r.pod.Namespace, Name: r.pod.Name, Container: c.spec.Name, Node: r.k.Node,
			NetNS: r.netns(), Addrs: r.life.addrs,
		}
		if c.spec.Name == r.pod.Spec.Containers[0].Name {
			c.served.Ports = listens(&c.spec, extra)
		} else {
			c.served.Ports = listens(&c.spec, nil)
		}
	}
	return nil
}

// reject fails the pod for good, as kubelets do with a pod that their node can never run.
func (r *runner) reject(reason string, err error) {
	r.k.event(r.pod, corev1.EventTypeWarning, reason, "%v", err)
	r.stage, r.life.phase, r.life.reason, r.life.problem = ended, corev1.PodFailed, reason, err.Error()
}

// connect gives the pod its addresses and, unless it uses the node's, a network.
func (r *runner) connect() error {
	if r.pod.Spec.HostNetwork {
		r.life.addrs = r.k.IPs
		return nil
	}
	a, addrs, err := r.k.attach(r.pod)
	if err != nil {
		return err
	}
	r.attached, r.life.addrs = a, addrs
	return nil
}

// open starts the due servers, with their probes. What cannot be opened is tried again.
func (r *runner) open(ctx context.Context, now time.Time) time.Duration {
	wait := never
	for _, c := range r.life.containers {
		if c.open || c.exit != nil {
			continue
		}
		if left := c.startTime.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		if err := r.k.server.Put(c.served); err != nil {
			if c.listenError == "" {
				r.k.event(r.pod, corev1.EventTypeWarning, "CannotListen", "container %s: %v", c.spec.Name, err)
			}
			c.listenError, wait = err.Error(), min(wait, time.Second)
			continue
		}
		c.open, c.listenError = true, ""
		r.startProbes(ctx, c)
	}
	return wait
}

// accept processes a newer version of the pod.
func (r *runner) accept(pod *corev1.Pod) {
	r.pod = pod
	if r.published != nil && !covers(&pod.Status, r.published) {
		r.published = nil // another writer replaced it, or it is in transit
	}
	if r.stage != running {
		return
	}
	for _, c := range r.life.containers {
		specs := pod.Spec.Containers
		if c.sidecar {
			specs = pod.Spec.InitContainers
		}
		i := slices.IndexFunc(specs, func(s corev1.Container) bool { return s.Name == c.spec.Name })
		if i >= 0 && specs[i].Image != c.spec.Image {
			r.k.event(pod, corev1.EventTypeNormal, "Killing", "Container %s definition changed, will be restarted", c.spec.Name)
			c.spec.Image = specs[i].Image
			r.restart(c, 0, 0)
		}
	}
}

// restart ends a container's server; it is started again after the wait.
func (r *runner) restart(c *container, code int, wait time.Duration) {
	r.stopProbes(c)
	r.k.server.Remove(c.served)
	c.restart(r.pod, code, time.Now(), wait)
}

// netns returns the name of the pod's network namespace.
func (r *runner) netns() string {
	if r.attached == nil {
		return r.k.NodeNS
	}
	return r.attached.NetNS
}

// serves lists everything that is served for the pod.
func (r *runner) serves() []echo.Pod {
	all := slices.Clone(r.undeclared)
	for _, c := range r.life.containers {
		all = append(all, c.served)
	}
	return all
}

// tearDown ends everything that runs in the pod, and releases its addresses.
func (r *runner) tearDown() {
	for _, c := range r.life.containers {
		r.stopProbes(c)
	}
	for _, s := range r.serves() {
		r.k.server.Remove(s)
	}
	if r.attached != nil {
		if err := r.k.network.Remove(r.attached.Pod, r.attached.id); err != nil {
			r.k.Log.Error("remove the network of a pod", "pod", nameOf(r.pod), "err", err)
		}
		r.attached = nil
	}
	r.stage = ended
}

// publish schedules writing the status unless the API has it already.
func (r *runner) publish() {
	// The pod was never started, or ended in an earlier run.
	if r.stage == ended && r.life.containers == nil && r.life.reason == "" {
		if r.pod.DeletionTimestamp != nil {
			r.publisher.set(nil, true)
		}
		return
	}
	remove := r.stage == ended && r.pod.DeletionTimestamp != nil
	s := r.life.status(r.pod, apiTime(time.Now()))
	if r.published != nil && covers(r.published, &s) && !remove {
		return
	}
	r.published = &s
	r.publisher.set(&s, remove)
}
