package hostile

import (
	"fmt"

	"sluice.dev/sluice/test/bench/cluster"
)

// podObject is a running pod.
func podObject(namespace, name, node string, labels object, addr string) object {
	return object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name, "namespace": namespace, "labels": labels},
		"spec": object{"nodeName": node, "serviceAccountName": "default", "containers": []object{{"name": "main", "image": "none", "ports": []object{
			{"name": portName(0), "containerPort": 8080, "protocol": "TCP"}, {"name": portName(1), "containerPort": 9999, "protocol": "TCP"},
		}}}},
		"status": object{
			"phase": "Running", "podIP": addr, "podIPs": []object{{"ip": addr}},
			"conditions": []object{{"type": "Ready", "status": "True"}},
		},
	}
}

// pod is a tenant's pod. It may claim an address that other pods have.
func (d *dice) pod() []object {
	addr := d.addr(false, one(d, 0, -d.number*4096)).String() // its own, or one that several objects share
	p := podObject(d.namespaceName(), d.name(253), one(d, cluster.Node, "elsewhere"), d.labels(object{"tenant": "hostile"}), addr)
	status, spec := p["status"].(object), p["spec"].(object)
	if d.IntN(2) == 0 {
		status["podIPs"] = []object{{"ip": addr}, {"ip": d.addr(true, 0).String()}}
	}
	status["phase"] = one(d, "Running", "Running", "Pending", "Succeeded", "Failed")
	if d.rarely() {
		p["metadata"].(object)["deletionTimestamp"] = "2030-01-01T00:00:00Z"
	}
	put(d, spec, "serviceAccountName", func() string { return fmt.Sprint("a", d.IntN(10)) })
	if d.often() {
		spec["containers"] = list(d, 1, 500, 60, func(i int) object {
			return object{"name": fmt.Sprint("c", i), "image": "none", "ports": list(d, 0, 20_000, 55, func(j int) object {
				return object{"name": portName(j), "containerPort": 1 + j%65535, "protocol": one(d, protocols...)}
			})}
		})
	}
	return []object{p}
}

// node is another node. The API checks neither its addresses nor those of its pods.
func (d *dice) node() []object {
	m := d.meta(253)
	m["labels"] = d.labels(nil)
	spec := object{}
	put(d, spec, "podCIDRs", func() []string {
		return one(d, []string{d.addr(false, 0).String() + "/24"}, []string{"8.0.0.0/5", "2000::/3"}, []string{d.addr(false, 0).String() + "/32", "fd00::/8"})
	})
	put(d, spec, "taints", func() []object {
		return list(d, 0, 5_000, 60, func(i int) object {
			return object{"key": one(d, "ToBeDeletedByClusterAutoscaler", fmt.Sprint("t", i)), "effect": "NoSchedule"}
		})
	})
	addresses := list(d, 0, 30_000, 45, func(i int) object {
		return object{"type": one(d, "InternalIP", "ExternalIP", "Hostname"), "address": d.addr(i%3 == 2, i).String()}
	})
	return []object{{"apiVersion": "v1", "kind": "Node", "metadata": m, "spec": spec, "status": object{"addresses": addresses}}}
}

func (d *dice) namespace() []object {
	m := d.meta(63)
	m["labels"] = d.labels(object{"kubernetes.io/metadata.name": m["name"]})
	return []object{{"apiVersion": "v1", "kind": "Namespace", "metadata": m}}
}

func (d *dice) account() []object {
	m := d.namespaced(253)
	m["labels"] = d.labels(nil)
	return []object{{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": m}}
}
