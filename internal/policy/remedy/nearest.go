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
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
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
	for _, p := range candidates(v, s) {
		rules := p.IngressRules
		if s.Stage.Outward() {
			rules = p.EgressRules
		}
		for i := range rules {
			if p.Key == s.Policy && rules[i].Name == s.Rule {
				break // it denies before the others are looked at
			}
			if rules[i].Action != model.Allow && rules[i].Action != model.Pass {
				continue
			}
			if lacks := lacksOf(v, &rules[i], s.Flow); len(lacks) > 0 {
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

// candidates are the policies that are asked before the connection is denied.
func candidates(v *store.View, s verdict.Step) (found []*model.Policy) {
	if s.Rule == "" {
		for _, key := range s.Isolating {
			if p := v.Policy(key); p != nil {
				found = append(found, p)
			}
		}
		return found
	}
	last, subject := v.Policy(s.Policy), subjectOf(v, s)
	if last == nil || subject == nil {
		return nil
	}
	labels := policy.Labels(v, subject)
	for _, p := range v.Policies() {
		applies := p.Ingress && !s.Stage.Outward() || p.Egress && s.Stage.Outward()
		if applies && p.Tier == last.Tier && policy.Compare(p, last) <= 0 && p.Subject.Matches(labels) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, policy.Compare)
	return found
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
	pod, is := subjectOf(v, s).(*model.Pod)
	if !is {
		return nil
	}
	deny := v.Policy(s.Policy)
	if len(s.Isolating) > 0 {
		deny = v.Policy(s.Isolating[0])
	}
	if deny == nil {
		return nil
	}
	labels := policy.Labels(v, pod)
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
		if rule := allows(v, p, s); rule != "" && i.selectsNothing(p) {
			found = append(found, idling{p, rule, lacksSubject(terms, pod, here)})
		}
	}
	slices.SortFunc(found, func(a, b idling) int { return policy.Compare(a.policy, b.policy) })
	return found
}

// allows returns the rule of a policy that would allow what a step denies, if the policy, and with
// it what its rules say of pods, were in the denied pod's namespace; "": none.
func allows(v *store.View, p *model.Policy, s verdict.Step) string {
	rules := p.IngressRules
	if s.Stage.Outward() {
		rules = p.EgressRules
	}
	for i := range rules {
		own := func(l lack) bool { return strings.HasPrefix(l.text, "wants namespace "+p.Key.Name.Namespace+";") }
		if rules[i].Action == model.Allow && len(slices.DeleteFunc(lacksOf(v, &rules[i], s.Flow), own)) == 0 {
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

// subjectOf is the pod or host endpoint that a step belongs to; nil if there is none any more.
func subjectOf(v *store.View, s verdict.Step) model.Object {
	switch s.Of.Kind {
	case model.PodKind:
		if pod := v.Pod(s.Of.Name); pod != nil {
			return pod
		}
	case model.HostEndpointKind:
		if h := v.HostEndpoint(s.Of.Name.Name); h != nil {
			return h
		}
	}
	return nil
}

// lacksOf says what keeps a rule from matching a flow.
func lacksOf(v *store.View, r *model.PolicyRule, f verdict.Flow) (lacks []lack) {
	miss := func(of aspect, format string, args ...any) {
		lacks = append(lacks, lack{fmt.Sprintf(format, args...), anotherLabel, of})
	}
	wants := func(family uint8, is bool) {
		if r.Family == family && !is {
			miss(0, "wants IPv%d", family)
		}
	}
	wants(4, f.Source.Is4())
	wants(6, f.Source.Is6())
	protocol := func(n uint8) string { return verdict.Flow{Protocol: n}.ProtocolName() }
	switch {
	case r.Protocol != 0 && r.Protocol != f.Protocol:
		miss(ofProtocol, "wants %s; this is %s", strings.TrimSuffix(protocol(r.Protocol), " 0"), f.What())
	case r.NotProtocol != 0 && r.NotProtocol == f.Protocol:
		miss(ofProtocol, "leaves out %s", strings.TrimSuffix(protocol(r.NotProtocol), " 0"))
	case r.ICMP != nil && !(f.ICMPType == r.ICMP.Type && (r.ICMP.Code < 0 || r.ICMP.Code == int16(f.ICMPCode))):
		miss(ofPort, "wants ICMP type %d; this is %s", r.ICMP.Type, f.What())
	case r.NotICMP != nil && f.ICMPType == r.NotICMP.Type && (r.NotICMP.Code < 0 || r.NotICMP.Code == int16(f.ICMPCode)):
		miss(ofPort, "leaves out ICMP type %d", r.NotICMP.Type)
	}
	for _, e := range []struct {
		end  *model.RuleEnd
		addr netip.Addr
		port uint16
		what string
	}{{&r.Source, f.Source, f.SourcePort, "source port "}, {&r.Destination, f.Destination, f.DestinationPort, ""}} {
		for _, peers := range e.end.Peers {
			lacks = append(lacks, lacksPeer(v, peers, e.addr)...)
		}
		for i := range e.end.NotPeers {
			if len(lacksOfPeer(v, &e.end.NotPeers[i], e.addr)) == 0 {
				miss(0, "leaves out %s", describe(&e.end.NotPeers[i]))
			}
		}
		if e.end.Ports != nil && !onPort(v, e.end.Ports, f.Protocol, e.addr, e.port) {
			of := ofPort
			if !slices.ContainsFunc(e.end.Ports, func(p model.PolicyPort) bool { return p.Protocol == 0 || uint8(p.Protocol) == f.Protocol }) {
				of |= ofProtocol
			}
			miss(of, "wants %s%s; this is %s", e.what, ports(e.end.Ports), f.What())
		}
		if e.end.NotPorts != nil && onPort(v, e.end.NotPorts, f.Protocol, e.addr, e.port) {
			miss(ofPort, "leaves out %s%s", e.what, ports(e.end.NotPorts))
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
	excepted     // of a block, which holds the address but for that
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

// lacksPeer says what keeps the peer that comes closest from holding an address; nothing if one
// does.
func lacksPeer(v *store.View, peers []model.Peer, a netip.Addr) (best []lack) {
	for i := range peers {
		lacks := lacksOfPeer(v, &peers[i], a)
		if len(lacks) == 0 {
			return nil
		}
		if best == nil || further(lacks, best) < 0 {
			best = lacks
		}
	}
	if best == nil {
		return []lack{{"names no peer that there is", anotherKind, ofNamespace}}
	}
	return best
}

func lacksOfPeer(v *store.View, p *model.Peer, a netip.Addr) (best []lack) {
	one := func(far int, format string, args ...any) []lack {
		l := lack{text: fmt.Sprintf(format, args...), far: far}
		if far == anotherKind {
			l.of = ofNamespace
		}
		return []lack{l}
	}
	having := objectsAt(v, a)
	if p.Selector.IsZero() {
		switch {
		case p.Service != (model.Name{}):
			if slices.ContainsFunc(sets.Endpoints(v, p.Service), func(e state.NamedPort) bool { return e.Addr == a }) {
				return nil
			}
			return one(anotherKind, "wants %s; %v is none", describe(p), a)
		case model.Within(a, p.Nets) && model.Within(a, p.Except):
			return one(excepted, "leaves %v out of %s", a, model.Join(p.Nets, ", "))
		case model.Within(a, p.Nets):
			return nil
		case len(having) == 0:
			return one(anotherBlock, "wants %s; this is %v", describe(p), a)
		}
		return one(anotherKind, "wants %s; this is %v", describe(p), a)
	}
	if len(having) == 0 {
		return one(anotherKind, "wants %s; no pod has %v", wanted(p.Selector), a)
	}
	for _, o := range having {
		terms := p.Selector.Lacks(policy.Labels(v, o))
		if len(terms) == 0 {
			return nil
		}
		var lacks []lack
		for _, t := range terms {
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

func onPort(v *store.View, list []model.PolicyPort, protocol uint8, a netip.Addr, port uint16) bool {
	return slices.ContainsFunc(list, func(p model.PolicyPort) bool {
		if p.Protocol != 0 && uint8(p.Protocol) != protocol {
			return false
		}
		if p.Service != (model.Name{}) {
			return slices.Contains(sets.Endpoints(v, p.Service), state.NamedPort{Addr: a, Protocol: model.Protocol(protocol), Port: port})
		}
		if p.Name == "" {
			return ported(protocol) && p.First <= port && port <= p.Last
		}
		pod := v.PodByAddr(a)
		return pod != nil && slices.ContainsFunc(pod.Ports, func(own model.ContainerPort) bool {
			return own.Name == p.Name && uint8(own.Protocol) == protocol && own.Port == port
		})
	})
}

func ported(protocol uint8) bool {
	return slices.Contains([]model.Protocol{model.TCP, model.UDP, model.SCTP}, model.Protocol(protocol))
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
	if len(texts) == 0 {
		return "no port"
	}
	return model.FirstFew(texts, most)
}
