package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/model"
	policy "sluice.dev/sluice/internal/policy/compile"
	"sluice.dev/sluice/internal/policy/lint"
	"sluice.dev/sluice/internal/policy/question"
	"sluice.dev/sluice/internal/policy/remedy"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Explanation says what happens to a connection, on all nodes that it passes.
type Explanation struct {
	// Outcome is that of all Connections together: denied if one is, unknown if one is not known.
	// Obstacles do not count.
	Outcome     verdict.Outcome  `json:"verdict"`
	Connections []verdict.Answer `json:"connections"` // one for each sender, address family, and address and port of a service
	// Ask are the nodes that know more of what is unknown.
	Ask []string `json:"ask,omitempty"`
	// Obstacles are rules of other programs on this node that may drop what is allowed: it depends
	// on what the question does not tell. Those that do are steps of the Connections.
	Obstacles []foreign.Obstacle `json:"obstacles,omitempty"`
	Warnings  []string           `json:"warnings,omitempty"`
	// OnTheWay is what is wrong with the ways that they take, to and from this node, and with the
	// pods of this node that they go to: what is allowed may be lost there.
	OnTheWay []string `json:"onTheWay,omitempty"`
	// Suggested are the policies with which what policy denies would pass, if the question asked
	// for them, and NoRemedy says why there are none for some of it.
	Suggested []remedy.Suggestion `json:"suggested,omitempty"`
	NoRemedy  []string            `json:"noRemedy,omitempty"`
}

// Explain answers a question by the state that is wanted now; safe for concurrent use. Of other
// nodes it takes the state that their agents want if they have the same flags and read the same
// objects. An error says what of the question makes no sense.
func (a *Agent) Explain(ctx context.Context, q question.Question) (Explanation, error) {
	e := Explanation{Outcome: verdict.Allowed}
	if !a.Store.Synced() {
		return e, errNotSynced
	}
	var c *question.Case
	var err error
	a.Store.Read(func(v *store.View) { c, err = q.Case(v, a.Node, func(addr netip.Addr) bool { return a.way(addr).Own }) })
	if unknown, ok := errors.AsType[*question.UnknownPodError](err); ok && a.finished(ctx, unknown.Pod) {
		err = question.Finished(unknown.Pod)
	}
	if err != nil {
		return e, err
	}
	leaveOut(c.Objects)
	others, err := a.otherRules(ctx)
	if err != nil {
		e.Warnings = append(e.Warnings, err.Error())
	}
	enforced := a.answer(&e, c, a.elsewhere(c, a.Node), &others)
	a.Store.Read(func(v *store.View) {
		for _, con := range e.Connections {
			noEndpoints(v, con.Paths)
			undeclared(v, con.Paths, con.Protocol)
		}
	})
	a.nearest(c.Objects, e.Connections)
	if q.Suggest {
		a.suggest(&e, c)
	}
	if entries := a.entriesElsewhere(e.Connections); enforced && len(entries) > 0 && len(e.Ask) == 0 {
		e.Warnings = append(e.Warnings, fmt.Sprintf("%s taken to have this node's flags, which name no deny lists", areNodes(entries)))
	}
	if c.MoreSenders > 0 {
		e.Warnings = append(e.Warnings, fmt.Sprintf("%s of %v are not asked about: name one as FROM", model.Count(c.MoreSenders, "more pod"), q.From))
	}
	if c.MoreEntries > 0 {
		e.Warnings = append(e.Warnings, fmt.Sprintf("a client outside may also come in by %s, which the answer leaves out: --via names one", model.Count(c.MoreEntries, "more node")))
	}
	if !enforced {
		e.Warnings = append(e.Warnings, "this agent does not carry out policy (--policy=false, or a mode without it): only services are judged")
	} else {
		e.Warnings = append(e.Warnings, notInForce(c, a.Store.WaitingPolicies())...)
	}
	unsure := a.failing(enforced)
	if e.Warnings = append(e.Warnings, unsure...); len(unsure) > 0 && e.Outcome == verdict.Allowed {
		e.Outcome = verdict.Unknown
		for i := range e.Connections {
			e.Connections[i].Outcome = verdict.Unknown
		}
	}
	for _, fault := range slices.Concat(a.onTheWay(e.Connections, &others), a.silentPods(ctx, e.Connections)) {
		if !slices.Contains(e.OnTheWay, fault) { // of both families
			e.OnTheWay = append(e.OnTheWay, fault)
		}
	}
	if names := a.notAsked(e.Connections); len(names) > 0 {
		e.Warnings = append(e.Warnings, fmt.Sprintf("other programs' rules on %s are not known here: ask there, too", nodesNamed(names)))
	}
	return e, nil
}

