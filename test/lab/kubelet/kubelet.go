package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os/exec"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/kubeapi"
	"sluice.dev/sluice/test/lab/sandbox"
	"sluice.dev/sluice/test/netns"
)

// Config says which node to run, and where.
type Config struct {
	Node     string
	NodeNS   string         // the node's network namespace
	NSPrefix string         // prefix of the names of its pods' namespaces, followed by NAME.NAMESPACE
	IPs      []netip.Addr   // of the node, the preferred family first
	PodCIDRs []netip.Prefix // one of each family; none: those of the Node's spec, once it has some
	// Network has what attaches the pods, but Node, and Ranges, which are the pod CIDRs.
	Network sandbox.Config
	Zone    string // may be empty
	API     *rest.Config
	// Command is a command that runs in a pod of the node, for kubectl exec and attach; nil: there
	// is neither.
	Command func(ctx context.Context, namespace, pod string, args []string) *exec.Cmd
	Log     *slog.Logger
}

// kubelet runs the pods of a node. It is the store that the reflector of pods fills.
type kubelet struct {
	Config
	api      *kubeapi.Client
	node     *netns.NS
	inside   bool // this process is in that namespace
	server   echo.Server
	network  *sandbox.Network
	building chan struct{} // limits how many pods get their network at once
	events   chan *corev1.Event

	ctx      context.Context // of all runners
	wg       sync.WaitGroup
	mu       sync.Mutex
	runners  map[types.NamespacedName]*runner // of the API's pod of that name
	services *services
	swept    bool
}

// Run registers the node and runs its pods until ctx ends. The pods' namespaces then stay for the
// next run; meanwhile nothing answers in them. Run waits for an API that is away, even at the
// start.
func Run(ctx context.Context, cfg Config) error {
	api, err := kubeapi.New(cfg.API)
	if err != nil {
		return err
	}
	node, err := netns.Open(cfg.NodeNS)
	if err != nil {
		return err
	}
	defer node.Close()
	k := &kubelet{
		Config: cfg, api: api, node: node, inside: inside(node), ctx: ctx,
		building: make(chan struct{}, 4), events: make(chan *corev1.Event, 256),
		runners: map[types.NamespacedName]*runner{},
	}
	k.services = &services{k: k, read: make(chan struct{})}
	cidrs, err := k.register(ctx)
	if err != nil {
		return err
	}
	cfg.Network.Node, cfg.Network.Ranges = node, cidrs
	if k.network, err = sandbox.Open(cfg.Network); err != nil {
		return err
	}
	var background sync.WaitGroup
	background.Go(func() { k.heartbeat(ctx) })
	background.Go(func() { k.sendEvents(ctx) })
	background.Go(func() {
		if err := k.serve(ctx); err != nil {
			k.Log.Error("there is no kubectl exec", "err", err)
		}
	})
	background.Go(func() { k.api.Services("").Follow(ctx, "", k.services) })
	select {
	case <-k.services.read: // so that pods listen on all their ports before they are ready
	case <-ctx.Done():
	}
	k.api.Pods("").Follow(ctx, fields.OneTermEqualSelector("spec.nodeName", k.Node).String(), k)
	background.Wait()
	k.wg.Wait()
	return k.server.Close()
}

// Add receives a new pod of this node.
func (k *kubelet) Add(obj any) error { return k.Update(obj) }

// Update receives the newest version of a pod.
func (k *kubelet) Update(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("follow pods: got a %T", obj)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handlePod(pod)
	return nil
}

// Delete receives a pod that the API has deleted.
func (k *kubelet) Delete(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("follow pods: got a %T", obj)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := k.runners[nameOf(pod)]; r != nil && r.uid == pod.UID {
		r.markGone()
		delete(k.runners, nameOf(pod))
	}
	return nil
}

// Replace receives all pods: at the start, and when the API's history was lost.
func (k *kubelet) Replace(list []any, _ string) error {
	var pods []*corev1.Pod
	names := map[string]bool{}
	uids := map[types.UID]bool{}
	for _, obj := range list {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("follow pods: got a %T", obj)
		}
		pods = append(pods, pod)
		names[nameOf(pod).String()], uids[pod.UID] = !finished(pod), true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, r := range k.runners {
		if !uids[r.uid] {
			r.markGone()
			delete(k.runners, name)
		}
	}
	if !k.swept { // before anything new is made
		if err := k.sweep(names); err != nil {
			k.Log.Error("remove pods that went while nobody watched", "err", err)
		}
		k.swept = true
	}
	for _, pod := range pods {
		k.handlePod(pod)
	}
	return nil
}

// Resync has nothing to do: the runners remember their pods.
func (k *kubelet) Resync() error { return nil }

// handlePod passes a pod to its runner. A pod with the name of another waits until the other has
// ended.
func (k *kubelet) handlePod(pod *corev1.Pod) {
	name := nameOf(pod)
	old := k.runners[name]
	if old != nil && old.uid == pod.UID {
		if !maps.Equal(old.labels, pod.Labels) {
			old.labels = pod.Labels
			old.sendTargets(k.services.of(name, pod.Labels))
		}
		old.update(pod)
		return
	}
	r := newRunner(k, pod)
	r.sendTargets(k.services.of(name, pod.Labels))
	if old != nil {
		old.markGone()
		r.before = old.done
	}
	k.runners[name] = r
	k.wg.Go(func() { r.run(k.ctx) })
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// finished reports whether the pod will never run again.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
