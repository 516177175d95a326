package cluster

import (
	"fmt"
	"net/netip"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// PodCIDR holds the addresses of the node's own pods.
var PodCIDR = netip.PrefixFrom(Endpoints.Addr(), 24)

// PodAddr is the address of pod i of a cluster whose first local pods are on the node.
func PodAddr(i, local int) netip.Addr {
	if i < local {
		return nth(Endpoints, 1+i)
	}
	return nth(Endpoints, 1<<16+i)
}

// podName is the name of pod i.
func podName(i int) model.Name {
	return model.Name{Namespace: namespace, Name: fmt.Sprintf("pod-%06d", i)}
}

// newPod is pod i of a cluster whose first local pods are on the node.
func newPod(i, local int, labels map[string]string) *model.Pod {
	p := &model.Pod{
		Name: podName(i), Labels: labels, IPs: []netip.Addr{PodAddr(i, local)}, Node: Node, Ready: true,
		ServiceAccount: "default",
	}
	if i >= local {
		p.Node = "elsewhere"
	}
	return p
}

// podFile is the manifest of a pod.
func podFile(p *model.Pod) File {
	return file(p.Name.Name+".json", object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": p.Name.Name, "namespace": p.Name.Namespace, "labels": p.Labels},
		"spec":     object{"nodeName": p.Node, "serviceAccountName": p.ServiceAccount},
		"status": object{
			"phase": "Running", "podIP": p.IPs[0].String(), "podIPs": []object{{"ip": p.IPs[0].String()}},
			"conditions": []object{{"type": "Ready", "status": "True"}},
		},
	})
}

// podPrerequisites are the objects that pods need: their node and their namespace.
func podPrerequisites() []store.Event {
	return []store.Event{
		{Kind: model.NodeKind, Name: model.Name{Name: Node}, Object: &model.Node{
			Name: Node, IPs: []netip.Addr{NodeAddr}, PodCIDRs: []netip.Prefix{PodCIDR},
		}},
		{Kind: model.NamespaceKind, Name: model.Name{Name: namespace}, Object: &model.Namespace{
			Name: namespace, Labels: map[string]string{model.MetadataNameLabel: namespace},
		}},
	}
}

// podPrerequisiteFiles are the manifests of podPrerequisites.
func podPrerequisiteFiles() []File {
	return []File{
		file("node.json", object{
			"apiVersion": "v1", "kind": "Node", "metadata": object{"name": Node},
			"spec":   object{"podCIDR": PodCIDR.String(), "podCIDRs": []string{PodCIDR.String()}},
			"status": object{"addresses": []object{{"type": "InternalIP", "address": NodeAddr.String()}}},
		}),
		NamespaceFile(),
	}
}
