package remedy

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/compile/policy"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/internal/verdict"
)

// Suggestion is a policy that would allow what one end denies.
type Suggestion struct {
	Object model.PolicyKey `json:"object"`
	YAML   string          `json:"yaml"` // the object, to be applied as it is
	Policy *model.Policy   `json:"-"`    // what it means
}

// Same reports whether two policies ask for the same, whatever their names.
func (s Suggestion) Same(o Suggestion) bool {
	spec := func(s Suggestion) string { return s.YAML[max(strings.Index(s.YAML, "\nspec:"), 0):] }
	return s.Object.Kind == o.Object.Kind && s.Object.Name.Namespace == o.Object.Name.Namespace && spec(s) == spec(o)
}

// Allow returns the smallest policy that allows what a step denies, and nothing else: from the
// other end's pods, as far as labels tell them, or its one address, to the one port. An error says
// why no policy can, or what to change instead.
func Allow(v *store.View, s verdict.Step) (Suggestion, error) {
	pod := v.Pod(s.Of.Name)
	switch {
	case s.Drop == state.DropHost:
		return Suggestion{}, fmt.Errorf("%s denies it at %s: add a rule to a policy that selects this host endpoint", s.Reason(), s.Subject())
	case s.Drop != state.DropPolicy || s.Of.Kind != model.PodKind || pod == nil:
		return Suggestion{}, fmt.Errorf("no policy can allow it: %s", s.Reason())
	case s.Tier == "", s.Tier == policy.RefusedTier:
		return Suggestion{}, fmt.Errorf("no other policy can allow it before this is mended: %s", s.Reason())
	}
	d := draft{flow: s.Flow, outward: s.Stage.Outward(), tier: s.Tier, namespace: pod.Name.Namespace}
	if err := d.choose(v, s); err != nil {
		return Suggestion{}, err
	}
	var err error
	if d.subject, err = selectPod(v, pod); err != nil {
		return Suggestion{}, err
	}
	other := s.Flow.Source
	if d.outward {
		other = s.Flow.Destination
	}
	if peer := v.PodByAddr(other); peer == nil {
		d.net = netip.PrefixFrom(other, other.BitLen())
	} else if d.peer, err = selectPod(v, peer); err != nil {
		return Suggestion{}, err
	}
	return d.finish()
}

// draft is a policy as it is being made.
type draft struct {
	kind      model.Kind
	namespace string
	tier      string
	order     float64 // of Calico's policies and of ClusterNetworkPolicies
	outward   bool
	subject   *selected
	peer      *selected // nil: net
	net       netip.Prefix
	flow      verdict.Flow
}

// choose finds the kind of policy, and its place, that comes before what denies, and that isolates
// nobody who is not isolated.
func (d *draft) choose(v *store.View, s verdict.Step) error {
	withPorts := ported(s.Flow.Protocol)
	if s.Rule == "" {
		byKubernetes := slices.ContainsFunc(s.Isolating, func(k model.PolicyKey) bool { return k.Kind == model.NetworkPolicy })
		d.kind, d.order = model.CalicoPolicy, math.Inf(1)
		if byKubernetes && withPorts {
			d.kind = model.NetworkPolicy
		}
		return nil
	}
	deny := v.Policy(s.Policy)
	if deny == nil {
		return fmt.Errorf("%v is not there any more: ask again", s.Policy)
	}
	switch {
	case deny.Key.Kind == model.ClusterPolicy && !withPorts:
		return fmt.Errorf("change %s of %v: a ClusterNetworkPolicy cannot allow %s alone", s.Rule, s.Policy, s.Flow.What())
	case deny.Key.Kind == model.ClusterPolicy && deny.Order < 1:
		return fmt.Errorf("change %s of %v: nothing comes before its priority, 0", s.Rule, s.Policy)
	case deny.Key.Kind == model.ClusterPolicy:
		d.kind, d.order, d.namespace = model.ClusterPolicy, math.Ceil(deny.Order)-1, ""
	case math.IsInf(deny.Order, 1):
		d.kind, d.order = model.CalicoPolicy, 10_000
	default:
		d.kind, d.order = model.CalicoPolicy, deny.Order-1
	}
	return nil
}

// selected are pods by their labels.
type selected struct {
	pod    *model.Pod
	labels map[string]string
	absent []string // labels that others have
	also   []string // other pods that have the same labels
}

// generated are labels that a controller gives to the pods of one version, or the API server to
// those of one place: a policy that asks for them would end with the next roll-out, or when a pod
// moves.
func generated(key string) bool {
	return slices.Contains([]string{"pod-template-hash", "controller-revision-hash", "pod-template-generation", "controller-uid",
		"batch.kubernetes.io/controller-uid", "topology.kubernetes.io/zone", "topology.kubernetes.io/region"}, key)
}

// workload is the name of a pod without what its controller adds for each of them.
func workload(pod *model.Pod) string {
	name := pod.Name.Name
	if hash := pod.Labels["pod-template-hash"]; hash != "" {
		name, _, _ = strings.Cut(name, "-"+hash)
	} else if pod.Labels["controller-revision-hash"] != "" {
		name = name[:max(strings.LastIndexByte(name, '-'), 0)]
	}
	return cmp.Or(name, pod.Name.Name)
}