// notAsked are the other nodes that connections pass, if all is allowed.
func (a *Agent) notAsked(connections []verdict.Answer) (names []string) {
	if a.OtherRules == nil {
		return nil
	}
	for _, con := range connections {
		if con.Outcome != verdict.Allowed {
			return nil
		}
		names = append(names, con.From.Node)
		for _, p := range con.Paths {
			names = append(names, p.To.Node)
			for _, s := range p.Steps {
				names = append(names, s.Node)
			}
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" || name == a.Node })
}

// notInForce names the versions of policies that wait and are about a connection: they apply to its
// sender, or to a pod that it may go to.
func notInForce(c *question.Case, waiting []store.Waiting) (warnings []string) {
	sends := func(pod *model.Pod) bool {
		return slices.ContainsFunc(c.Connections, func(con verdict.Question) bool { return slices.Contains(pod.IPs, con.From) })
	}
	c.Objects.Read(func(v *store.View) {
		for _, p := range waiting {
			about := func(pod *model.Pod) bool {
				return !pod.HostNetwork && p.Subject.Matches(policy.Labels(v, pod)) && (p.Egress && sends(pod) || p.Ingress && !sends(pod))
			}
			if !slices.ContainsFunc(v.Pods(), about) {
				continue
			}
			text := fmt.Sprintf("%v is about this connection and not in force: it waits for %v", p.Key, p.For)
			if v.Policy(p.Key) != nil {
				text += "; its version before decides"
			}
			warnings = append(warnings, text)
		}
	})
	return warnings
}

// entriesElsewhere are the other nodes by which connections from outside come in.
func (a *Agent) entriesElsewhere(connections []verdict.Answer) (names []string) {
	for _, con := range connections {
		for _, p := range con.Paths {
			if con.From.Node == "" && len(p.Steps) > 0 && p.Steps[0].Node != a.Node {
				names = append(names, p.Steps[0].Node)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// onTheWay says what is wrong with the ways from here to the ends of connections that pass this
// node, and to the nodes that have them.
func (a *Agent) onTheWay(connections []verdict.Answer, others *foreign.Rules) (faults []string) {
	crossed := map[string]map[bool]bool{} // by node and family
	for _, con := range connections {
		for _, p := range con.Paths {
			nodes := map[string]bool{con.From.Node: true, p.To.Node: true}
			for _, step := range p.Steps {
				nodes[step.Node] = true
			}
			for name := range nodes {
				if nodes[a.Node] && name != a.Node {
					if crossed[name] == nil {
						crossed[name] = map[bool]bool{}
					}
					crossed[name][p.To.Address.Is4()] = true
				}
			}
		}
	}
	packets := a.passing(connections)
	faults = append(a.unsound(packets), a.lost(packets)...)
	if len(crossed) == 0 {
		return faults
	}
	issues := a.objectsOfWays()
	if a.Paths != nil {
		issues = append(issues, a.Paths.Issues()...)
	}
	var between []string
	for _, i := range issues {
		if i.Object.Kind == model.NodeKind && crossed[i.Object.Name.Name] != nil {
			between = append(between, i.String())
		}
	}
	slices.Sort(between)
	return slices.Concat(faults, a.unheard(crossed, others), between)
}

// Passing is a packet that the node sends on its way: its own, or one that comes in.
type Passing struct {
	From, To netip.Addr // an invalid From is one of the node's own, which the kernel chooses
	In       Hop        // the zero Hop: the node itself sends it
	Out      Hop        // that is wanted; the zero Hop: any

	forwarded bool // neither end is the node itself
}

// Hop is an interface, by its index or its name, and the gateway on it, if that is known.
type Hop struct {
	Index  int
	Device string
	Via    netip.Addr
}

// mostPassing bounds for how many packets of one question the kernel is asked.
const mostPassing = 50

// passing are the packets of connections that this node sends on their way, and of their answers;
// each once.
func (a *Agent) passing(connections []verdict.Answer) (packets []Passing) {
	if a.Lost == nil {
		return nil
	}
	a.compiling.Lock()
	defer a.compiling.Unlock()
	known := map[[2]netip.Addr]bool{}
	for _, con := range connections {
		for _, p := range con.Paths {
			from, here := con.From.Address, con.From.Node == a.Node || p.To.Node == a.Node
			for i := len(p.Steps) - 1; i >= 0; i-- {
				if s := p.Steps[i]; s.Node == a.Node {
					here = true
					if s.Flow.Source.IsValid() { // another node may have put its own in place of the sender's
						from = s.Flow.Source
					}
				}
			}
			if _, refused := verdict.Denial(p.Steps); refused && p.To.Address == con.To.Address && con.To.Object.Kind == model.ServiceKind {
				continue // it goes nowhere
			}
			ends := [2]netip.Addr{from, p.To.Address}
			if !here || known[ends] || from == ends[1] || !from.IsGlobalUnicast() || !ends[1].IsGlobalUnicast() {
				continue
			}
			if len(packets) >= mostPassing {
				return packets
			}
			known[ends] = true
			sender, receiver := a.endOf(ends[0]), a.endOf(ends[1])
			packets = append(packets, sender.to(receiver), receiver.to(sender))
		}
	}
	return packets
}

// end is an end of a connection, as this node reaches it.
type end struct {
	addr   netip.Addr
	hop    Hop  // by which it is reached
	own    bool // it is the node's own
	wanted bool // the state says so, whatever the routes are
}

// endOf asks the kernel where the state does not tell.
func (a *Agent) endOf(addr netip.Addr) end {
	s := a.Compiler.State()
	if s.Policy != nil {
		if pod := s.Policy.Workloads[addr]; pod != nil && pod.Device != 0 {
			return end{addr: addr, hop: Hop{Index: pod.Device}, wanted: true}
		}
	}
	if s.Fabric != nil {
		if r := s.Fabric.To(addr); r != nil && r.Device != "" {
			return end{addr: addr, hop: Hop{Device: r.Device, Via: r.Via}, wanted: true}
		}
	}
	way := a.way(addr)
	if way.Own {
		return end{addr: addr, own: true}
	}
	return end{addr: addr, hop: Hop{Index: way.Device}}
}

// to is a packet of the end's to another one.
func (e end) to(o end) Passing {
	p := Passing{From: e.addr, To: o.addr, In: e.hop, forwarded: !e.own && !o.own}
	if !e.own && e.hop == (Hop{}) {
		p.From = netip.Addr{} // where it comes in is not known
	}
	if o.wanted {
		p.Out = o.hop
	}
	return p
}

// unsound says what of this node is wrong that concerns the packets, whatever its routes are.
func (a *Agent) unsound(packets []Passing) (faults []string) {
	if issue, shown := a.Contests.About(contest.Forwarding); shown && slices.ContainsFunc(packets, func(p Passing) bool { return p.forwarded }) {
		faults = append(faults, issue.String())
	}
	if c, err := ReadConntrack(); err == nil && len(packets) > 0 && c.crowded() != "" {
		faults = append(faults, c.crowded())
	}
	for _, f := range a.followers {
		s := f.Status()
		if s.Fabric && s.Contested && slices.ContainsFunc(packets, func(p Passing) bool { return p.Out.Device != "" }) {
			faults = append(faults, "another program goes on changing tunnels or routes to other nodes, which are put right each time: end it, or have it leave them alone")
		}
	}
	for _, d := range a.Config.Followers {
		if d.Capabilities().Can&driver.Fabric == 0 {
			continue
		}
		aside := slices.DeleteFunc(d.SetAside(), func(s driver.SetAside) bool {
			return !slices.ContainsFunc(packets, func(p Passing) bool { return p.needs(s) })
		})
		for _, i := range Refusals(aside) {
			faults = append(faults, i.String())
		}
	}
	return faults
}

// needs reports whether a packet goes by what the fabric's driver has set aside: a device, a
// neighbour or a route.
func (p Passing) needs(s driver.SetAside) bool {
	what, _, _ := strings.Cut(s.Name.Name, " ")
	if to, err := netip.ParsePrefix(what); err == nil {
		return to.Contains(p.To)
	}
	return what != "" && (what == p.Out.Device || what == p.Out.Via.String())
}

// lost says which packets this node does not send on their way, by the reason.
func (a *Agent) lost(packets []Passing) (faults []string) {
	missed := map[string][]string{} // addresses, by why
	how := map[string]string{}      // it is shown for the first of them
	for _, p := range packets {
		why, shown := a.Lost(p)
		if why == "" {
			continue
		}
		if to := p.To.String(); !slices.Contains(missed[why], to) {
			missed[why] = append(missed[why], to)
		}
		how[why] = cmp.Or(how[why], shown)
	}
	for why, addrs := range missed {
		faults = append(faults, fmt.Sprintf("node %s does not reach %s: %s; see '%s'", a.Node, model.FirstFew(addrs, 3), why, how[why]))
	}
	slices.Sort(faults)
	return faults
}

// unheard says which of some nodes, by family, do not answer through their tunnel, and which rule
// of another program here drops what it is made of.
func (a *Agent) unheard(crossed map[string]map[bool]bool, others *foreign.Rules) (faults []string) {
	if a.Heard == nil {
		return nil
	}
	silent := map[[3]string][]string{} // nodes by tunnel, and why it does not answer
	for of, h := range a.Heard.Heard() {
		if of.Carrier != (model.Carrier{}) && h.Silent() && crossed[of.Node][of.To.Is4()] {
			tunnel := [3]string{of.Device, of.Carrier.String(), cmp.Or(a.dropped(of, others), h.Why)}
			silent[tunnel] = append(silent[tunnel], of.Node)
		}
	}
	for tunnel, nodes := range silent {
		slices.Sort(nodes)
		why := cmp.Or(tunnel[2], fmt.Sprintf("a firewall between the nodes is likely to drop %s, and with it this connection", tunnel[1]))
		faults = append(faults, fmt.Sprintf("through %s %s not heard: %s; see 'sluice fabric'", tunnel[0], areNodes(nodes), why))
	}
	slices.Sort(faults)
	return faults
}

// dropped says which rule of another program here drops packets of a tunnel; "": none is known to.
func (a *Agent) dropped(of model.FarEnd, others *foreign.Rules) string {
	to := a.way(of.Remote)
	if len(to.Sources) == 0 {
		return ""
	}
	out := foreign.Way{Source: to.Sources[0], Destination: of.Remote, Protocol: of.Carrier.Protocol, DestinationPort: of.Carrier.Port, Out: to.Device, FromNode: true, Tunnel: true}
	in := foreign.Way{Source: of.Remote, Destination: to.Sources[0], Protocol: of.Carrier.Protocol, DestinationPort: of.Carrier.Port, In: to.Device, ToNode: true, Tunnel: true}
	for _, way := range []foreign.Way{out, in} {
		way.Asked = netip.AddrPortFrom(way.Destination, way.DestinationPort)
		if _, does, err := others.Meets(way); err == nil && does != nil {
			return does.Seen + "; " + does.Do
		}
	}
	return ""
}

// areNodes is "node a is", or "nodes a and b are".
func areNodes(nodes []string) string {
	if len(nodes) == 1 {
		return nodesNamed(nodes) + " is"
	}
	return nodesNamed(nodes) + " are"
}

// nodesNamed is "node a", or "nodes a and b".
func nodesNamed(nodes []string) string {
	const most = 3
	if len(nodes) == 1 {
		return "node " + nodes[0]
	}
	return "nodes " + model.FirstFew(nodes, most)
}

// finished reports whether a pod that is not known has finished, as far as the source tells.
func (a *Agent) finished(ctx context.Context, pod model.Name) bool {
	s, ok := a.Source.(source.Finisher)
	if !ok {
		return false
	}
	has, err := s.Finished(ctx, pod)
	return has && err == nil // that it is not known is said in any case
}

// leaveOut takes out of the objects of a question the policies that apply to none of its pods and
// to no host endpoint: each node in question would compile them.
func leaveOut(s *store.Store) {
	var idle []store.Event
	s.Read(func(v *store.View) {
		var subjects []model.Labels
		for _, pod := range v.Pods() {
			subjects = append(subjects, policy.Labels(v, pod))
		}
		for _, h := range v.HostEndpoints() {
			subjects = append(subjects, policy.Labels(v, h))
		}
		for _, p := range v.Policies() {
			if !slices.ContainsFunc(subjects, p.Subject.Matches) {
				idle = append(idle, store.Event{Kind: p.Key.Kind, Name: p.Key.Name})
			}
		}
	})
	s.Apply(idle)
}

// mostIdle bounds for how many steps of a question that deny all policies are looked through: of
// ways that are alike the first are told of in full.
const mostIdle = 10

// nearest adds to the paths which rules come closest to allowing what is denied, and which policies
// deny because they are refused. Of the objects of the question those that apply to none of its
// pods are left out, so that policies that apply to nothing are looked for in the store.
func (a *Agent) nearest(s *store.Store, connections []verdict.Answer) {
	a.Store.Read(func(all *store.View) {
		var idle *remedy.Idle
		steps := 0
		s.Read(func(v *store.View) {
			for _, con := range connections {
				for i := range con.Paths {
					p := &con.Paths[i]
					for _, step := range p.Steps {
						if step.Outcome != verdict.Denied {
							continue
						}
						switch steps++; {
						case idle == nil && steps == 1:
							idle = remedy.NewIdle(all)
						case steps > mostIdle:
							idle = nil
						}
						p.Nearest = append(p.Nearest, remedy.Nearest(v, step, idle)...)
						p.Notes = append(p.Notes, refusals(v, step)...)
					}
				}
			}
		})
	})
}

// noEndpoints adds to the paths why a Service has no endpoint for what it refuses.
func noEndpoints(v *store.View, paths []verdict.Path) {
	for i := range paths {
		for _, step := range paths[i].Steps {
			svc, to := v.Service(step.Of.Name), step.Flow.DestinationPort
			if step.Stage != verdict.Service || step.Outcome != verdict.Denied || svc == nil {
				continue
			}
			for j := range svc.Ports {
				p := &svc.Ports[j]
				if uint8(p.Protocol) != step.Flow.Protocol || p.Port != to && p.NodePort != to {
					continue
				}
				if why := lint.Unserved(v, svc, p, step.Flow.Destination.Is4()); why != "" {
					paths[i].Notes = append(paths[i].Notes, fmt.Sprintf("%v: %s", svc.Ref(), why))
				}
			}
		}
	}
}

// undeclared adds to the paths that no container of their pod declares the port, where the
// containers declare others: if nothing listens there, the pod refuses, once policy lets it pass.
func undeclared(v *store.View, paths []verdict.Path, protocol string) {
	for i, p := range paths {
		pod := v.Pod(p.To.Object.Name)
		if p.To.Object.Kind != model.PodKind || pod == nil {
			continue
		}
		var declared []string
		found := false
		for _, c := range pod.Ports {
			if c.Protocol.String() == protocol {
				found = found || c.Port == p.To.Port
				declared = append(declared, strings.TrimPrefix(c.Name+" ", " ")+strconv.Itoa(int(c.Port)))
			}
		}
		if len(declared) > 0 && !found {
			paths[i].Notes = append(paths[i].Notes, fmt.Sprintf("no container of the pod declares %s %d (they declare %s): if nothing listens there, it is refused", protocol, p.To.Port, model.FirstFew(declared, 3)))
		}
	}
}

// refusals says of the policies by which a step denies which of them are refused, and why.
func refusals(v *store.View, s verdict.Step) (texts []string) {
	for _, key := range append(slices.Clone(s.Isolating), s.Policy) {
		p := v.Policy(key)
		if p == nil {
			continue
		}
		why := p.Refused
		if tier := v.Tier(p.Tier); tier != nil && why == "" {
			why = tier.Fault()
		}
		if why != "" {
			texts = append(texts, fmt.Sprintf("%v is refused: %s", key, why))
		}
	}
	return texts
}

// maxRounds is how often a connection is judged anew with what was suggested for it: a policy may
// let it pass to a tier that denies it too.
const maxRounds = 4

// suggest finds the policies that would allow what is denied, and judges it with them.
func (a *Agent) suggest(e *Explanation, c *question.Case) {
	now, why := *e, map[string]bool{}
	for _, con := range e.Connections {
		for _, p := range con.Paths {
			if text := admitted(p); text != "" {
				why[text] = true
			}
		}
	}
	for range maxRounds {
		var added []store.Event
		for _, s := range deniedSteps(now.Connections) {
			var one remedy.Suggestion
			var err error
			a.Store.Read(func(v *store.View) { one, err = remedy.Allow(v, s) })
			known := func(old remedy.Suggestion) bool { return old.Object == one.Object || old.Same(one) }
			switch {
			case err != nil:
				why[err.Error()] = true
			case !slices.ContainsFunc(e.Suggested, known):
				e.Suggested = append(e.Suggested, one)
				added = append(added, store.Event{Kind: one.Object.Kind, Name: one.Object.Name, Object: one.Policy})
			}
		}
		if added == nil {
			break
		}
		c.Objects.Apply(added)
		now = Explanation{Outcome: verdict.Allowed}
		a.answer(&now, c, a.elsewhere(c, ""), nil)
	}
	e.NoRemedy = slices.Sorted(maps.Keys(why))
	if len(e.NoRemedy) == 0 && len(deniedSteps(now.Connections)) > 0 {
		e.NoRemedy = []string{"it is denied with these policies too"}
	}
}

// admitted says what to do where policies admit the client and do not see it: one that admits the
// node in its place would admit all others, too. "" if that is not so.
func admitted(p verdict.Path) string {
	if h := p.HiddenClient; h != nil && h.Otherwise == verdict.Allowed && h.Remedy != "" {
		return "policies admit the client where they see it: " + h.Remedy
	}
	return ""
}

// deniedSteps are the steps that deny one of the connections, and that a policy may help against.
func deniedSteps(connections []verdict.Answer) (steps []verdict.Step) {
	for _, con := range connections {
		for _, p := range con.Paths {
			for _, s := range p.Steps {
				if s.Outcome == verdict.Denied && admitted(p) == "" {
					steps = append(steps, s)
				}
			}
		}
	}
	return steps
}

// answer answers the questions, with what other nodes and other programs here make of them, and
// reports whether policy is enforced at all.
func (a *Agent) answer(e *Explanation, c *question.Case, nodes map[string]*verdict.Node, others *foreign.Rules) (policy bool) {
	cluster := &verdict.Cluster{Here: a.Node, Nodes: nodes, Home: c.Home, Object: c.Object}
	a.compiling.Lock()
	defer a.compiling.Unlock()
	own := a.carriedOut(a.Compiler.State())
	if nodes[a.Node] == nil {
		can := a.Driver.Capabilities()
		nodes[a.Node] = &verdict.Node{State: own, Route: a.way, Others: func(c verdict.Crossing) []verdict.Step {
			return e.meets(others, c, can, cluster.Home(c.Flow.Destination) != "")
		}}
	}
	for _, q := range c.Connections {
		answer := cluster.Why(q)
		e.Connections = append(e.Connections, answer)
		e.Outcome = e.Outcome.And(answer.Outcome)
		for _, p := range answer.Paths {
			for _, s := range p.Steps {
				if s.KnownThere() && s.Node != a.Node && !slices.Contains(e.Ask, s.Node) {
					e.Ask = append(e.Ask, s.Node)
				}
			}
		}
	}
	slices.Sort(e.Ask)
	return own.Policy != nil
}

// meets says where a connection ends in rules of other programs here, and notes where it may.
func (e *Explanation) meets(others *foreign.Rules, c verdict.Crossing, can driver.Capabilities, inside bool) []verdict.Step {
	if can.Can&driver.Survives == 0 && c.Asked != c.Flow {
		return nil // a proxy takes it, and opens another
	}
	may, does, err := others.Meets(foreign.Way{
		Source: c.Flow.Source, Destination: c.Flow.Destination, Asked: netip.AddrPortFrom(c.Asked.Destination, c.Asked.DestinationPort),
		Protocol: c.Flow.Protocol, SourcePort: c.Flow.SourcePort, DestinationPort: c.Flow.DestinationPort,
		ICMPType: c.Flow.ICMPType, ICMPCode: c.Flow.ICMPCode, In: c.In, Out: c.Out, FromNode: c.FromNode, ToNode: c.ToNode, AtInput: can.AtInput, Inside: inside,
	})
	if err != nil {
		if text := errOtherRules(err).Error(); !slices.Contains(e.Warnings, text) {
			e.Warnings = append(e.Warnings, text)
		}
	}
	for _, o := range may {
		switch text := o.Seen + "; " + o.Do; {
		case o.Alters && !slices.Contains(e.OnTheWay, text):
			e.OnTheWay = append(e.OnTheWay, text)
		case !o.Alters && !slices.Contains(e.Obstacles, o):
			e.Obstacles = append(e.Obstacles, o)
		}
	}
	if does == nil {
		return nil
	}
	return []verdict.Step{{Stage: verdict.Others, Text: does.Seen + "; " + does.Do}}
}

// carriedOut is what of a state decides: without policy, if the driver carries out none.
func (a *Agent) carriedOut(s *state.State) *state.State {
	if a.Driver.Capabilities().Can&driver.Policy != 0 {
		return s
	}
	without := *s
	without.Policy = nil
	return &without
}

// elsewhere compiles what nodes but one make of the objects of a question.
func (a *Agent) elsewhere(c *question.Case, but string) map[string]*verdict.Node {
	a.compiling.Lock()
	others := map[string]*compile.Other{}
	for _, name := range c.Nodes {
		if name != but {
			others[name] = a.Compiler.Elsewhere(name)
		}
	}
	a.compiling.Unlock()
	nodes := map[string]*verdict.Node{}
	for name, other := range others {
		there := other.Compile(c.Objects)
		nodes[name] = &verdict.Node{
			State: a.carriedOut(there.State), Uplinks: there.Uplinks, Hidden: verdict.Hidden{DenyLists: there.DenyLists, Lists: there.Lists},
			Route: func(to netip.Addr) verdict.Way {
				way := verdict.Way{Own: c.Object(to) == model.Ref{Kind: model.NodeKind, Name: model.Name{Name: name}}}
				if node := a.Store.Node(name); node != nil {
					way.Sources = a.sources(node, c.Object(to).Kind != model.NodeKind && c.Home(to) != "")
				}
				return way
			},
		}
	}
	return nodes
}

// sources are the addresses that another node may send from: an address of the Node, or to pods of
// others, if this node does so too, one of a tunnel, which has its address at the beginning of the
// node's range of pods; where this node's is at the same place of its own range, it is that.
func (a *Agent) sources(other *model.Node, toPod bool) (addrs []netip.Addr) {
	for _, r := range other.PodCIDRs {
		first := r.Masked().Addr()
		for _, own := range a.way(first.Next()).Sources {
			switch here := a.rangeOf(own); {
			case !toPod || a.nodes.of(a.Store, own) != "":
			case here.Addr() == own:
				addrs = append(addrs, first)
			case here.IsValid() && here.Addr().Next() == own:
				addrs = append(addrs, first.Next())
			default:
				addrs = append(addrs, first, first.Next())
			}
		}
	}
	for _, own := range other.IPs {
		own = own.Unmap()
		if !slices.ContainsFunc(addrs, func(b netip.Addr) bool { return b.Is4() == own.Is4() }) {
			addrs = append(addrs, own)
		}
	}
	return addrs
}

// rangeOf is the range of this node's pods that holds an address; the zero Prefix: none.
func (a *Agent) rangeOf(addr netip.Addr) netip.Prefix {
	if node := a.Store.Node(a.Node); node != nil {
		for _, r := range node.PodCIDRs {
			if r.Contains(addr) {
				return r.Masked()
			}
		}
	}
	return netip.Prefix{}
}

// way is how this node reaches an address.
func (a *Agent) way(to netip.Addr) verdict.Way {
	if a.Route == nil {
		return verdict.Way{}
	}
	return a.Route(to)
}

// failing says why the kernel may hold another state than the wanted one, if it may.
func (a *Agent) failing(policy bool) (warnings []string) {
	a.mu.Lock()
	r := a.record
	a.mu.Unlock()
	for _, f := range r.failures {
		warnings = append(warnings, "the kernel may hold an older state: "+f.Error)
	}
	if aside := a.Driver.SetAside(); len(aside) > 0 {
		names := make([]string, len(aside))
		for i, s := range aside {
			names[i] = s.Object()
		}
		slices.Sort(names)
		warnings = append(warnings, "the kernel refuses what is made of "+strings.Join(slices.Compact(names), ", ")+": what it would decide does not pass")
	}
	if r.kept > 0 {
		warnings = append(warnings, Contradicts(policy, r.kept, a.sourceStatus().Lacking))
	}
	return warnings
}

// otherRules reads the rules of other programs.
func (a *Agent) otherRules(ctx context.Context) (foreign.Rules, error) {
	if a.OtherRules == nil {
		return foreign.Rules{}, nil
	}
	rules, err := a.OtherRules(ctx)
	if err = errors.Join(err, rules.Legacy.ReadErr); err != nil {
		return rules, errOtherRules(err)
	}
	return rules, nil
}

func errOtherRules(err error) error { return fmt.Errorf("read other programs' rules: %w", err) }
