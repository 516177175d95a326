package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	leaseInterval = 10 * time.Second // between renewals of the node's lease, as kubelets have it
	leaseSeconds  = 40               // seconds without a renewal until the node counts as lost
)

// register registers the node with the API, and returns its pod CIDRs. It tries until ctx ends.
func (k *kubelet) register(ctx context.Context) ([]netip.Prefix, error) {
	logged := ""
	for {
		node, err := k.refresh(ctx)
		if err == nil {
			var cidrs []netip.Prefix
			if cidrs, err = podCIDRs(node); err == nil {
				return cidrs, nil
			}
		}
		if text := err.Error(); text != logged && !apierrors.IsConflict(err) { // once; a new node has other writers, too
			k.Log.Warn("register the node: trying again", "err", err)
			logged = text
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return nil, fmt.Errorf("register node %s: %w", k.Node, err)
		}
	}
}

func podCIDRs(node *corev1.Node) ([]netip.Prefix, error) {
	var cidrs []netip.Prefix
	for _, s := range node.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("read the pod CIDRs of node %s: %w", node.Name, err)
		}
		cidrs = append(cidrs, p)
	}
	if len(cidrs) == 0 {
		return nil, fmt.Errorf("node %s has no pod CIDRs: set some, or let a controller do so", node.Name)
	}
	return cidrs, nil
}

// heartbeat keeps the node's lease and status up to date until ctx ends. Failures are logged once.
func (k *kubelet) heartbeat(ctx context.Context) {
	logged := false
	for {
		node, err := k.refresh(ctx)
		if err == nil {
			err = k.renew(ctx, node)
		}
		wait := leaseInterval
		if err != nil {
			wait = time.Second
		}
		if err != nil && ctx.Err() == nil && !logged && !apierrors.IsConflict(err) {
			k.Log.Warn("tell the API that the node is alive: trying again", "err", err)
		}
		logged = err != nil
		if pause(ctx, wait) != nil {
			return
		}
	}
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// refresh creates the Node if it does not exist, and corrects its content. What others set in it,
// such as cordoning, stays.
func (k *kubelet) refresh(ctx context.Context) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseInterval)
	defer cancel()
	nodes := k.api.Nodes()
	node, err := nodes.Get(ctx, k.Node)
	if apierrors.IsNotFound(err) {
		node, err = nodes.Create(ctx, k.newNode())
	}
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", k.Node, err)
	}
	patch := map[string]any{}
	for key, v := range k.labels() {
		if node.Labels[key] != v {
			patch["metadata"] = map[string]any{"labels": k.labels()}
		}
	}
	if len(node.Spec.PodCIDRs) == 0 && len(k.PodCIDRs) > 0 {
		patch["spec"] = map[string]any{"podCIDR": k.PodCIDRs[0].String(), "podCIDRs": k.PodCIDRs}
	}
	if len(patch) > 0 {
		if node, err = k.patchNode(ctx, patch); err != nil {
			return nil, err
		}
	}
	if status := k.nodeStatus(node, metav1.Now()); !equality.Semantic.DeepEqual(status, node.Status) {
		return k.patchNode(ctx, map[string]any{
			// Lists are replaced as a whole.
			"status": status, "metadata": map[string]any{"resourceVersion": node.ResourceVersion},
		}, "status")
	}
	return node, nil
}

func (k *kubelet) patchNode(ctx context.Context, patch map[string]any, subresource ...string) (*corev1.Node, error) {
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("write patch of node %s: %w", k.Node, err)
	}
	node, err := k.api.Nodes().Patch(ctx, k.Node, types.MergePatchType, data, subresource...)
	if err != nil {
		return nil, fmt.Errorf("patch node %s: %w", k.Node, err)
	}
	return node, nil
}

func (k *kubelet) labels() map[string]string {
	labels := map[string]string{
		corev1.LabelHostname: k.Node, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH,
	}
	if k.Zone != "" {
		labels[corev1.LabelTopologyZone] = k.Zone
	}
	return labels
}

func (k *kubelet) newNode() *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.Node, Labels: k.labels()}}
	for _, p := range k.PodCIDRs {
		node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, p.String())
	}
	if len(k.PodCIDRs) > 0 {
		node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
	}
	return node
}

// nodeStatus returns the wanted status of the node; it equals the present status if that is right.
func (k *kubelet) nodeStatus(node *corev1.Node, now metav1.Time) corev1.NodeStatus {
	s := *node.Status.DeepCopy()
	room := corev1.ResourceList{
		corev1.ResourcePods: resource.MustParse("250"), corev1.ResourceCPU: resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
	s.Capacity, s.Allocatable = room, room
	s.Addresses = nil
	for _, a := range k.IPs {
		s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: k.Node})
	s.DaemonEndpoints.KubeletEndpoint.Port = Port
	s.NodeInfo.KubeletVersion, s.NodeInfo.ContainerRuntimeVersion = "v0.0.0-sluice-lab", "sluice://lab"
	s.NodeInfo.OSImage, s.NodeInfo.OperatingSystem, s.NodeInfo.Architecture = "Sluice lab", "linux", runtime.GOARCH
	for _, want := range []struct {
		kind           corev1.NodeConditionType
		status         corev1.ConditionStatus
		reason, detail string
	}{
		{corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "the lab's kubelet runs"},
		{corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "labs do not measure it"},
		{corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "labs do not measure it"},
		{corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "labs do not measure it"},
	} {
		setNodeCondition(&s, corev1.NodeCondition{
			Type: want.kind, Status: want.status, Reason: want.reason, Message: want.detail,
			LastHeartbeatTime: now, LastTransitionTime: now,
		})
	}
	return s
}

// maxHeartbeatAge is how old the heartbeat of a condition may become, as in kubelets; the lease
// shows that the node is alive.
const maxHeartbeatAge = 5 * time.Minute

func setNodeCondition(s *corev1.NodeStatus, want corev1.NodeCondition) {
	for i, c := range s.Conditions {
		if c.Type != want.Type {
			continue
		}
		if c.Status == want.Status {
			want.LastTransitionTime = c.LastTransitionTime
			if c.Reason == want.Reason && want.LastHeartbeatTime.Sub(c.LastHeartbeatTime.Time) < maxHeartbeatAge {
				return
			}
		}
		s.Conditions[i] = want
		return
	}
	s.Conditions = append(s.Conditions, want)
}

// renew renews the node's lease, or creates it.
func (k *kubelet) renew(ctx context.Context, node *corev1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, leaseInterval)
	defer cancel()
	leases := k.api.Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Get(ctx, k.Node)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("read the lease of node %s: %w", k.Node, err)
	}
	if missing {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: k.Node, Namespace: corev1.NamespaceNodeLease}}
	}
	lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: k.Node, UID: node.UID}}
	last := int32(leaseSeconds)
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &k.Node, &last
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	if missing {
		_, err = leases.Create(ctx, lease)
	} else {
		_, err = leases.Update(ctx, k.Node, lease)
	}
	if err != nil {
		return fmt.Errorf("renew the lease of node %s: %w", k.Node, err)
	}
	return nil
}
