package lab

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/standin"
)

// Status is a lab's state, for people and programs.
type Status struct {
	Name     string          `json:"name"`
	Up       bool            `json:"up"` // all of its processes run
	Nodes    []NodeStatus    `json:"nodes"`
	Pods     []PodStatus     `json:"pods"`
	Services []ServiceStatus `json:"services"`
	Policies []model.Ref     `json:"policies"`
	Passed   map[string]int  `json:"passedOver"` // objects that the lab ignores, by kind
	Warnings []string        `json:"warnings"`
}

// NodeStatus is a node's line.
type NodeStatus struct {
	Name   string       `json:"name"`
	Zone   string       `json:"zone"`
	NetNS  string       `json:"netns"`
	IPs    []netip.Addr `json:"ips"`
	Pods   int          `json:"pods"`
	Server string       `json:"server"` // "running" or "dead"
	Agent  string       `json:"agent"`  // "in sync", "dead", "none", "kube-proxy", or a fault
	Socket string       `json:"socket,omitempty"`
}

// PodStatus is a pod's line.
type PodStatus struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Node      string       `json:"node"`
	State     string       `json:"state"` // "ready", "not ready", "terminating" or "pending"
	IPs       []netip.Addr `json:"ips"`
	Ports     []string     `json:"ports"`
	// StandsInFor are the images that the lab does not have, in place of which a small server runs.
	StandsInFor []string `json:"standsInFor,omitempty"`
}

// ServiceStatus is a Service's line.
type ServiceStatus struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Type      string       `json:"type"` // with "headless" for a ClusterIP Service without address
	IPs       []netip.Addr `json:"ips"`
	External  []netip.Addr `json:"external"` // ingress addresses and externalIPs
	Ports     []string     `json:"ports"`    // "80:30080/TCP"
	Endpoints int          `json:"endpoints"`
}

// Status reads the state of the lab. All agents together get a few seconds to report that they are
// in sync.
func (l *Lab) Status(ctx context.Context) *Status {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s := &Status{Name: l.Name, Up: l.alive(), Passed: l.Cluster.Passed, Warnings: slices.Clone(l.Cluster.Notes)}
	if err := l.refresh(ctx); err != nil {
		s.Warnings = append(s.Warnings, firstLine(err))
	}
	for _, p := range l.processes() {
		if !p.Alive() && l.Kubernetes != nil {
			s.Warnings = append(s.Warnings, fmt.Sprintf("%s on %s has died; 'sluice lab restart --name %s %s' starts it again", p.what, p.node, l.Name, p.node))
		}
	}
	for _, n := range l.Cluster.Nodes {
		ns := NodeStatus{Name: n.Name, Zone: n.Zone, NetNS: l.NodeNS(n.Name), IPs: n.IPs, Server: "dead"}
		var faults []string
		ns.Agent, faults = l.agentState(ctx, n.Name)
		for _, fault := range faults {
			if text := "agents: " + fault; !slices.Contains(s.Warnings, text) {
				s.Warnings = append(s.Warnings, text)
			}
		}
		if l.process(n.Name, "serve").Alive() || l.process(n.Name, "kubelet").Alive() {
			ns.Server = "running"
		}
		if ns.Agent != "none" && ns.Agent != kubeProxy {
			ns.Socket = l.socket(n.Name)
		}
		for _, p := range l.Cluster.Pods {
			if p.Spec.NodeName == n.Name {
				ns.Pods++
			}
		}
		s.Nodes = append(s.Nodes, ns)
	}
	for _, p := range slices.Concat(l.Cluster.Pods, l.unplaced) {
		s.Pods = append(s.Pods, l.podStatus(p))
	}
	for _, svc := range l.Cluster.Services {
		s.Services = append(s.Services, l.serviceStatus(svc))
	}
	for _, p := range l.Cluster.Policies {
		s.Policies = append(s.Policies, refOf(p))
	}
	return s
}

// refOf names an object of a policy API as sluice does.
func refOf(p plan.Policy) model.Ref {
	ref := model.Ref{Kind: model.Kind(p.Kind), Name: model.Name{Namespace: p.Namespace, Name: p.Name}}
	for _, k := range kinds.All {
		if k.Name == p.Kind && slices.ContainsFunc(k.Places, func(r kinds.Resource) bool { return r.APIVersion() == p.APIVersion }) {
			ref.Kind = k.Kind
		}
	}
	return ref
}

