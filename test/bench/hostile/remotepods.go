package hostile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"sluice.dev/sluice/test/bench/cluster"
)

// RemotePods is the approximate number of pods on other nodes: tenants', bystanders' and others'.
// The cost of policies that select most of a cluster depends on it. Each file has some hundred
// pods.
type RemotePods int

const (
	inFile         = 100 // pods, about
	candidates     = inFile * 5 / 4
	perOtherFamily = 8 // one pod in so many also has an address of the other family
	others         = 20
)

// bystanders is the namespace of the pods that should not be affected.
var bystanders = cluster.ServiceName(0).Namespace

// other is a namespace of neither tenants nor bystanders.
func other(i int) string { return fmt.Sprint("other-", i) }

// Files returns the number of files.
func (c RemotePods) Files() int { return (int(c) + inFile - 1) / inFile }

// File is a version of a file. Some dozens of pods differ between any two versions: they are
// missing, new, or have other labels.
func (c RemotePods) File(number, version int) cluster.File {
	return file(fmt.Sprintf("crowd-%04d.json", number), object{"apiVersion": "v1", "kind": "List", "items": c.pods(number, version)})
}

// Pods are the pods of a version of a file, each as a file of its own.
func (c RemotePods) Pods(number, version int) (all []cluster.File) {
	for _, p := range c.pods(number, version) {
		all = append(all, file(fmt.Sprint(p["metadata"].(object)["name"], ".json"), p))
	}
	return all
}

// Change is the file that changes with a step, in its new version.
func (c RemotePods) Change(step int) cluster.File { return c.File(step%c.Files(), 1+step) }

// Addresses returns how many addresses the pods have in the first version.
func (c RemotePods) Addresses() (n int) {
	for i := range c.Files() {
		for _, p := range c.pods(i, 0) {
			n += len(p["status"].(object)["podIPs"].([]object))
		}
	}
	return n
}

func (c RemotePods) pods(number, version int) (all []object) {
	draw := rand.New(rand.NewPCG(uint64(number), uint64(version)))
	for candidate := range candidates {
		there, changed := draw.IntN(5) > 0, draw.IntN(4) == 0
		if !there {
			continue
		}
		i := number*candidates + candidate
		namespace, labels := remotePodLabels(i)
		if changed {
			labels["version"] = fmt.Sprint("v", version)
		}
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		p := podObject(namespace, fmt.Sprint("crowd-", i), "elsewhere", labels, addr.String())
		if i%perOtherFamily == 0 {
			six := netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x69, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
			p["status"].(object)["podIPs"] = []object{{"ip": addr.String()}, {"ip": six.String()}}
		}
		all = append(all, p)
	}
	return all
}

// remotePodLabels are the labels of a pod of a deployment, of a stateful set or of a job, or none.
// A third of the pods are tenants'.
func remotePodLabels(i int) (namespace string, labels object) {
	switch i % 9 {
	case 0, 1, 2:
		namespace = tenant(i % tenants)
	case 3:
		namespace = bystanders
	default:
		namespace = other(i / 9 % others)
	}
	app := i / 9 / 20 // of twenty pods or so
	switch i % 10 {
	case 0:
		labels = object{"app": word(app), "statefulset.kubernetes.io/pod-name": fmt.Sprintf("db-%d", i), "apps.kubernetes.io/pod-index": fmt.Sprint(i % 20)}
	case 1:
		labels = object{"batch.kubernetes.io/job-name": fmt.Sprintf("job-%d", i), "batch.kubernetes.io/controller-uid": fmt.Sprintf("%032x", i)}
	case 2:
		labels = object{}
	default:
		labels = object{"app": word(app), "role": word(i), "version": fmt.Sprint("v", app%3), "pod-template-hash": fmt.Sprintf("%010x", app*2654435761)}
	}
	return namespace, labels
}
