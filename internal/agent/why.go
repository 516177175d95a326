package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/internal/verdict"
)

// Explanation says what becomes of a connection, as far as this node is concerned.
type Explanation struct {
	// Allowed: each of Answers is. What Obstacles do is not counted.
	Allowed bool             `json:"allowed"`
	Answers []verdict.Answer `json:"answers"` // one for each address family, and for each pod behind a service that asks
	// Elsewhere are the nodes to ask where some of Answers is not judged here: neither allowed nor denied.
	Elsewhere []string `json:"elsewhere,omitempty"`
	// Obstacles are other programs' rules that may drop what is allowed.
	Obstacles []preflight.Obstacle `json:"obstacles,omitempty"`
	Warnings  []string             `json:"warnings,omitempty"`
}

// Denied reports whether one of the answers is that.
func (e Explanation) Denied() bool {
	return slices.ContainsFunc(e.Answers, func(a verdict.Answer) bool { return !a.Allowed && len(a.Elsewhere) == 0 })
}

// Explain answers a question by the state that is wanted now; safe for concurrent use. An
// error says what of the question makes no sense.
func (a *Agent) Explain(ctx context.Context, q Question) (Explanation, error) {
	var e Explanation
	if !a.Store.Synced() {
		return e, errNotSynced
	}
	questions, err := a.questions(q)
	if err != nil {
		return e, err
	}
	policy := a.answer(&e, questions)
	if !policy {
		e.Warnings = append(e.Warnings, "this agent does not carry out policy (--policy=false): only services are judged")
	}
	e.Warnings = append(e.Warnings, a.failing(policy)...)
	obstacles, err := a.obstacles(ctx)
	if err != nil {
		e.Warnings = append(e.Warnings, err.Error())
	}
	var passed []string
	for _, v := range questions {
		passed = append(passed, a.hooks(v)...)
	}
	for _, o := range obstacles {
		if slices.Contains(passed, o.Hook) {
			e.Obstacles = append(e.Obstacles, o)
		}
	}
	return e, nil
}

// answer answers the questions, and reports whether policy is carried out at all.
func (a *Agent) answer(e *Explanation, questions []verdict.Question) (policy bool) {
	a.compiling.Lock()
	defer a.compiling.Unlock()
	s := a.Compiler.State()
	e.Allowed = true
	for _, q := range questions {
		answer := verdict.Why(s, q)
		e.Answers = append(e.Answers, answer)
		e.Allowed = e.Allowed && answer.Allowed
		e.Elsewhere = append(e.Elsewhere, answer.Elsewhere...)
	}
	slices.Sort(e.Elsewhere)
	e.Elsewhere = slices.Compact(e.Elsewhere)
	return s.Policy != nil
}

// hooks are those that a connection's first packet passes, as far as its addresses tell.
func (a *Agent) hooks(q verdict.Question) []string {
	own := func(addr netip.Addr) bool {
		if a.Route == nil {
			return false
		}
		_, own := a.Route(addr)
		return own
	}
	switch from, to := own(q.From), own(q.To); {
	case from && to:
		return nil // through lo, which such rules let pass
	case from:
		return []string{"output", "postrouting"}
	case to:
		return []string{"prerouting", "input"}
	}
	return []string{"prerouting", "forward", "postrouting"}
}

// maxAskers bounds how many pods of a service are asked about.
const maxAskers = 16

// questions are what a question comes to, in addresses.
func (a *Agent) questions(q Question) (list []verdict.Question, err error) {
	a.Store.Read(func(v *store.View) {
		var from, to end
		if from, err = findEnd(v, q.From); err != nil {
			return
		}
		if to, err = findEnd(v, q.To); err != nil {
			return
		}
		var port uint16
		var protocol uint8
		if port, protocol, err = to.port(q); err != nil {
			return
		}
		for _, asker := range askers(v, from, a.Node) {
			for _, is4 := range []bool{true, false} {
				src, dst := asker.family(is4), to.family(is4)
				if !src.IsValid() || !dst.IsValid() || q.Family == 4 && !is4 || q.Family == 6 && is4 {
					continue
				}
				list = append(list, a.question(src, dst, protocol, port))
			}
		}
		if len(list) == 0 {
			err = noFamily(q, from, to)
		}
	})
	return list, err
}

// askers are who sends where a service is named: the pods that it selects, this node's before others.
func askers(v *store.View, from end, node string) []end {
	if from.service == nil {
		return []end{from}
	}
	var pods []*model.Pod
	for _, pod := range v.Selected(from.service) {
		if len(pod.IPs) > 0 && !pod.Finished && !pod.HostNetwork {
			pods = append(pods, pod)
		}
	}
	slices.SortStableFunc(pods, func(x, y *model.Pod) int {
		return cmp.Compare(elsewhere(x, node), elsewhere(y, node))
	})
	var ends []end
	for _, pod := range pods[:min(len(pods), maxAskers)] {
		ends = append(ends, end{name: "pod " + pod.Name.String(), addrs: pod.IPs, pod: pod})
	}
	return ends
}

func elsewhere(pod *model.Pod, node string) int {
	if pod.Node == node {
		return 0
	}
	return 1
}

// question asks about two addresses.
func (a *Agent) question(from, to netip.Addr, protocol uint8, port uint16) verdict.Question {
	q := verdict.Question{From: from, To: to, Protocol: protocol, Port: port, Here: a.Node, Name: a.whose, Node: a.podNode, Route: a.Route}
	if protocol == ping {
		q.Protocol, q.ICMPType = verdict.Ping(to)
	}
	return q
}

// podNode names the node of the pod that has an address.
func (a *Agent) podNode(addr netip.Addr) string {
	if pod := a.Store.PodByAddr(addr); pod != nil {
		return pod.Node
	}
	return ""
}

func noFamily(q Question, from, to end) error {
	has := func(e end, text string) string {
		var families []string
		for _, is4 := range []bool{true, false} {
			if e.family(is4).IsValid() {
				families = append(families, map[bool]string{true: "IPv4", false: "IPv6"}[is4])
			}
		}
		return fmt.Sprintf("%s has %s", cmp.Or(e.name, text), strings.Join(families, " and "))
	}
	if from.service != nil {
		return fmt.Errorf("%s selects no pod that could send: name a pod", from.name)
	}
	if q.Family != 0 {
		return fmt.Errorf("not both have an IPv%d address: %s, %s", q.Family, has(from, q.From), has(to, q.To))
	}
	return fmt.Errorf("no address family is common to both: %s, %s", has(from, q.From), has(to, q.To))
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
		warnings = append(warnings, "the kernel refuses what is made of "+strings.Join(slices.Compact(names), ", ")+": where that decides, nothing passes")
	}
	if r.kept > 0 {
		warnings = append(warnings, Contradicts(policy, r.kept, a.sourceStatus().Lacking))
	}
	return warnings
}

// obstacles are other programs' rules that may drop what we accept.
func (a *Agent) obstacles(ctx context.Context) ([]preflight.Obstacle, error) {
	if a.Obstacles == nil {
		return nil, nil
	}
	found, err := a.Obstacles(ctx)
	if err != nil {
		return found, fmt.Errorf("read other programs' rules: %w", err)
	}
	return found, nil
}
