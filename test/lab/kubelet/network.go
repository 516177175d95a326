package kubelet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	kernel "sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/test/lab/sandbox"
	"sluice.dev/sluice/test/netns"
)

// attachment is a pod's network: its own namespace, which the id distinguishes from a later one of
// that name, perhaps made by another node.
type attachment struct {
	sandbox.Pod
	id kernel.ID
}

// pod returns a pod as the plugins know it. Pods' names and namespaces are unique in a cluster, and
// no node's name has a dot.
func (k *kubelet) pod(namespace, name string) sandbox.Pod {
	return sandbox.Pod{Namespace: namespace, Name: name, NetNS: k.NSPrefix + name + "." + namespace}
}

// checkName returns an error if a pod's name is too long for the file of its namespace.
func (k *kubelet) checkName(pod *corev1.Pod) error {
	over := len(k.pod(pod.Namespace, pod.Name).NetNS) - unix.NAME_MAX
	if over <= 0 {
		return nil
	}
	have := len(pod.Name) + len(pod.Namespace)
	return fmt.Errorf("name and namespace of a pod may have at most %d characters together in this lab, and have %d: give it a shorter name",
		have-over, have)
}

// attach gives a pod a namespace with addresses, those that it had if they are to be had, or finds
// the existing one.
func (k *kubelet) attach(pod *corev1.Pod) (*attachment, []netip.Addr, error) {
	a := &attachment{Pod: k.pod(pod.Namespace, pod.Name)}
	if addrs := k.network.Attached(a.Pod); addrs != nil {
		a.id = a.ID()
		return a, addrs, nil
	}
	want := addresses(pod)
	if len(want) == 0 {
		awaitRemoval(a.NetNS)
	}
	k.building <- struct{}{} // the kernel makes namespaces one by one anyway
	defer func() { <-k.building }()
	if err := k.network.Remove(a.Pod, a.ID()); err != nil { // what remains of an earlier pod of that name
		return nil, nil, err
	}
	addrs, err := k.network.Add(a.Pod, want)
	if err != nil && len(want) > 0 { // somebody has them
		addrs, err = k.network.Add(a.Pod, nil)
	}
	a.id = a.ID()
	return a, addrs, err
}

// awaitRemoval gives another node time to remove its pod of that name.
func awaitRemoval(ns string) {
	for deadline := time.Now().Add(3 * time.Second); exists(ns) && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
}

func exists(ns string) bool {
	_, err := os.Stat(filepath.Join(netns.Dir, ns))
	return err == nil
}

// inside reports whether this process is in the namespace.
func inside(ns *netns.NS) bool {
	own, _ := kernel.IDOf("/proc/self/ns/net")
	other, ok := kernel.IDOf(ns.Path())
	return ok && own == other
}

// sweep removes this node's pods except the named ones, "namespace/name".
func (k *kubelet) sweep(keep map[string]bool) error {
	pods, err := k.network.Pods()
	errs := []error{err}
	for _, p := range pods {
		if !keep[p.Namespace+"/"+p.Name] {
			errs = append(errs, k.network.Remove(p, p.ID()))
		}
	}
	return errors.Join(errs...)
}
