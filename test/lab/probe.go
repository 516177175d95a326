package lab

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/probe"
	"sluice.dev/sluice/test/lab/standin"
)

// Probe sends n requests through every frontend of every service, from a pod on each node, from
// each node, and from outside. Services limits it to the given ones, as "namespace/name" or "name"
// (in any namespace); none means all. The error says why the probe could not be done; failed
// requests are in the report. If there are policies, a client of each workload also sends to each
// service port, for the table of who reaches what. Failures while a control plane changes the
// cluster are excused.
func (l *Lab) Probe(ctx context.Context, n int, services []string) (*probe.Report, error) {
	begin := time.Now()
	if err := l.refresh(ctx); err != nil {
		return nil, err
	}
	before, sources, clients := *l.Cluster, l.sources(), l.clients()
	tries, pairs, silent := l.tries(sources, clients)
	if len(services) > 0 {
		only, err := l.servicesNamed(services)
		if err != nil {
			return nil, err
		}
		other := func(t probe.Try) bool { return !only[t.Service] }
		tries, pairs = slices.DeleteFunc(tries, other), slices.DeleteFunc(pairs, other)
		silent = slices.DeleteFunc(silent, func(s probe.Silent) bool { return !only[s.Service] })
	}
	results, err := probe.Run(ctx, tries, n)
	if err != nil {
		return nil, fmt.Errorf("probe lab %s: %w", l.Name, err)
	}
	answers, err := probe.Run(ctx, pairs, 1)
	if err != nil {
		return nil, fmt.Errorf("probe lab %s: %w", l.Name, err)
	}
	failed := func(r probe.Result) bool { return r.Failed > 0 }
	if l.Kubernetes != nil && (slices.ContainsFunc(results, failed) || slices.ContainsFunc(answers, failed)) {
		if err := l.refresh(ctx); err != nil { // a control plane may have changed it meanwhile
			return nil, err
		}
		tries, pairs, _ := l.tries(l.existing(sources), l.existing(clients))
		probe.Excuse(results, &before, l.Cluster, tries)
		probe.Excuse(answers, &before, l.Cluster, pairs)
	}
	rep := probe.NewReport(results, silent)
	if len(answers) > 0 {
		rep.AddPairs(answers)
	}
	rep.Lab, rep.Took = l.Name, model.Duration(time.Since(begin).Round(time.Millisecond))
	return rep, nil
}

// tries lists the tries from sources, those from clients if there are policies, and the services
// without tries.
func (l *Lab) tries(sources, clients []probe.Source) (tries, pairs []probe.Try, silent []probe.Silent) {
	tries, silent = probe.Tries(l.Cluster, sources)
	if l.Kubernetes != nil && l.Kubernetes.Proxy != "" {
		probe.OfKubeProxy(l.Cluster, tries)
	}
	if len(l.Cluster.Policies) > 0 {
		pairs = probe.PairTries(l.Cluster, clients)
	}
	for _, name := range slices.Sorted(maps.Keys(l.foreign())) {
		silent = append(silent, probe.Silent{Service: name, Why: "its pods run programs of their own, which say nothing of themselves"})
	}
	return l.answerable(tries), l.answerable(pairs), silent
}

// answerable leaves out the API server's own service, and those of pods that run programs of their
// own: no server of the lab answers there.
func (l *Lab) answerable(tries []probe.Try) []probe.Try {
	foreign := l.foreign()
	return slices.DeleteFunc(tries, func(t probe.Try) bool {
		return l.Kubernetes != nil && t.Service == "default/kubernetes" || foreign[t.Service]
	})
}

// foreign returns the services that have a pod without a stand-in, in a lab that runs images.
func (l *Lab) foreign() map[string]bool {
	found := map[string]bool{}
	if l.Kubernetes == nil {
		return found
	}
	for _, svc := range l.Cluster.Services {
		if slices.ContainsFunc(l.Cluster.Pods, func(p *corev1.Pod) bool { return plan.Selects(svc, p) && len(standin.Of(p)) == 0 }) {
			found[svc.Namespace+"/"+svc.Name] = true
		}
	}
	return found
}

