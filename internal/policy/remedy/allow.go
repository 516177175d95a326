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

	"sluice.dev/sluice/internal/model"
	policy "sluice.dev/sluice/internal/policy/compile"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
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
	d := draft{Flow: s.Flow, outward: s.Stage.Outward(), Tier: s.Tier, Namespace: pod.Name.Namespace}
	if err := d.choose(v, s); err != nil {
		return Suggestion{}, err
	}
	var err error
	if d.Subject, err = selectPod(v, pod, true); err != nil {
		return Suggestion{}, err
	}
	other := s.Flow.Source
	if d.outward {
		other = s.Flow.Destination
	}
	if peer := v.PodByAddr(other); peer == nil {
		d.net = netip.PrefixFrom(other, other.BitLen())
		d.node = nodeOf(v, other)
	} else if d.Peer, err = selectPod(v, peer, d.Kind != model.CalicoPolicy); err != nil {
		return Suggestion{}, err
	}
	return d.finish()
}

// nodeOf is the node that has an address; "": none.
func nodeOf(v *store.View, a netip.Addr) string {
	for _, n := range v.Nodes() {
		if slices.ContainsFunc(slices.Concat(n.IPs, n.OtherIPs), func(own netip.Addr) bool { return own.Unmap() == a }) {
			return n.Name
		}
	}
	return ""
}

// draft is a policy as it is being made; the templates read what is exported.
type draft struct {
	Kind      model.Kind
	Namespace string
	Tier      string
	order     float64 // of Calico's policies and of ClusterNetworkPolicies
	outward   bool
	Subject   *selected
	Peer      *selected // nil: net
	net       netip.Prefix
	node      string // that has the address; "": none
	Flow      verdict.Flow
}

