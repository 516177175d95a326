package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// clientNamespace is the Kubernetes namespace of the pods shared by all cases: client1 on node1,
// and so on. They have servers, too, on port 80 and on those of the fence.
const clientNamespace = "clients"

// world is a cluster as the cases see it.
type world struct {
	Cluster
	*api
	ips       map[string][]string // addresses of nodes
	nodeAddrs []netip.Addr        // of all nodes
	hosts     map[string]*place   // the nodes, and outside
}

// newWorld waits for a cluster's nodes and starts the clients.
func newWorld(ctx context.Context, c Cluster) (*world, error) {
	a, err := newAPI(c.Config())
	if err != nil {
		return nil, err
	}
	w := &world{Cluster: c, api: a, ips: map[string][]string{}, hosts: map[string]*place{}}
	for _, name := range nodes {
		if err := w.addNode(ctx, name); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	if w.hosts[outside], err = openPlace(c.HostNS(outside)); err != nil {
		return nil, errors.Join(err, w.close())
	}
	if err := w.startClients(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) close() error {
	var errs []error
	for _, h := range w.hosts {
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}

func (w *world) addresses(node string) []string { return w.ips[node] }

func (w *world) addNode(ctx context.Context, name string) error {
	n := &corev1.Node{}
	n.Name = name
	err := until(ctx, func() error {
		if err := w.get(ctx, n); err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("node %s is not ready", name)
	})
	if err != nil {
		return err
	}
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			w.ips[name] = append(w.ips[name], a.Address)
			w.nodeAddrs = append(w.nodeAddrs, addr)
		}
	}
	w.hosts[name], err = openPlace(w.HostNS(name))
	return err
}

func (w *world) startClients(ctx context.Context) error {
	ns := &corev1.Namespace{}
	ns.Name = clientNamespace
	if err := w.create(ctx, ns); err != nil {
		return err
	}
	var pods []*corev1.Pod
	for i := range nodes {
		p := pod(fmt.Sprintf("client%d", i+1), i+1, labelled("client"), serving(tcp, 80, fencePort, fencePort+1))
		p.Namespace = clientNamespace
		if err := w.create(ctx, p); err != nil {
			return err
		}
		pods = append(pods, p)
	}
	for _, p := range pods {
		if err := w.runs(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// runs waits until a pod runs and, unless it is gated, is ready.
func (w *world) runs(ctx context.Context, p *corev1.Pod) error {
	return until(ctx, func() error {
		if err := w.get(ctx, p); err != nil {
			return final{err}
		}
		if p.Status.Phase != corev1.PodRunning || len(p.Status.PodIPs) == 0 || len(p.Spec.ReadinessGates) == 0 && !isReady(p) {
			return fmt.Errorf("pod %s does not run: %s %s", p.Name, p.Status.Phase, p.Status.Message)
		}
		return nil
	})
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
