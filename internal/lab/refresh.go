package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/lab/control"
	"sluice.dev/sluice/internal/lab/plan"
	"sluice.dev/sluice/internal/netns"
)

// refresh brings the plan in line with what the API holds, in a lab that has one: there, the plan is how the
// cluster was when it was last looked at.
func (l *Lab) refresh(ctx context.Context) error {
	if l.Kubernetes == nil {
		return nil
	}
	err := l.Plane(func(p *control.Plane) error {
		c := l.Cluster
		err := errors.Join(
			list(ctx, p, "/api/v1/namespaces", &c.Namespaces),
			list(ctx, p, "/api/v1/serviceaccounts", &c.Accounts),
			list(ctx, p, "/api/v1/pods", &c.Pods),
			list(ctx, p, "/api/v1/services", &c.Services),
			list(ctx, p, "/apis/discovery.k8s.io/v1/endpointslices", &c.Slices),
		)
		if err != nil {
			return err
		}
		c.Pods = slices.DeleteFunc(c.Pods, func(p *corev1.Pod) bool { // those that have done their work
			return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		})
		if l.Kubernetes.Proxy == "" { // kube-proxy has no part in policies
			if c.Policies, err = readPolicies(ctx, p); err != nil {
				return err
			}
		}
		c.Routes, err = l.outsideRoutes()
		return err
	})
	if err != nil {
		return fmt.Errorf("look at lab %s: %w", l.Name, err)
	}
	return nil
}

// list reads all objects of a resource.
func list[T any](ctx context.Context, p *control.Plane, path string, into *[]*T) error {
	var got struct{ Items []*T }
	if err := p.Get(ctx, path, &got); err != nil {
		return err
	}
	*into = got.Items
	return nil
}

// readPolicies reads the objects of the policy APIs that the server has. What means nothing is passed over: it is the agents' to find fault with.
func readPolicies(ctx context.Context, p *control.Plane) (policies []plan.Policy, err error) {
	for _, resource := range slices.Sorted(maps.Keys(plan.PolicyKinds)) {
		var objects []*json.RawMessage
		err := list(ctx, p, "/apis/"+resource, &objects)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		apiVersion := resource[:strings.LastIndex(resource, "/")]
		for _, object := range objects {
			var head struct {
				metav1.ObjectMeta `json:"metadata"`
			}
			if err := json.Unmarshal(*object, &head); err != nil {
				return nil, fmt.Errorf("read %s: %w", resource, err)
			}
			if policy, err := plan.NewPolicy(apiVersion, plan.PolicyKinds[resource], head.Namespace, head.Name, *object); err == nil {
				policies = append(policies, policy)
			}
		}
	}
	return policies, nil
}

// outsideRoutes reads by which node the outside host reaches the addresses of services.
func (l *Lab) outsideRoutes() (routes []plan.Route, err error) {
	outside, err := netns.Open(l.NodeNS(plan.Outside))
	if err != nil {
		return nil, err
	}
	defer outside.Close()
	all, err := outside.RouteList(nil, unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range all {
		if r.Dst == nil || r.Gw == nil {
			continue
		}
		to, _ := netip.AddrFromSlice(r.Dst.IP)
		via, _ := netip.AddrFromSlice(r.Gw)
		if ones, bits := r.Dst.Mask.Size(); ones != bits {
			continue
		}
		i := slices.IndexFunc(l.Cluster.Nodes, func(n plan.Node) bool { return slices.Contains(n.IPs, via.Unmap()) })
		if i >= 0 {
			routes = append(routes, plan.Route{Addr: to.Unmap(), Node: l.Cluster.Nodes[i].Name})
		}
	}
	return routes, nil
}

// waiting names the nodes and pods that are to be ready and are not.
func (l *Lab) waiting(ctx context.Context) (names []string, err error) {
	var nodes []*corev1.Node
	err = l.Plane(func(p *control.Plane) error { return list(ctx, p, "/api/v1/nodes", &nodes) })
	if err != nil {
		return nil, fmt.Errorf("look at lab %s: %w", l.Name, err)
	}
	for _, n := range l.Cluster.Nodes {
		if !slices.ContainsFunc(nodes, func(o *corev1.Node) bool { return o.Name == n.Name && nodeReady(o) }) {
			names = append(names, "node "+n.Name)
		}
	}
	for _, p := range l.Cluster.Pods {
		if p.DeletionTimestamp == nil && !plan.Ready(p) {
			names = append(names, "pod "+qualified(p.Namespace, p.Name))
		}
	}
	return names, nil
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
