package oracle

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// Calico are Calico's objects, reduced to what decides between pods.
type Calico struct {
	Tiers    []CalicoTier
	Policies []CalicoPolicy
	Sets     []CalicoSet
}

// CalicoTier is a Tier beside those that are always there.
type CalicoTier struct {
	Name          string
	Order         float64
	DefaultAction string // "Deny", "Pass"
}

// CalicoPolicy is a NetworkPolicy, or a GlobalNetworkPolicy where it has no namespace. Orders are
// unique in a tier.
type CalicoPolicy struct {
	Namespace, Name, Tier string
	Order                 float64
	Selector              Selector
	NamespaceSelector     Selector // of a global one
	Types                 []string
	Ingress, Egress       []CalicoRule
}

// CalicoRule is a rule of a policy.
type CalicoRule struct {
	Action              string
	Protocol            string // "TCP", "UDP", "SCTP"; "": any
	NotProtocol         string
	Source, Destination CalicoEnd
}

// CalicoEnd is an EntityRule. Ports are numbers, ranges "80:90" and names.
type CalicoEnd struct {
	Selector, NotSelector, NamespaceSelector Selector
	Nets, NotNets                            []string
	Ports, NotPorts                          []string
	Service                                  string // "namespace/name", with Ports in a source alone
}

// CalicoSet is a NetworkSet, or a GlobalNetworkSet where it has no namespace.
type CalicoSet struct {
	Namespace, Name string
	Labels          map[string]string
	Nets            []string
}

// Selector is an expression in Calico's language with what it means. The zero Selector is none.
type Selector struct {
	Text  string
	Means func(labels.Set) bool `json:"-"`
}

// stage is a tier: it decides on a subject's connection, or leaves it to the next.
type stage struct {
	order    float64
	evaluate func() (final, allow bool)
}

// stages are all tiers in their order. NetworkPolicy is in the tier "default" with the order 1000,
// ClusterNetworkPolicy in tiers of its own.
func (o *Objects) stages(subject *corev1.Pod, c Connection, d direction) []stage {
	all := []stage{
		{1_000, func() (bool, bool) { return o.clusterTier(policyv1beta1.AdminTier, subject, c, d) }},
		{1_000_000, func() (bool, bool) {
			return o.calicoTier(CalicoTier{Name: "default", DefaultAction: "Deny"}, subject, c, d)
		}},
		{10_000_000, func() (bool, bool) { return o.clusterTier(policyv1beta1.BaselineTier, subject, c, d) }},
	}
	for _, t := range o.Calico.Tiers {
		all = append(all, stage{t.Order, func() (bool, bool) { return o.calicoTier(t, subject, c, d) }})
	}
	slices.SortFunc(all, func(a, b stage) int {
		if a.order < b.order {
			return -1
		}
		return 1
	})
	return all
}

// calicoTier: "the first matching rule with Allow, Deny or Pass decides; Log goes on"; a tier whose
// policies do not apply is passed over; what no rule of it matched gets its default action.
func (o *Objects) calicoTier(t CalicoTier, subject *corev1.Pod, c Connection, d direction) (final, allow bool) {
	type policy struct {
		order    float64
		evaluate func() string // the action; "" if no rule matches
	}
	var apply []policy
	for _, p := range o.Calico.Policies {
		if p.Tier == t.Name && o.calicoSubject(p, subject) && p.applies(d) {
			apply = append(apply, policy{p.Order, func() string { return o.calicoRules(p, c, d) }})
		}
	}
	if isolated, allows := o.networkPolicies(subject, c, d); t.Name == "default" && isolated {
		apply = append(apply, policy{1000, func() string { return map[bool]string{true: "Allow", false: ""}[allows] }})
	}
	if len(apply) == 0 {
		return false, false
	}
	slices.SortFunc(apply, func(a, b policy) int {
		if a.order < b.order {
			return -1
		}
		return 1
	})
	for _, p := range apply {
		switch p.evaluate() {
		case "Allow":
			return true, true
		case "Deny":
			return true, false
		case "Pass":
			return false, false
		}
	}
	return t.DefaultAction != "Pass", false
}

// applies is the documented default of types: by the rules there are, Ingress if there are none.
func (p CalicoPolicy) applies(d direction) bool {
	types := p.Types
	if len(types) == 0 {
		if len(p.Ingress) > 0 || len(p.Egress) == 0 {
			types = append(types, "Ingress")
		}
		if len(p.Egress) > 0 {
			types = append(types, "Egress")
		}
	}
	return slices.Contains(types, map[direction]string{ingress: "Ingress", egress: "Egress"}[d])
}

func (o *Objects) calicoSubject(p CalicoPolicy, pod *corev1.Pod) bool {
	if p.Namespace != "" && p.Namespace != pod.Namespace {
		return false
	}
	if p.NamespaceSelector.Means != nil && !p.NamespaceSelector.Means(o.calicoNamespace(pod.Namespace)) {
		return false
	}
	return p.Selector.Means == nil || p.Selector.Means(o.calicoLabels(pod.Namespace, pod.Labels, true))
}