// choose finds the kind of policy, and its place, that comes before what denies, and that isolates
// nobody who is not isolated.
func (d *draft) choose(v *store.View, s verdict.Step) error {
	withPorts := s.Flow.Ported()
	if s.Rule == "" {
		byKubernetes := slices.ContainsFunc(s.Isolating, func(k model.PolicyKey) bool { return k.Kind == model.NetworkPolicy })
		d.Kind, d.order = model.CalicoPolicy, math.Inf(1)
		if byKubernetes && withPorts {
			d.Kind = model.NetworkPolicy
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
		d.Kind, d.order, d.Namespace = model.ClusterPolicy, math.Ceil(deny.Order)-1, ""
	case math.IsInf(deny.Order, 1):
		d.Kind, d.order = model.CalicoPolicy, 10_000
	default:
		d.Kind, d.order = model.CalicoPolicy, deny.Order-1
	}
	return nil
}

// selected are pods by their labels.
type selected struct {
	pod    *model.Pod
	labels map[string]string
	absent []string // labels that others have
	also   []string // others that have the same labels

	podsAlone bool // whatever else has the labels is not selected
}

// generated are labels that a controller gives to the pods of one version, or the API server to
// those of one place: a policy that asks for them would end with the next roll-out, or when a pod
// moves. No Pod has those that Calico takes a pod to have beside its own.
func generated(key string) bool {
	return slices.Contains([]string{"pod-template-hash", "rollouts-pod-template-hash", "controller-revision-hash", "pod-template-generation", "controller-uid",
		"batch.kubernetes.io/controller-uid", "topology.kubernetes.io/zone", "topology.kubernetes.io/region"}, key) ||
		strings.HasPrefix(key, "projectcalico.org/") || strings.HasPrefix(key, model.NamespaceLabelPrefix) || strings.HasPrefix(key, model.ServiceAccountLabelPrefix)
}

// individual are labels that tell pods of one set apart, or one run of a job from the next.
func individual(key string) bool {
	return slices.Contains([]string{"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index",
		"job-name", "batch.kubernetes.io/job-name"}, key)
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

// selectPod selects a pod by its labels, except for those that tell it from others of its set
// unless it has no others, and leaves out others that have more: pods, and unless the policy
// selects pods alone, network sets.
func selectPod(v *store.View, pod *model.Pod, podsAlone bool) (*selected, error) {
	s := &selected{pod: pod, labels: maps.Clone(pod.Labels), podsAlone: podsAlone}
	maps.DeleteFunc(s.labels, func(k, _ string) bool { return generated(k) })
	ofSet := maps.Clone(s.labels)
	maps.DeleteFunc(ofSet, func(k, _ string) bool { return individual(k) })
	if len(ofSet) > 0 {
		s.labels = ofSet
	}
	if len(s.labels) == 0 {
		return nil, fmt.Errorf("pod %s has no labels by which a policy could select it: give it one", pod.Name)
	}
	for _, o := range v.Selected(&model.Service{Name: pod.Name, Selector: s.labels}) {
		if o != pod && !o.Finished && !o.HostNetwork {
			s.tell(o.Labels, o.Name.String())
		}
	}
	for _, set := range v.NetworkSets() {
		if !s.podsAlone && s.selector().Matches(policy.Labels(v, set)) {
			s.tell(set.Labels, set.Key.String())
		}
	}
	return s, nil
}

// tell leaves out another object that has the labels, if it has more.
func (s *selected) tell(labels map[string]string, name string) {
	extra := slices.Sorted(maps.Keys(labels))
	extra = slices.DeleteFunc(extra, func(k string) bool { _, has := s.labels[k]; return has || generated(k) || individual(k) })
	switch {
	case len(extra) == 0:
		s.also = append(s.also, name)
	case !slices.ContainsFunc(extra, func(k string) bool { return slices.Contains(s.absent, k) }):
		s.absent = append(s.absent, extra[0])
	}
}

// selector is what selects them in the model.
func (s *selected) selector() model.Selector {
	terms := []model.Selector{model.Equal(model.NamespaceLabel, s.pod.Name.Namespace)}
	if s.podsAlone {
		terms = append(terms, model.Equal(model.OrchestratorLabel, "k8s"))
	}
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
	if d.Peer != nil {
		peer.Selector = d.Peer.selector()
	} else {
		peer.Nets = []netip.Prefix{d.net}
	}
	far.Peers = [][]model.Peer{{peer}}
	port := model.PolicyPort{Protocol: model.Protocol(d.Flow.Protocol), First: d.Flow.DestinationPort, Last: d.Flow.DestinationPort}
	switch {
	case d.Flow.Ported():
		rule.Destination.Ports = []model.PolicyPort{port}
	default:
		rule.Protocol = d.Flow.Protocol
		if d.ICMP() {
			rule.ICMP = &model.ICMP{Type: d.Flow.ICMPType, Code: -1}
		}
	}
	p := &model.Policy{
		Key:  model.PolicyKey{Kind: d.Kind, Name: model.Name{Namespace: d.Namespace, Name: d.Name()}},
		Tier: d.Tier, Order: d.order, Subject: d.Subject.selector(), Ingress: !d.outward, Egress: d.outward,
	}
	if d.Kind == model.NetworkPolicy {
		p.Order = model.NetworkPolicyOrder
	}
	if d.outward {
		p.EgressRules = []model.PolicyRule{rule}
	} else {
		p.IngressRules = []model.PolicyRule{rule}
	}
	if d.Kind == model.ClusterPolicy && !d.outward && d.Peer == nil {
		return Suggestion{}, fmt.Errorf("a ClusterNetworkPolicy cannot allow what comes from %v, which is of no pod: change the rule that denies it", d.net.Addr())
	}
	var b bytes.Buffer
	d.comment(&b)
	if err := templates[d.Kind].Execute(&b, d); err != nil {
		return Suggestion{}, err
	}
	return Suggestion{Object: p.Key, YAML: b.String(), Policy: p}, nil
}

// comment says what the policy does, and for whom else.
func (d *draft) comment(b *bytes.Buffer) {
	other := d.net.Addr().String()
	if d.Peer != nil {
		other = d.Peer.pod.Name.String()
	}
	does := "accept %s from %s"
	if d.outward {
		does = "send %s to %s"
	}
	fmt.Fprintf(b, "# Lets %s "+does+".\n", d.Subject.pod.Name, d.Flow.What(), other)
	if d.node != "" && !d.outward {
		fmt.Fprintf(b, "# That is node %s: it holds for every client that gets an address of this node, too.\n", d.node)
	}
	for _, s := range []*selected{d.Subject, d.Peer} {
		const most = 5
		if s != nil && len(s.also) > 0 {
			fmt.Fprintf(b, "# The labels of %s are also those of %s: it holds for them too.\n", s.pod.Name, model.FirstFew(s.also, most))
		}
	}
}

// Name says who may reach whom.
func (d *draft) Name() string {
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
	from, to := end(d.Peer), end(d.Subject)
	if d.outward {
		from, to = to, from
	}
	name := "allow-" + from + "-to-" + to
	if d.outward {
		name += "-egress"
	}
	name += "-" + strings.ToLower(strings.ReplaceAll(d.Flow.What(), " ", "-"))
	const most = 200 // of 253, as some tools add to it
	name = strings.Trim(name[:min(len(name), most)], "-.")
	if d.Kind == model.CalicoPolicy && d.Tier != model.DefaultTier.Name {
		return d.Tier + "." + name // as Calico's API server wants it
	}
	return name
}
