// Package lint finds policies and services that are valid and yet do not do what they seem to: they
// select nothing, name a port that nobody has, or do not see the clients that they are about. It is
// pure.
package lint

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	policy "sluice.dev/sluice/internal/policy/compile"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/store"
)

// Hints returns what policies and services of the view will not do, sorted by object: the reason of
// each begins with the field. None of it is a fault: it is what the cluster's present objects come
// to. complete says that the view holds all objects of the cluster. If it does not, only selectors
// are judged that are confined to namespaces of which the view has pods. Pods that have finished do
// not count.
func Hints(v *store.View, complete bool) []model.Issue {
	l := &linter{view: v, complete: complete, members: map[string][]member{}, policies: map[string][]*model.Policy{}}
	all := v.All()
	l.gather(all)
	for ref := range all.Refs(model.PolicyKinds) {
		p := v.Policy(ref)
		namespaces, confined := p.Subject.Namespaces()
		if !confined {
			namespaces = []string{""}
		}
		for _, namespace := range namespaces {
			l.policies[namespace] = append(l.policies[namespace], p)
		}
	}
	for ref := range all.Refs(model.PolicyKinds) {
		if p := v.Policy(ref); p.Refused == "" {
			l.policy(p)
		}
	}
	for name := range v.Services() {
		l.service(v.Service(name))
	}
	slices.SortFunc(l.hints, model.Issue.Compare)
	return slices.Compact(l.hints)
}

type linter struct {
	view     *store.View
	complete bool
	members  map[string][]member        // by namespace; "": those in none
	policies map[string][]*model.Policy // by the namespaces of their pods; "": those of any
	hints    []model.Issue
}

// member is what selectors select.
type member struct {
	labels model.Labels
	pod    *model.Pod // nil: a network set or a host endpoint
}

func (l *linter) hint(object model.Ref, field, format string, args ...any) {
	l.hints = append(l.hints, object.Issue(field+": "+fmt.Sprintf(format, args...)))
}

func (l *linter) gather(all store.Dirty) {
	for _, pod := range l.view.Pods() {
		if !pod.Finished {
			l.add(pod.Name.Namespace, pod, pod)
		}
	}
	for ref := range all.Refs(model.NetworkSetKinds) {
		l.add(ref.Name.Namespace, l.view.NetworkSet(ref), nil)
	}
	for ref := range all.Refs([]model.Kind{model.HostEndpointKind}) {
		l.add("", l.view.HostEndpoint(ref.Name.Name), nil)
	}
}

func (l *linter) add(namespace string, o model.Object, pod *model.Pod) {
	l.members[namespace] = append(l.members[namespace], member{policy.Labels(l.view, o), pod})
}

// selected returns what a selector selects. Judged is whether the view is enough to say so. Among
// says of what nothing is selected: "pod of namespace shop".
func (l *linter) selected(s model.Selector) (found []member, judged bool, among string) {
	namespaces, confined := s.Namespaces()
	judged, among = l.complete, "pod"
	if !confined {
		for namespace := range l.members {
			namespaces = append(namespaces, namespace)
		}
	} else {
		there := slices.DeleteFunc(slices.Clone(namespaces), l.empty)
		judged = judged || len(there) == len(namespaces) && len(there) > 0
		among = "pod of namespace " + strings.Join(namespaces, " or ")
		if l.complete && !slices.ContainsFunc(namespaces, func(n string) bool { return l.view.Namespace(n) != nil || !l.empty(n) }) {
			among += ", which does not exist"
		}
	}
	for _, namespace := range namespaces {
		for _, m := range l.members[namespace] {
			if s.Matches(m.labels) {
				found = append(found, m)
			}
		}
	}
	return found, judged, among
}

// empty reports whether the view has no pods of the namespace.
func (l *linter) empty(namespace string) bool {
	return !slices.ContainsFunc(l.members[namespace], func(m member) bool { return m.pod != nil })
}

