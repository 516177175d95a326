package lab

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/sandbox"
	"sluice.dev/sluice/test/netns"
)

// attachPods attaches the pods of the plan that are not attached yet. It returns what detaches
// those that the plan has no more.
func (l *Lab) attachPods(ctx context.Context) (detach func() error, err error) {
	var (
		wg      sync.WaitGroup
		changes = make([]change, len(l.Cluster.Nodes))
		errs    = make([]error, len(l.Cluster.Nodes))
	)
	for i := range l.Cluster.Nodes {
		wg.Go(func() { changes[i], errs[i] = l.attachPodsOf(ctx, &l.Cluster.Nodes[i]) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, c := range changes {
		for p, addrs := range c.addrs {
			l.Cluster.SetAddrs(p, addrs)
		}
	}
	return func() error {
		var errs []error
		for i, c := range changes {
			errs = append(errs, l.network(&l.Cluster.Nodes[i], func(n *sandbox.Network) error {
				for _, p := range c.gone {
					if err := n.Remove(p, p.ID()); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		return errors.Join(errs...)
	}, nil
}

// change is what has changed of a node's pods: the addresses that new ones got, and those that the
// plan has no more.
type change struct {
	addrs map[*corev1.Pod][]netip.Addr
	gone  []sandbox.Pod
}

func (l *Lab) attachPodsOf(ctx context.Context, node *plan.Node) (c change, err error) {
	c.addrs = map[*corev1.Pod][]netip.Addr{}
	return c, l.network(node, func(n *sandbox.Network) error {
		have, err := n.Pods()
		if err != nil {
			return err
		}
		c.gone = have
		for _, p := range l.Cluster.Pods {
			if p.Spec.NodeName != node.Name || p.Spec.HostNetwork {
				continue
			}
			pod := sandbox.Pod{Namespace: p.Namespace, Name: p.Name, NetNS: l.PodNS(p)}
			if i := slices.Index(c.gone, pod); i >= 0 {
				c.gone = slices.Delete(c.gone, i, i+1)
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if c.addrs[p], err = n.Add(pod, plan.Addrs(p)); err != nil {
				return err
			}
		}
		return nil
	})
}

// network calls f with what attaches the pods of a node.
func (l *Lab) network(node *plan.Node, f func(*sandbox.Network) error) error {
	ns, err := netns.Open(l.NodeNS(node.Name))
	if err != nil {
		return err
	}
	defer ns.Close()
	cfg := l.sandboxConfig(node.Name)
	cfg.Node, cfg.Ranges = ns, node.PodCIDRs
	n, err := sandbox.Open(cfg)
	if err != nil {
		return err
	}
	return f(n)
}

// sandboxConfig is what attaches the pods of a node, except for the node's namespace and the
// ranges. Pods come before the agents that make tunnels, so the lab says their MTU.
func (l *Lab) sandboxConfig(node string) sandbox.Config {
	return sandbox.Config{MTU: l.Cluster.Fabric.MTU(), Dir: l.path(node, "cni"), Path: []string{filepath.Dir(l.Sluice), "/opt/cni/bin", "/usr/lib/cni"}, File: l.CNI}
}