// calicoNamespace are the labels that a namespaceSelector sees.
func (o *Objects) calicoNamespace(name string) labels.Set {
	l := o.namespaceLabels(name)
	l["projectcalico.org/name"] = name
	return l
}

// calicoLabels are the labels that a selector sees, of a pod or a network set.
func (o *Objects) calicoLabels(namespace string, own map[string]string, pod bool) labels.Set {
	l := labels.Set{}
	for k, v := range own {
		l[k] = v
	}
	if namespace != "" {
		for k, v := range o.namespaceLabels(namespace) {
			l["pcns."+k] = v
		}
		l["projectcalico.org/namespace"] = namespace
	}
	if pod {
		l["projectcalico.org/orchestrator"] = "k8s"
	}
	return l
}

func (o *Objects) calicoRules(p CalicoPolicy, c Connection, d direction) string {
	rules := p.Ingress
	if d == egress {
		rules = p.Egress
	}
	for _, r := range rules {
		if r.Protocol != "" && r.Protocol != string(c.Protocol) || r.NotProtocol != "" && r.NotProtocol == string(c.Protocol) {
			continue
		}
		if !o.calicoEnd(p.Namespace, r.Source, c.From) || !o.calicoEnd(p.Namespace, r.Destination, c.To) || !o.calicoPorts(r.Destination, c) {
			continue
		}
		if s := r.Source.Service; s != "" && !o.hasEndpoint(s, c.From, func(discoveryv1.EndpointPort) bool { return true }) {
			continue
		}
		isPort := func(p discoveryv1.EndpointPort) bool { return *p.Protocol == c.Protocol && *p.Port == c.Port }
		if s := r.Destination.Service; s != "" && !o.hasEndpoint(s, c.To, isPort) {
			continue
		}
		if r.Action != "Log" {
			return r.Action
		}
	}
	return ""
}

// hasEndpoint: "only traffic that originates from or terminates at endpoints within the selected
// service will be matched, and only to/from each endpoint's port"; of a source, its port does not
// count. The slices here have a port each.
func (o *Objects) hasEndpoint(service string, a netip.Addr, port func(discoveryv1.EndpointPort) bool) bool {
	for _, s := range o.Slices {
		if s.Namespace+"/"+s.Labels[discoveryv1.LabelServiceName] != service || !slices.ContainsFunc(s.Ports, port) {
			continue
		}
		for _, e := range s.Endpoints {
			if slices.Contains(e.Addresses, a.String()) {
				return true
			}
		}
	}
	return false
}

func (o *Objects) calicoEnd(namespace string, e CalicoEnd, a netip.Addr) bool {
	// Felix leaves a rule out of the family that its nets, negated ones too, are not of.
	for _, n := range slices.Concat(e.Nets, e.NotNets) {
		if netip.MustParsePrefix(n).Addr().Is4() != a.Is4() {
			return false
		}
	}
	in := func(nets []string) bool {
		return slices.ContainsFunc(nets, func(n string) bool { return netip.MustParsePrefix(n).Contains(a) })
	}
	if len(e.Nets) > 0 && !in(e.Nets) || in(e.NotNets) {
		return false
	}
	if (e.Selector.Means != nil || e.NamespaceSelector.Means != nil) && !o.calicoPeer(namespace, e.Selector, e.NamespaceSelector, a) {
		return false
	}
	return e.NotSelector.Means == nil || !o.calicoPeer("", e.NotSelector, Selector{}, a)
}

// calicoPeer: a selector of a namespaced policy sees its own namespace, unless a namespaceSelector
// chooses others; that of a global policy sees all, global network sets included.
func (o *Objects) calicoPeer(namespace string, s, namespaces Selector, a netip.Addr) bool {
	matches := func(ns string, own map[string]string, pod bool) bool {
		switch {
		case namespaces.Means != nil:
			if ns == "" || !namespaces.Means(o.calicoNamespace(ns)) {
				return false
			}
		case namespace != "" && ns != namespace:
			return false
		}
		return s.Means == nil || s.Means(o.calicoLabels(ns, own, pod))
	}
	if pod := o.pod(a); pod != nil && matches(pod.Namespace, pod.Labels, true) {
		return true
	}
	for _, set := range o.Calico.Sets {
		for _, n := range set.Nets {
			if netip.MustParsePrefix(n).Contains(a) && matches(set.Namespace, set.Labels, false) {
				return true
			}
		}
	}
	return false
}

func (o *Objects) calicoPorts(e CalicoEnd, c Connection) bool {
	one := func(port string) bool {
		first, last, isRange := strings.Cut(port, ":")
		low, err := strconv.Atoi(first)
		if err != nil {
			return o.isNamed(c, port)
		}
		high := low
		if isRange {
			high, _ = strconv.Atoi(last)
		}
		return int32(low) <= c.Port && c.Port <= int32(high)
	}
	return (len(e.Ports) == 0 || slices.ContainsFunc(e.Ports, one)) && !slices.ContainsFunc(e.NotPorts, one)
}