func (l *linter) policy(p *model.Policy) {
	subjects, judged, among := l.selected(p.Subject)
	field := map[model.Kind]string{model.NetworkPolicy: "spec.podSelector", model.ClusterPolicy: "spec.subject"}[p.Key.Kind]
	if field == "" {
		field = "spec.selector"
	}
	onHost := func(m member) bool { return m.pod != nil && m.pod.HostNetwork }
	switch {
	case !judged:
	case len(subjects) == 0:
		l.hint(p.Key, field, "selects no %s, so the policy does nothing", among)
	case !slices.ContainsFunc(subjects, func(m member) bool { return !onHost(m) }):
		l.hint(p.Key, field, "selects only pods on the network of their node (hostNetwork), to which no policy applies")
	}
	l.types(p)
	l.names(p, subjects)
	for i := range p.IngressRules {
		at := fmt.Sprintf("spec.ingress[%d].", i)
		l.peers(p, at, "from", "source", p.IngressRules[i].Source.Peers)
		l.ports(p, at, p.IngressRules[i].Destination.Ports, subjects, judged)
	}
	for i := range p.EgressRules {
		at, to := fmt.Sprintf("spec.egress[%d].", i), &p.EgressRules[i].Destination
		l.peers(p, at, "to", "destination", to.Peers)
		for _, port := range to.Ports {
			l.named(p, at+"destination", port.Service)
		}
		receivers, judged := l.receivers(to.Peers)
		l.ports(p, at, to.Ports, receivers, judged)
	}
}

// types says which rules are for a direction that the policy does not apply to.
func (l *linter) types(p *model.Policy) {
	list := "spec.policyTypes"
	if isCalico(p) {
		list = "spec.types"
	}
	if p.IgnoresIngress {
		l.hint(p.Key, "spec.ingress", "has rules, and %s does not name Ingress, so they do nothing", list)
	}
	if p.IgnoresEgress {
		l.hint(p.Key, "spec.egress", "has rules, and %s does not name Egress, so they do nothing", list)
	}
}

// names says of a NetworkPolicy that lets its pods reach other pods whether no policy lets them ask
// for names. Where not all policies are known, another may do so.
func (l *linter) names(p *model.Policy, subjects []member) {
	toPods := func(r model.PolicyRule) bool {
		return len(r.Destination.Peers) == 0 || slices.ContainsFunc(r.Destination.Peers[0], func(peer model.Peer) bool { return !peer.Selector.IsZero() })
	}
	if !l.complete || p.Key.Kind != model.NetworkPolicy || !slices.ContainsFunc(p.EgressRules, toPods) {
		return
	}
	i := slices.IndexFunc(subjects, func(m member) bool { return m.pod != nil && !m.pod.HostNetwork })
	if i < 0 {
		return
	}
	pod := subjects[i].pod.Name
	for _, other := range slices.Concat(l.policies[pod.Namespace], l.policies[""]) {
		if other.Egress && other.Subject.Matches(subjects[i].labels) && slices.ContainsFunc(other.EgressRules, allowsNames) {
			return
		}
	}
	l.hint(p.Key, "spec.egress", "lets its pods reach others, but no policy lets %s ask a name server (UDP port 53), so it finds none by name", pod)
}

// allowsNames reports whether a rule may let a pod ask a name server.
func allowsNames(r model.PolicyRule) bool {
	const dns = 53
	return r.Action == model.Allow && (r.Protocol == 0 || r.Protocol == uint8(model.UDP)) &&
		(r.Destination.Ports == nil || slices.ContainsFunc(r.Destination.Ports, func(p model.PolicyPort) bool {
			return (p.Protocol == 0 || p.Protocol == model.UDP) && (p.Name != "" || p.Service != (model.Name{}) || p.First <= dns && dns <= p.Last)
		}))
}

// peers says which peers of a rule select nothing. Calico's rules have one, others a list.
func (l *linter) peers(p *model.Policy, at, list, end string, peers [][]model.Peer) {
	for _, oneOf := range peers {
		for i, peer := range oneOf {
			if peer.Selector.IsZero() {
				l.named(p, at+end, peer.Service)
				continue
			}
			field := at + end + ".selector"
			if !isCalico(p) {
				field = fmt.Sprintf("%s%s[%d]", at, list, i)
			}
			if found, judged, among := l.selected(peer.Selector); judged && len(found) == 0 {
				l.hint(p.Key, field, "selects no %s", among)
			}
		}
	}
}

