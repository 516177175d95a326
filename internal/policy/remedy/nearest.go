// Package remedy says what would have allowed a connection that policy denies: the rules that come
// closest, and what they lack; and the smallest policy that would allow it. It is pure: it reads
// the objects through a view of the store.
package remedy

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	policy "sluice.dev/sluice/internal/policy/compile"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/store"
)

// maxNearest is how many rules are named for a connection that one end denies.
const maxNearest = 3

// Nearest returns the rules that come closest to allowing what a step denies, with what they lack,
// the closest first; none where no rule could have allowed it. Those of policies that apply to
// nothing come from idle; nil: they are left out.
func Nearest(v *store.View, s verdict.Step, idle *Idle) []verdict.Near {
	type near struct {
		verdict.Near
		lacks []lack
	}
	var all []near
	judge := newJudge(v, s.Flow)
	for _, key := range slices.Concat(s.Isolating, s.Asked) {
		p := v.Policy(key)
		if p == nil {
			continue
		}
		rules := rulesAt(p, s.Stage)
		for i := range rules {
			if p.Key == s.Policy && rules[i].Name == s.Rule {
				break // it denies before the others are looked at
			}
			if rules[i].Action != model.Allow && rules[i].Action != model.Pass {
				continue
			}
			if lacks := judge.lacks(&rules[i]); len(lacks) > 0 {
				all = append(all, near{verdict.Near{Policy: p.Key, Rule: rules[i].Name, Lacks: texts(lacks)}, lacks})
			}
		}
	}
	for _, i := range idle.near(s) {
		all = append(all, near{verdict.Near{Policy: i.policy.Key, Rule: i.rule, Lacks: texts(i.lacks)}, i.lacks})
	}
	slices.SortStableFunc(all, func(a, b near) int { return further(a.lacks, b.lacks) })
	var closest []verdict.Near
	for _, n := range all[:min(len(all), maxNearest)] {
		closest = append(closest, n.Near)
	}
	return closest
}

func texts(lacks []lack) (list []string) {
	for _, l := range lacks {
		list = append(list, l.text)
	}
	return list
}

// rulesAt are the rules of a policy that are asked at a stage.
func rulesAt(p *model.Policy, s verdict.Stage) []model.PolicyRule {
	if s.Outward() {
		return p.EgressRules
	}
	return p.IngressRules
}

// idling is a policy that applies to nothing, and whose rule would allow the connection.
type idling struct {
	policy *model.Policy
	rule   string
	lacks  []lack
}

// Idle finds policies that apply to nothing, and remembers which do.
type Idle struct {
	v     *store.View
	pods  map[string][]*model.Pod // by namespace
	known map[model.PolicyKey]bool
}

// NewIdle looks for them in all objects. It is of use while the view is.
func NewIdle(v *store.View) *Idle {
	i := &Idle{v: v, pods: map[string][]*model.Pod{}, known: map[model.PolicyKey]bool{}}
	for _, pod := range v.Pods() {
		i.pods[pod.Name.Namespace] = append(i.pods[pod.Name.Namespace], pod)
	}
	return i
}

// near are those beside the policies that deny: a label of theirs is likely to be misspelled. Those
// of other namespaces than the denied pod's only count if nothing but the namespace keeps them from
// applying to it.
func (i *Idle) near(s verdict.Step) (found []idling) {
	if i == nil {
		return nil
	}
	v := i.v
	pod, deny := v.Pod(s.Of.Name), v.Policy(s.Policy)
	if len(s.Isolating) > 0 {
		deny = v.Policy(s.Isolating[0])
	}
	if s.Of.Kind != model.PodKind || pod == nil || deny == nil {
		return nil
	}
	labels, judge := policy.Labels(v, pod), newJudge(v, s.Flow)
	for _, p := range v.Policies() {
		applies := p.Ingress && !s.Stage.Outward() || p.Egress && s.Stage.Outward()
		if !applies || p.Tier != deny.Tier || p.Refused != "" {
			continue
		}
		terms := p.Subject.Lacks(labels)
		here := p.Key.Name.Namespace == "" || p.Key.Name.Namespace == pod.Name.Namespace
		if len(terms) == 0 || !here && len(terms) > 1 {
			continue
		}
		if !i.selectsNothing(p) {
			continue
		}
		if rule := judge.allows(p, s.Stage); rule != "" {
			found = append(found, idling{p, rule, lacksSubject(terms, pod, here)})
		}
	}
	slices.SortFunc(found, func(a, b idling) int { return policy.Compare(a.policy, b.policy) })
	return found
}

// allows returns the rule of a policy that would allow the flow at a stage, if the policy, and with
// it what its rules say of pods, were in the denied pod's namespace; "": none.
func (j *judge) allows(p *model.Policy, s verdict.Stage) string {
	rules := rulesAt(p, s)
	for i := range rules {
		own := func(l lack) bool { return strings.HasPrefix(l.text, "wants namespace "+p.Key.Name.Namespace+";") }
		if rules[i].Action == model.Allow && len(slices.DeleteFunc(j.lacks(&rules[i]), own)) == 0 {
			return rules[i].Name
		}
	}
	return ""
}

