package kubeobj

import (
	"cmp"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// autoscalerTaint marks a node that the cluster autoscaler is about to delete.
const autoscalerTaint = "ToBeDeletedByClusterAutoscaler"

// Node translates a v1 Node. The API checks neither addresses nor podCIDRs: malformed ones, and
// podCIDRs of addresses that no pod can have, are left out.
func Node(o *corev1.Node) (*model.Node, error) {
	var f fault.List
	n := &model.Node{Name: clusterName(&o.ObjectMeta, &f), Labels: o.Labels, Created: o.CreationTimestamp.Time, Leaving: o.DeletionTimestamp != nil}
	for i := range o.Spec.Taints {
		key := o.Spec.Taints[i].Key
		n.Taints = append(n.Taints, key)
		n.Leaving = n.Leaving || key == autoscalerTaint
	}
	for i := range o.Status.Conditions {
		c := &o.Status.Conditions[i]
		n.NotReady = n.NotReady || c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
		n.Networked = n.Networked || c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse
	}
	n.IPs, n.External, n.OtherIPs = nodeIPs(o.Status.Addresses, &f)
	list, field := o.Spec.PodCIDRs, "spec.podCIDRs"
	if len(list) == 0 && o.Spec.PodCIDR != "" {
		list, field = []string{o.Spec.PodCIDR}, "spec.podCIDR"
	}
	n.PodCIDRs = fault.ReadSome(&f, field, list, func(text string) (netip.Prefix, error) {
		p, err := parsePrefix(text)
		return p, cmp.Or(err, model.CheckPodCIDR(p))
	})
	n.Fabric = nodeFabric(o.Annotations, &f)
	return fault.Result(n, &f)
}

// nodeIPs returns the InternalIPs, and after them the ExternalIPs of a family that has no
// InternalIP, and how many those are. kube-proxy, too, takes the first address of each family from
// both lists in this order. others are the remaining ExternalIPs.
func nodeIPs(addresses []corev1.NodeAddress, f *fault.List) (list []netip.Addr, external int, others []netip.Addr) {
	of, internal := map[corev1.NodeAddressType][]netip.Addr{}, map[bool]bool{} // by whether it is IPv4
	for i, in := range addresses {
		if in.Type != corev1.NodeInternalIP && in.Type != corev1.NodeExternalIP {
			continue
		}
		a, err := parseAddr(in.Address)
		if err != nil {
			f.Leave(fmt.Sprintf("status.addresses[%d].address", i), "%v; it is left out", err)
			continue
		}
		of[in.Type] = append(of[in.Type], a)
		internal[a.Is4()] = internal[a.Is4()] || in.Type == corev1.NodeInternalIP
	}
	list = of[corev1.NodeInternalIP]
	for _, a := range of[corev1.NodeExternalIP] {
		if internal[a.Is4()] {
			others = append(others, a)
		} else {
			list = append(list, a)
		}
	}
	return list, len(list) - len(of[corev1.NodeInternalIP]), others
}

// Namespace translates a v1 Namespace.
func Namespace(o *corev1.Namespace) (*model.Namespace, error) {
	var f fault.List
	n := &model.Namespace{Name: clusterName(&o.ObjectMeta, &f), Labels: o.Labels}
	return fault.Result(n, &f)
}