// named says of a Service that a rule names whether it has no endpoints; of none nothing.
func (l *linter) named(p *model.Policy, end string, service model.Name) {
	svc := l.view.Service(service)
	switch {
	case service == (model.Name{}):
	case svc == nil && l.complete:
		l.hint(p.Key, end+".services", "there is no Service %s", service)
	case svc != nil && len(sets.Endpoints(l.view, service)) == 0 && (l.complete || svc.Selector != nil && !l.empty(service.Namespace)):
		l.hint(p.Key, end+".services", "Service %s has no endpoints", service)
	}
}

// receivers are those to whom a rule lets pods connect by the peers.
func (l *linter) receivers(peers [][]model.Peer) (found []member, judged bool) {
	judged = l.complete || len(peers) > 0
	if len(peers) == 0 {
		peers = [][]model.Peer{{{Selector: model.Everything()}}}
	}
	for _, peer := range peers[0] {
		some, known, _ := l.selected(peer.Selector)
		found, judged = append(found, some...), judged && known
	}
	return found, judged
}

// ports says which ports are named that none of the receivers has. Where there are no receivers,
// that is said already.
func (l *linter) ports(p *model.Policy, at string, ports []model.PolicyPort, receivers []member, judged bool) {
	if !judged || len(receivers) == 0 {
		return
	}
	for i, want := range ports {
		if want.Name == "" || slices.ContainsFunc(receivers, func(m member) bool { return hasPort(m.pod, want.Name, want.Protocol) }) {
			continue
		}
		field := fmt.Sprintf("%sports[%d].port", at, i)
		switch {
		case isCalico(p):
			field = at + "destination.ports"
		case p.Key.Kind == model.ClusterPolicy:
			field = fmt.Sprintf("%sprotocols[%d].destinationNamedPort", at, i)
		}
		l.hint(p.Key, field, "none of the pods that it is about has a port named %q%s%s", want.Name, ofProtocol(want.Protocol), portNames(podsOf(receivers), want.Protocol))
	}
}

func podsOf(members []member) (pods []*model.Pod) {
	for _, m := range members {
		if m.pod != nil {
			pods = append(pods, m.pod)
		}
	}
	return pods
}

func isCalico(p *model.Policy) bool {
	return p.Key.Kind == model.CalicoPolicy || p.Key.Kind == model.GlobalNetworkPolicy
}

// hasPort reports whether a pod has a port of that name and, unless it is 0, protocol.
func hasPort(pod *model.Pod, name string, protocol model.Protocol) bool {
	return pod != nil && slices.ContainsFunc(pod.Ports, func(p model.ContainerPort) bool {
		return p.Name == name && (protocol == 0 || p.Protocol == protocol)
	})
}

func ofProtocol(p model.Protocol) string {
	if p == 0 {
		return ""
	}
	return " of " + p.String()
}

func (l *linter) service(svc *model.Service) {
	pods := running(l.view, svc)
	switch {
	case svc.Selector == nil || !l.complete && l.empty(svc.Name.Namespace):
		return
	case len(pods) == 0:
		l.hint(svc.Ref(), "spec.selector", "selects no pod of namespace %s, so the service has no endpoints", svc.Name.Namespace)
		return
	}
	l.hidden(svc, pods)
	for i, port := range svc.Ports {
		has := func(p *model.Pod) bool { return hasPort(p, port.TargetName, port.Protocol) }
		if port.TargetName != "" && !slices.ContainsFunc(pods, has) {
			l.hint(svc.Ref(), fmt.Sprintf("spec.ports[%d].targetPort", i), "none of the pods that it selects has a port named %q%s%s, so it has no endpoints", port.TargetName, ofProtocol(port.Protocol), portNames(pods, port.Protocol))
		}
	}
}
