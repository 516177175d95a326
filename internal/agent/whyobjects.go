package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

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

// notInForce names the waiting versions of policies that apply to a connection's sender, or to a
// pod that it may go to.
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

// mostIdle bounds for how many denying steps of a question all policies are looked through: of ways
// that are alike, only the first are explained in full.
const mostIdle = 10

// nearest adds to the paths the rules that come closest to allowing what is denied, and the refused
// policies among those that deny. leaveOut has removed policies that apply to no pod of the
// question, so policies that apply to nothing are looked for in the store.
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

// atSockets adds to the paths that a service is translated at the client's socket.
func (a *Agent) atSockets(paths []verdict.Path) {
	if a.Sockets == nil {
		return
	}
	for i := range paths {
		for _, step := range paths[i].Steps {
			f := step.Flow
			k := state.FrontendKey{Addr: f.Destination, Protocol: model.Protocol(f.Protocol), Port: f.DestinationPort}
			if step.Stage == verdict.Service && step.Node == a.Node && a.Sockets.Serves(f.Source, k) {
				paths[i].Notes = append(paths[i].Notes, fmt.Sprintf("translated at the client's socket: its packets leave for %s, and not for %s", netip.AddrPortFrom(paths[i].To.Address, paths[i].To.Port), netip.AddrPortFrom(f.Destination, f.DestinationPort)))
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

// suggest finds policies that would allow what is denied, and judges the connections with them.
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

// admitted says what to do where policies admit the client, but see a node in its place: a policy
// that admitted the node would admit all other clients, too. "" if they see the client.
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
