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
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// api is what the lab reads of a control plane.
type api interface {
	Get(ctx context.Context, path string, into any) error
}

// refresh brings the plan in line with the API, in a lab that has one: there, the plan is the
// cluster at the last reading.
func (l *Lab) refresh(ctx context.Context) error {
	if l.Kubernetes == nil {
		return nil
	}
	err := l.Plane(func(p *control.Plane) error { return l.read(ctx, p) })
	for i := range l.Cluster.Nodes {
		if err == nil {
			err = l.linkSandboxes(&l.Cluster.Nodes[i])
		}
	}
	if err == nil {
		l.Cluster.Routes, err = l.outsideRoutes()
	}
	if err != nil {
		return fmt.Errorf("look at lab %s: %w", l.Name, err)
	}
	return nil
}

// read replaces the plan's objects by those of the API. Slices are read after the pods: a pod that
// was ready then is in them once the controllers have seen it.
func (l *Lab) read(ctx context.Context, from api) error {
	c := l.Cluster
	err := errors.Join(
		list(ctx, from, "/api/v1/namespaces", &c.Namespaces),
		list(ctx, from, "/api/v1/serviceaccounts", &c.Accounts),
		list(ctx, from, "/api/v1/pods", &c.Pods),
		list(ctx, from, "/api/v1/services", &c.Services),
		list(ctx, from, "/apis/discovery.k8s.io/v1/endpointslices", &c.Slices),
	)
	if err != nil {
		return err
	}
	l.unplaced = nil
	c.Pods = slices.DeleteFunc(c.Pods, func(p *corev1.Pod) bool {
		done := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		placed := p.Spec.NodeName != "" && len(p.Status.PodIPs) > 0
		if !done && !placed {
			l.unplaced = append(l.unplaced, p)
		}
		return done || !placed
	})
	if l.Kubernetes.Proxy == "" { // kube-proxy does not enforce policies
		c.Policies, err = readPolicies(ctx, from)
	}
	return err
}

// list reads all objects of a resource.
func list[T any](ctx context.Context, from api, path string, into *[]*T) error {
	var got struct{ Items []*T }
	if err := from.Get(ctx, path, &got); err != nil {
		return err
	}
	*into = got.Items
	return nil
}