// PairTries lists the tries for the table of who reaches what, whether or not there are policies.
func (l *Lab) PairTries(ctx context.Context) ([]probe.Try, error) {
	if err := l.refresh(ctx); err != nil {
		return nil, err
	}
	return l.answerable(probe.PairTries(l.Cluster, l.clients())), nil
}

// existing leaves out the pods that no longer exist.
func (l *Lab) existing(sources []probe.Source) []probe.Source {
	return slices.DeleteFunc(slices.Clone(sources), func(s probe.Source) bool {
		return s.Kind == probe.FromPod && !slices.ContainsFunc(l.Cluster.Pods, func(p *corev1.Pod) bool { return p.Namespace+"/"+p.Name == s.Name })
	})
}

// servicesNamed finds Services by name, and returns an error for one that does not exist.
func (l *Lab) servicesNamed(services []string) (map[string]bool, error) {
	found := map[string]bool{}
	for _, want := range services {
		known := false
		for _, svc := range l.Cluster.Services {
			if name := svc.Namespace + "/" + svc.Name; want == name || want == svc.Name {
				found[name], known = true, true
			}
		}
		if !known {
			return nil, fmt.Errorf("probe lab %s: it has no Service %s; 'sluice lab status --name %s' lists them", l.Name, want, l.Name)
		}
	}
	return found, nil
}

// sources lists the sources of a probe's requests: one pod on each node that has any, if possible
// of different workloads, the nodes, and the outside.
func (l *Lab) sources() []probe.Source {
	var pods, nodes []probe.Source
	have := map[string]bool{} // workloads
	for _, n := range l.Cluster.Nodes {
		nodes = append(nodes, probe.Source{Kind: probe.FromNode, Name: n.Name, Node: n.Name, NetNS: l.NodeNS(n.Name), Addrs: n.IPs})
		on := func(p *corev1.Pod) bool { return p.Spec.NodeName == n.Name && l.canAsk(p) }
		i := slices.IndexFunc(l.Cluster.Pods, func(p *corev1.Pod) bool { return on(p) && !have[plan.WorkloadOf(p)] })
		if i < 0 {
			i = slices.IndexFunc(l.Cluster.Pods, on)
		}
		if i >= 0 {
			pods = append(pods, l.source(l.Cluster.Pods[i]))
			have[plan.WorkloadOf(l.Cluster.Pods[i])] = true
		}
	}
	outside := probe.Source{Kind: probe.FromOutside, Name: plan.Outside, NetNS: l.NodeNS(plan.Outside), Addrs: l.Cluster.OutsideIPs}
	return append(append(pods, nodes...), outside)
}

// clients lists one pod of each workload, as sources; pods on their node's network are the node.
func (l *Lab) clients() []probe.Source {
	var clients []probe.Source
	seen := map[string]bool{}
	for _, p := range l.Cluster.Pods {
		if w := plan.WorkloadOf(p); !seen[w] && l.canAsk(p) {
			seen[w] = true
			clients = append(clients, l.source(p))
		}
	}
	return clients
}

// canAsk reports whether requests may come from a pod: it has a network of its own that is not
// about to be removed.
func (l *Lab) canAsk(p *corev1.Pod) bool {
	return !p.Spec.HostNetwork && (l.Kubernetes == nil || p.DeletionTimestamp == nil)
}

func (l *Lab) source(p *corev1.Pod) probe.Source {
	return probe.Source{
		Kind: probe.FromPod, Name: p.Namespace + "/" + p.Name, Node: p.Spec.NodeName, Of: plan.WorkloadOf(p),
		NetNS: l.PodNS(p), Addrs: plan.Addrs(p),
	}
}