// selectsNothing reports whether a policy applies to no pod and no host endpoint.
func (i *Idle) selectsNothing(p *model.Policy) bool {
	if nothing, known := i.known[p.Key]; known {
		return nothing
	}
	pods := i.v.Pods
	if namespace := p.Key.Name.Namespace; namespace != "" {
		pods = func() []*model.Pod { return i.pods[namespace] } // it selects there alone
	}
	nothing := !slices.ContainsFunc(pods(), func(pod *model.Pod) bool { return p.Subject.Matches(policy.Labels(i.v, pod)) }) &&
		!slices.ContainsFunc(i.v.HostEndpoints(), func(h *model.HostEndpoint) bool { return p.Subject.Matches(policy.Labels(i.v, h)) })
	i.known[p.Key] = nothing
	return nothing
}

// lacksSubject says why a policy that applies to nothing does not apply to an object, here or in
// another namespace.
func lacksSubject(terms []model.Lack, o model.Object, here bool) (lacks []lack) {
	for _, t := range terms {
		l := lack{text: fmt.Sprintf("wants %s; %s %s", t.Wants, holder(o, t), t.Is), far: anotherLabel}
		if !here {
			l.of = ofNamespace
		}
		if len(lacks) == 0 {
			l.text = "would allow it and applies to nothing: it " + l.text
		}
		lacks = append(lacks, l)
	}
	return lacks
}

// lacks says what keeps a rule from matching the flow.
func (j *judge) lacks(r *model.PolicyRule) (lacks []lack) {
	miss := func(of aspect, format string, args ...any) {
		lacks = append(lacks, lack{fmt.Sprintf(format, args...), anotherLabel, of})
	}
	protocol := func(n uint8) string { return strings.TrimSuffix(verdict.Flow{Protocol: n}.ProtocolName(), " 0") }
	if !j.matches(model.PolicyRule{Family: r.Family}) {
		miss(0, "wants IPv%d", r.Family)
	}
	switch {
	case !j.matches(model.PolicyRule{Protocol: r.Protocol}):
		miss(ofProtocol, "wants %s; this is %s", protocol(r.Protocol), j.flow.What())
	case !j.matches(model.PolicyRule{NotProtocol: r.NotProtocol}):
		miss(ofProtocol, "leaves out %s", protocol(r.NotProtocol))
	case !j.matches(model.PolicyRule{ICMP: r.ICMP}):
		miss(ofPort, "wants ICMP type %d; this is %s", r.ICMP.Type, j.flow.What())
	case !j.matches(model.PolicyRule{NotICMP: r.NotICMP}):
		miss(ofPort, "leaves out ICMP type %d", r.NotICMP.Type)
	}
	for i, s := range []side{j.source(), j.destination()} {
		e := []*model.RuleEnd{&r.Source, &r.Destination}[i]
		for _, peers := range e.Peers {
			lacks = append(lacks, j.lacksPeer(peers, s)...)
		}
		for _, p := range e.NotPeers {
			if j.is(s, p) {
				miss(0, "leaves out %s", describe(&p))
			}
		}
		if !j.matches(s.rule(model.RuleEnd{Ports: e.Ports})) {
			of := ofPort
			if !slices.ContainsFunc(e.Ports, func(p model.PolicyPort) bool { return p.Protocol == 0 || uint8(p.Protocol) == j.flow.Protocol }) {
				of |= ofProtocol
			}
			miss(of, "wants %s%s; this is %s", s.what, ports(e.Ports), j.flow.What())
		}
		if !j.matches(s.rule(model.RuleEnd{NotPorts: e.NotPorts})) {
			miss(ofPort, "leaves out %s%s", s.what, ports(e.NotPorts))
		}
	}
	return lacks
}

// lack is what keeps a rule from matching.
type lack struct {
	text string
	far  int // 0: one more label mends it; the more, the further away
	of   aspect
}

// aspect is what a rule that is meant for a connection agrees with it in.
type aspect int

const (
	ofPort aspect = 1 << iota
	ofProtocol
	ofNamespace // or whether it is of a pod at all
)

// These are how far away a peer is.
const (
	anotherLabel = 1 + iota
	excepted     // of a block, which holds the address except for that
	anotherBlock // for what no labels describe
	anotherKind  // labels for an address that nothing known has, or a block for a pod
)

// further orders what is lacked. Rules for the namespace, protocol and port come first, then those
// that agree in two of them. Among these it is by how much has to change: by its kind, then by how
// much it is, and where that is the same, what another label alone would mend comes first.
func further(a, b []lack) int {
	sum := func(all []lack) (of aspect, most, sum int) {
		most = anotherLabel
		for _, l := range all {
			of, most, sum = of|l.of, max(most, l.far), sum+l.far
		}
		return of, most, sum
	}
	ofA, mostA, sumA := sum(a)
	ofB, mostB, sumB := sum(b)
	return cmp.Or(cmp.Compare(bits.OnesCount(uint(ofA)), bits.OnesCount(uint(ofB))), cmp.Compare(ofA, ofB),
		cmp.Compare(mostA, mostB), cmp.Compare(len(a), len(b)), cmp.Compare(sumA, sumB))
}