// readPolicies reads the objects of the policy APIs that the server has. It skips invalid ones: the
// agents report them. Of several versions of a resource it reads one.
func readPolicies(ctx context.Context, from api) (policies []plan.Policy, err error) {
	done := map[[2]string]bool{} // groups and plurals
	for _, resource := range slices.Sorted(maps.Keys(plan.PolicyKinds)) {
		parts := strings.Split(resource, "/")
		name := [2]string{parts[0], parts[2]}
		if done[name] {
			continue
		}
		var objects []*json.RawMessage
		err := list(ctx, from, "/apis/"+resource, &objects)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		done[name] = true
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

// outsideRoutes returns the nodes through which the outside host reaches the addresses of services.
func (l *Lab) outsideRoutes() (routes []plan.Route, err error) {
	hops, err := l.hostRoutes(plan.Outside)
	if err != nil {
		return nil, err
	}
	for to, via := range hops {
		if slices.Contains(plan.RouterIPs(0), via) {
			behind, err := l.hostRoutes(plan.Router)
			if err != nil {
				return nil, err
			}
			via = behind[to]
		}
		i := slices.IndexFunc(l.Cluster.Nodes, func(n plan.Node) bool { return slices.Contains(n.IPs, via) })
		if i >= 0 {
			routes = append(routes, plan.Route{Addr: to, Node: l.Cluster.Nodes[i].Name})
		}
	}
	return routes, nil
}

// hostRoutes returns the gateways by which a host reaches single addresses.
func (l *Lab) hostRoutes(host string) (map[netip.Addr]netip.Addr, error) {
	ns, err := netns.Open(l.NodeNS(host))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	all, err := ns.RouteList(nil, unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	hops := map[netip.Addr]netip.Addr{}
	for _, r := range all {
		if r.Dst == nil || r.Gw == nil {
			continue
		}
		to, _ := netip.AddrFromSlice(r.Dst.IP)
		via, _ := netip.AddrFromSlice(r.Gw)
		if ones, bits := r.Dst.Mask.Size(); ones == bits {
			hops[to.Unmap()] = via.Unmap()
		}
	}
	return hops, nil
}

// survey reads the API and names the nodes, workloads, pods and services that are not ready yet;
// terminating pods have to be gone. It reads workloads before pods: if a workload has all of its
// pods, they are among those read.
func (l *Lab) survey(ctx context.Context, from api) (names []string, err error) {
	var nodes []*corev1.Node
	if err := list(ctx, from, "/api/v1/nodes", &nodes); err != nil {
		return nil, err
	}
	workloads, err := waitingWorkloads(ctx, from)
	if err != nil {
		return nil, err
	}
	if err := l.read(ctx, from); err != nil {
		return nil, err
	}
	for _, n := range l.Cluster.Nodes {
		if !slices.ContainsFunc(nodes, func(o *corev1.Node) bool { return o.Name == n.Name && nodeReady(o) }) {
			names = append(names, "node "+n.Name)
		}
	}
	names = append(names, workloads...)
	for _, p := range slices.Concat(l.Cluster.Pods, l.unplaced) {
		if p.DeletionTimestamp != nil || !plan.Ready(p) {
			names = append(names, "pod "+qualified(p.Namespace, p.Name)+reason(p))
		}
	}
	for _, svc := range l.Cluster.Services {
		if !l.complete(svc) {
			names = append(names, "service "+qualified(svc.Namespace, svc.Name))
		}
	}
	return names, nil
}

// waitingWorkloads names workloads with missing or unready pods.
func waitingWorkloads(ctx context.Context, from api) (names []string, err error) {
	for _, path := range []string{
		"/apis/apps/v1/deployments", "/apis/apps/v1/statefulsets", "/apis/apps/v1/daemonsets", "/apis/apps/v1/replicasets", "/api/v1/replicationcontrollers",
	} {
		var workloads []*struct {
			metav1.ObjectMeta `json:"metadata"`
			Spec              struct{ Replicas int }
			Status            struct {
				ObservedGeneration                                 int64
				ReadyReplicas, DesiredNumberScheduled, NumberReady int
			}
		}
		if err := list(ctx, from, path, &workloads); err != nil {
			return nil, err
		}
		for _, w := range workloads {
			s := w.Status
			if s.ObservedGeneration < w.Generation || s.ReadyReplicas < w.Spec.Replicas || s.NumberReady < s.DesiredNumberScheduled {
				kind := strings.TrimSuffix(path[strings.LastIndex(path, "/")+1:], "s")
				names = append(names, kind+" "+qualified(w.Namespace, w.Name))
			}
		}
	}
	jobs, err := waitingJobs(ctx, from)
	return append(names, jobs...), err
}

// waitingJobs names jobs that have not begun to make their pods.
func waitingJobs(ctx context.Context, from api) (names []string, err error) {
	var jobs []*batchv1.Job
	if err := list(ctx, from, "/apis/batch/v1/jobs", &jobs); err != nil {
		return nil, err
	}
	for _, j := range jobs {
		s := j.Status
		over := slices.ContainsFunc(s.Conditions, func(c batchv1.JobCondition) bool { return c.Status == corev1.ConditionTrue }) // or suspended
		wantsNone := over || j.Spec.Parallelism != nil && *j.Spec.Parallelism == 0
		if s.Active+s.Succeeded+s.Failed == 0 && !wantsNone {
			names = append(names, "job "+qualified(j.Namespace, j.Name))
		}
	}
	return names, nil
}

// complete reports whether the controllers have completed a Service: its ready pods are endpoints,
// and it has the addresses of its type.
func (l *Lab) complete(svc *corev1.Service) bool {
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.LoadBalancerClass == nil && len(svc.Status.LoadBalancer.Ingress) < len(svc.Spec.IPFamilies) {
		return false
	}
	endpoints := map[string]bool{}
	for _, slice := range l.Cluster.SlicesOf(svc) {
		for _, e := range slice.Endpoints {
			if e.TargetRef != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				endpoints[e.TargetRef.Name] = true
			}
		}
	}
	for _, p := range l.Cluster.Pods {
		if plan.Selects(svc, p) && p.DeletionTimestamp == nil && plan.Ready(p) && !endpoints[p.Name] {
			return false
		}
	}
	return true
}

// reason returns in brackets why a pod is not ready, from its conditions; or nothing.
func reason(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			return " (" + c.Message + ")"
		}
	}
	return ""
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
