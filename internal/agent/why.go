package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/question"
	"sluice.dev/sluice/internal/policy/remedy"
	"sluice.dev/sluice/internal/policy/verdict"
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
	// Obstacles are rules of other programs on this node that may drop what is allowed, depending
	// on what the question does not say. Rules that surely drop it are steps of the Connections.
	Obstacles []foreign.Obstacle `json:"obstacles,omitempty"`
	Warnings  []string           `json:"warnings,omitempty"`
	// OnTheWay are faults in the ways to and from this node, and of the pods of this node that are
	// asked for: what is allowed may be lost there.
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
	a.Store.Read(func(v *store.View) {
		c, err = q.Case(v, a.Node, func(addr netip.Addr) bool { return a.Route(addr).Own })
	})
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
	for _, con := range e.Connections {
		a.atSockets(con.Paths)
	}
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

// maxRounds is how often a connection is judged anew with what was suggested for it: a policy may
// let it pass to a tier that denies it too.
const maxRounds = 4

// answer answers the questions with the states of other nodes and the rules of other programs here,
// and reports whether policy is enforced at all.
func (a *Agent) answer(e *Explanation, c *question.Case, nodes map[string]*verdict.Node, others *foreign.Rules) (policy bool) {
	cluster := &verdict.Cluster{Here: a.Node, Nodes: nodes, Home: c.Home, Object: c.Object}
	a.compiling.Lock()
	defer a.compiling.Unlock()
	own := a.carriedOut(a.Compiler.State())
	if nodes[a.Node] == nil {
		can := a.Driver.Capabilities()
		nodes[a.Node] = &verdict.Node{State: own, Route: a.Route, Others: func(c verdict.Crossing) []verdict.Step {
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

// carriedOut is the part of a state that is in force: without policy, if the driver carries out
// none.
func (a *Agent) carriedOut(s *state.State) *state.State {
	if a.Driver.Capabilities().Can&driver.Policy != 0 {
		return s
	}
	without := *s
	without.Policy = nil
	return &without
}

// elsewhere compiles the objects of a question for all of its nodes but one.
func (a *Agent) elsewhere(c *question.Case, but string) map[string]*verdict.Node {
	a.compiling.Lock()
	others := map[string]func(*store.Store) compile.Elsewhere{}
	for _, name := range c.Nodes {
		if name != but {
			others[name] = a.Compiler.Elsewhere(name)
		}
	}
	a.compiling.Unlock()
	nodes := map[string]*verdict.Node{}
	for name, compiled := range others {
		there := compiled(c.Objects)
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

// sources returns the addresses that another node may send from. To pods of other nodes it may be
// that of a tunnel, if this node sends from one: the first address of the node's pod range or the
// next one, whichever this node's is in its own range. Otherwise it is an address of the Node.
func (a *Agent) sources(other *model.Node, toPod bool) (addrs []netip.Addr) {
	here := cmp.Or(a.Store.Node(a.Node), &model.Node{})
	for _, r := range other.PodCIDRs {
		first := r.Masked().Addr()
		for _, own := range a.Route(first.Next()).Sources {
			isFirst := func(p netip.Prefix) bool { return p.Masked().Addr() == own }
			isNext := func(p netip.Prefix) bool { return p.Masked().Addr().Next() == own }
			switch {
			case !toPod || slices.Contains(here.IPs, own):
			case slices.ContainsFunc(here.PodCIDRs, isFirst):
				addrs = append(addrs, first)
			case slices.ContainsFunc(here.PodCIDRs, isNext):
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

// failing says why the kernel may differ from the desired state, if it may.
func (a *Agent) failing(policy bool) (warnings []string) {
	r := a.recorded()
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