// lacksPeer says what keeps the peer that comes closest from being at an end of the flow; nothing
// if one is.
func (j *judge) lacksPeer(peers []model.Peer, s side) (best []lack) {
	for i := range peers {
		if j.is(s, peers[i]) {
			return nil
		}
		if lacks := lacksOfPeer(j.v, &peers[i], s.addr); best == nil || further(lacks, best) < 0 {
			best = lacks
		}
	}
	if best == nil {
		return []lack{{"names no peer that there is", anotherKind, ofNamespace}}
	}
	return best
}

// lacksOfPeer says how far an address is from a peer that does not hold it.
func lacksOfPeer(v *store.View, p *model.Peer, a netip.Addr) (best []lack) {
	one := func(far int, format string, args ...any) []lack {
		l := lack{text: fmt.Sprintf(format, args...), far: far}
		if far == anotherKind {
			l.of = ofNamespace
		}
		return []lack{l}
	}
	having := objectsAt(v, a)
	switch selects := !p.Selector.IsZero(); {
	case selects && len(having) == 0:
		return one(anotherKind, "wants %s; no pod has %v", wanted(p.Selector), a)
	case selects:
		for _, o := range having {
			var lacks []lack
			for _, t := range p.Selector.Lacks(policy.Labels(v, o)) {
				l := lack{text: fmt.Sprintf("wants %s; %s %s", t.Wants, holder(o, t), t.Is), far: anotherLabel}
				if t.Absent {
					l.far = 0
				}
				if strings.HasPrefix(strings.TrimPrefix(t.Wants, "no "), "namespace ") {
					l.of = ofNamespace
				}
				lacks = append(lacks, l)
			}
			if best == nil || further(lacks, best) < 0 {
				best = lacks
			}
		}
		return best
	case p.Service != (model.Name{}):
		return one(anotherKind, "wants %s; %v is none", describe(p), a)
	case model.Within(a, p.Nets):
		return one(excepted, "leaves %v out of %s", a, model.Join(p.Nets, ", "))
	case len(having) == 0:
		return one(anotherBlock, "wants %s; this is %v", describe(p), a)
	}
	return one(anotherKind, "wants %s; this is %v", describe(p), a)
}

// wanted says whom a selector selects.
func wanted(s model.Selector) string {
	var texts []string
	for _, l := range s.Lacks(model.LabelMap{model.OrchestratorLabel: "k8s"}) {
		texts = append(texts, l.Wants)
	}
	if len(texts) == 0 {
		return "a pod"
	}
	return "a pod with " + strings.Join(texts, " and ")
}

// holder names who has the label or lacks it: the object or its namespace.
func holder(o model.Object, l model.Lack) string {
	name := o.Ref().Name
	switch {
	case strings.HasPrefix(l.Wants, "namespace label"), strings.HasPrefix(l.Wants, "no namespace label"):
		return "namespace " + name.Namespace
	case o.Ref().Kind == model.PodKind:
		return name.String()
	}
	return o.Ref().String()
}

// objectsAt are the pod, network sets and host endpoints that have an address.
func objectsAt(v *store.View, a netip.Addr) (all []model.Object) {
	if pod := v.PodByAddr(a); pod != nil {
		all = append(all, pod)
	}
	for _, set := range v.NetworkSets() {
		if model.Within(a, set.Nets) {
			all = append(all, set)
		}
	}
	for _, h := range v.HostEndpoints() {
		if slices.ContainsFunc(h.Addresses, func(own netip.Addr) bool { return own.Unmap() == a }) {
			all = append(all, h)
		}
	}
	return all
}

// describe says which addresses a peer holds.
func describe(p *model.Peer) string {
	if !p.Selector.IsZero() {
		return "what has (" + p.Selector.String() + ")"
	}
	if p.Service != (model.Name{}) {
		return "an endpoint of Service " + p.Service.String()
	}
	const most = 3
	var nets []string
	for _, n := range p.Nets {
		nets = append(nets, n.String())
	}
	return model.FirstFew(nets, most)
}

// ports names ports for people: "TCP 80, TCP 8000-8090".
func ports(list []model.PolicyPort) string {
	const most = 3
	var texts []string
	for _, p := range list {
		text := "port"
		if p.Protocol != 0 {
			text = p.Protocol.String()
		}
		switch {
		case p.Service != (model.Name{}):
			text = "an endpoint of Service " + p.Service.String()
		case p.Name != "":
			text += " named " + p.Name
		case p.First == p.Last:
			text += fmt.Sprintf(" %d", p.First)
		case p.First > 0 || p.Last < 65535:
			text += fmt.Sprintf(" %d-%d", p.First, p.Last)
		}
		texts = append(texts, text)
	}
	return model.FirstFew(texts, most)
}
