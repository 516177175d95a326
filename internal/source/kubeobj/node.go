package kubeobj

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// autoscalerTaint marks a node that the cluster autoscaler is about to delete.
const autoscalerTaint = "ToBeDeletedByClusterAutoscaler"

// Node translates a v1 Node. The API checks neither addresses nor podCIDRs: one that is none is left out.
func Node(o *corev1.Node) (*model.Node, error) {
	var f fault.List
	n := &model.Node{Name: clusterName(&o.ObjectMeta, &f), Labels: o.Labels, Leaving: o.DeletionTimestamp != nil}
	for i := range o.Spec.Taints {
		n.Leaving = n.Leaving || o.Spec.Taints[i].Key == autoscalerTaint
	}
	for i := range o.Status.Addresses {
		in := &o.Status.Addresses[i]
		if in.Type != corev1.NodeInternalIP {
			continue
		}
		a, err := parseAddr(in.Address)
		if err != nil {
			f.Leave(fmt.Sprintf("status.addresses[%d].address", i), "%v; it is left out", err)
			continue
		}
		n.IPs = append(n.IPs, a)
	}
	list, field := o.Spec.PodCIDRs, "spec.podCIDRs"
	if len(list) == 0 && o.Spec.PodCIDR != "" {
		list, field = []string{o.Spec.PodCIDR}, "spec.podCIDR"
	}
	for _, text := range list {
		p, err := parsePrefix(text)
		if err != nil {
			f.Leave(field, "%v; it is left out", err)
			continue
		}
		n.PodCIDRs = append(n.PodCIDRs, p)
	}
	return fault.Result(n, &f)
}

// Namespace translates a v1 Namespace.
func Namespace(o *corev1.Namespace) (*model.Namespace, error) {
	var f fault.List
	n := &model.Namespace{Name: clusterName(&o.ObjectMeta, &f), Labels: o.Labels}
	return fault.Result(n, &f)
}