// agentState says how a node's agent is, and which faults it finds in objects.
func (l *Lab) agentState(ctx context.Context, node string) (state string, faults []string) {
	if l.agentProcess(node).PID == 0 && !l.installed() {
		switch p := l.process(node, kubeProxy); {
		case p.Alive():
			return kubeProxy, nil
		case p.PID != 0:
			return "dead", nil
		}
		return "none", nil
	}
	if !l.agentProcess(node).Alive() {
		return "dead", nil
	}
	if l.agent == nil {
		return "running", nil
	}
	issues, err := l.agent.Sync(ctx, l.socket(node))
	switch {
	case err != nil:
		return "not in sync: " + firstLine(err), nil
	case len(issues) > 0:
		return "in sync except for " + model.Count(len(issues), "fault"), issues
	}
	return "in sync", nil
}

func (l *Lab) podStatus(p *corev1.Pod) PodStatus {
	s := PodStatus{Namespace: p.Namespace, Name: p.Name, Node: p.Spec.NodeName, State: "ready", IPs: plan.Addrs(p)}
	switch {
	case p.Spec.NodeName == "":
		s.State = "pending"
	case p.DeletionTimestamp != nil:
		s.State = "terminating"
	case !plan.Ready(p):
		s.State = "not ready"
	}
	for _, port := range l.Cluster.Ports(p) {
		s.Ports = append(s.Ports, fmt.Sprintf("%d/%s", port.Port, port.Protocol))
	}
	for _, r := range standin.Of(p) {
		if !slices.Contains(s.StandsInFor, r.Image) {
			s.StandsInFor = append(s.StandsInFor, r.Image)
		}
	}
	return s
}

func (l *Lab) serviceStatus(svc *corev1.Service) ServiceStatus {
	s := ServiceStatus{Namespace: svc.Namespace, Name: svc.Name, Type: string(svc.Spec.Type), IPs: plan.ClusterIPs(svc)}
	if plan.Headless(svc) {
		s.Type = "headless"
	}
	s.External = append(plan.IngressIPs(svc), plan.ExternalIPs(svc)...)
	for _, p := range svc.Spec.Ports {
		port := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort != 0 {
			port = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
		s.Ports = append(s.Ports, port)
	}
	seen := map[string]bool{}
	for _, slice := range l.Cluster.SlicesOf(svc) {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			who := e.Addresses[0]
			if e.TargetRef != nil {
				who = e.TargetRef.Namespace + "/" + e.TargetRef.Name
			}
			seen[who] = true // a dual-stack pod is one endpoint
		}
	}
	s.Endpoints = len(seen)
	return s
}

// Table writes the status for people, its columns separated by tabs.
func (s *Status) Table(w io.Writer) {
	line := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }
	line("NODE", "ZONE", "ADDRESSES", "PODS", "SERVER", "AGENT", "NAMESPACE")
	for _, n := range s.Nodes {
		line(n.Name, n.Zone, dash(model.Join(n.IPs, " ")), fmt.Sprint(n.Pods), n.Server, n.Agent, n.NetNS)
	}
	line()
	heading := []string{"POD", "NODE", "STATE", "ADDRESSES", "PORTS"}
	standIns := slices.ContainsFunc(s.Pods, func(p PodStatus) bool { return len(p.StandsInFor) > 0 })
	if standIns {
		heading = append(heading, "STANDS IN FOR")
	}
	line(heading...)
	for _, p := range s.Pods {
		cells := []string{qualified(p.Namespace, p.Name), dash(p.Node), p.State, dash(model.Join(p.IPs, " ")), dash(strings.Join(p.Ports, " "))}
		if standIns {
			cells = append(cells, dash(strings.Join(p.StandsInFor, " ")))
		}
		line(cells...)
	}
	line()
	line("SERVICE", "TYPE", "CLUSTER ADDRESSES", "EXTERNAL ADDRESSES", "PORTS", "READY")
	for _, v := range s.Services {
		line(qualified(v.Namespace, v.Name), v.Type, dash(model.Join(v.IPs, " ")), dash(model.Join(v.External, " ")), dash(strings.Join(v.Ports, " ")), fmt.Sprint(v.Endpoints))
	}
	if len(s.Policies) > 0 {
		line()
		line("POLICY", "KIND")
	}
	for _, p := range s.Policies {
		line(strings.TrimPrefix(qualified(p.Name.Namespace, p.Name.Name), "/"), string(p.Kind))
	}
	if len(s.Passed)+len(s.Warnings) > 0 {
		line()
	}
	for _, kind := range slices.Sorted(maps.Keys(s.Passed)) {
		line(fmt.Sprintf("passed over: %d %s", s.Passed[kind], kind))
	}
	for _, warning := range s.Warnings {
		line("note: " + warning)
	}
}

func dash(s string) string { return cmp.Or(s, "-") }

func qualified(namespace, name string) string {
	return strings.TrimPrefix(namespace+"/"+name, "default/")
}