// selectPod selects a pod by all its labels, and leaves out others that have more.
func selectPod(v *store.View, pod *model.Pod) (*selected, error) {
	s := &selected{pod: pod, labels: maps.Clone(pod.Labels)}
	maps.DeleteFunc(s.labels, func(k, _ string) bool { return generated(k) })
	if len(s.labels) == 0 {
		return nil, fmt.Errorf("pod %s has no labels by which a policy could select it: give it one", pod.Name)
	}
	for _, o := range v.Selected(&model.Service{Name: pod.Name, Selector: s.labels}) {
		if o == pod || o.Finished || o.HostNetwork {
			continue
		}
		extra := slices.Sorted(maps.Keys(o.Labels))
		extra = slices.DeleteFunc(extra, func(k string) bool { _, has := s.labels[k]; return has || generated(k) })
		switch {
		case len(extra) == 0:
			s.also = append(s.also, o.Name.String())
		case !slices.ContainsFunc(extra, func(k string) bool { return slices.Contains(s.absent, k) }):
			s.absent = append(s.absent, extra[0])
		}
	}
	return s, nil
}

// selector is what selects them in the model.
func (s *selected) selector() model.Selector {
	terms := []model.Selector{model.Equal(model.NamespaceLabel, s.pod.Name.Namespace), model.Equal(model.OrchestratorLabel, "k8s")}
	for k, v := range s.labels {
		terms = append(terms, model.Equal(k, v))
	}
	for _, k := range s.absent {
		terms = append(terms, model.Not(model.Has(k)))
	}
	return model.And(terms...)
}

// finish writes the policy.
func (d *draft) finish() (Suggestion, error) {
	rule := model.PolicyRule{Name: d.Direction() + "[0]"}
	near, far := &rule.Destination, &rule.Source
	if d.outward {
		near, far = far, near
	}
	peer := model.Peer{}
	if d.peer != nil {
		peer.Selector = d.peer.selector()
	} else {
		peer.Nets = []netip.Prefix{d.net}
	}
	far.Peers = [][]model.Peer{{peer}}
	port := model.PolicyPort{Protocol: model.Protocol(d.flow.Protocol), First: d.flow.DestinationPort, Last: d.flow.DestinationPort}
	switch {
	case ported(d.flow.Protocol):
		rule.Destination.Ports = []model.PolicyPort{port}
	default:
		rule.Protocol = d.flow.Protocol
		if d.ICMP() {
			rule.ICMP = &model.ICMP{Type: d.flow.ICMPType, Code: -1}
		}
	}
	p := &model.Policy{
		Key:  model.PolicyKey{Kind: d.kind, Name: model.Name{Namespace: d.namespace, Name: d.name()}},
		Tier: d.tier, Order: d.order, Subject: d.subject.selector(), Ingress: !d.outward, Egress: d.outward,
	}
	if d.kind == model.NetworkPolicy {
		p.Order = model.NetworkPolicyOrder
	}
	if d.outward {
		p.EgressRules = []model.PolicyRule{rule}
	} else {
		p.IngressRules = []model.PolicyRule{rule}
	}
	if d.kind == model.ClusterPolicy && !d.outward && d.peer == nil {
		return Suggestion{}, fmt.Errorf("a ClusterNetworkPolicy cannot allow what comes from %v, which is of no pod: change the rule that denies it", d.net.Addr())
	}
	var b bytes.Buffer
	d.comment(&b)
	if err := templates[d.kind].Execute(&b, d); err != nil {
		return Suggestion{}, err
	}
	return Suggestion{Object: p.Key, YAML: b.String(), Policy: p}, nil
}

// comment says what the policy does, and for whom else.
func (d *draft) comment(b *bytes.Buffer) {
	other := d.net.Addr().String()
	if d.peer != nil {
		other = d.peer.pod.Name.String()
	}
	does := "accept %s from %s"
	if d.outward {
		does = "send %s to %s"
	}
	fmt.Fprintf(b, "# Lets %s "+does+".\n", d.subject.pod.Name, d.flow.What(), other)
	for _, s := range []*selected{d.subject, d.peer} {
		const most = 5
		if s != nil && len(s.also) > 0 {
			fmt.Fprintf(b, "# The labels of %s are also those of %s: it holds for them too.\n", s.pod.Name, model.FirstFew(s.also, most))
		}
	}
}

// name says who may reach whom.
func (d *draft) name() string {
	end := func(s *selected) string {
		if s == nil {
			return strings.Map(func(r rune) rune {
				if r == ':' {
					return '-'
				}
				return r
			}, d.net.Addr().String())
		}
		return workload(s.pod)
	}
	from, to := end(d.peer), end(d.subject)
	if d.outward {
		from, to = to, from
	}
	name := "allow-" + from + "-to-" + to
	if d.outward {
		name += "-egress"
	}
	name += "-" + strings.ToLower(strings.ReplaceAll(d.flow.What(), " ", "-"))
	const most = 200 // of 253, as some tools add to it
	name = strings.Trim(name[:min(len(name), most)], "-.")
	if d.kind == model.CalicoPolicy && d.tier != model.DefaultTier.Name {
		return d.tier + "." + name // as Calico's API server wants it
	}
	return name
}
