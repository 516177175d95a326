package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/internal/question"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/internal/verdict"
)

// Explanation says what happens to a connection, as far as this node decides it.
type Explanation struct {
	// Allowed is whether all Answers are allowed. Obstacles do not count.
	Allowed bool             `json:"allowed"`
	Answers []verdict.Answer `json:"answers"` // one for each address family, and for each pod behind an asking service
	// Elsewhere are the nodes to ask if some of Answers are neither allowed nor denied here.
	Elsewhere []string `json:"elsewhere,omitempty"`
	// Obstacles are rules of other programs that may drop what is allowed.
	Obstacles []preflight.Obstacle `json:"obstacles,omitempty"`
	Warnings  []string             `json:"warnings,omitempty"`
}

// Denied reports whether one of the answers is denied.
func (e Explanation) Denied() bool {
	return slices.ContainsFunc(e.Answers, func(a verdict.Answer) bool { return !a.Allowed && len(a.Elsewhere) == 0 })
}

// Explain answers a question by the state that is wanted now; safe for concurrent use. An
// error says what of the question makes no sense.
func (a *Agent) Explain(ctx context.Context, q question.Question) (Explanation, error) {
	var e Explanation
	if !a.Store.Synced() {
		return e, errNotSynced
	}
	connections, err := a.connections(q)
	if err != nil {
		return e, err
	}
	policy := a.answer(&e, connections)
	if !policy {
		e.Warnings = append(e.Warnings, "this agent does not carry out policy (--policy=false): only services are judged")
	}
	e.Warnings = append(e.Warnings, a.failing(policy)...)
	obstacles, err := a.obstacles(ctx)
	if err != nil {
		e.Warnings = append(e.Warnings, err.Error())
	}
	var passed []string
	for _, c := range connections {
		passed = append(passed, a.hooks(c)...)
	}
	for _, o := range obstacles {
		if slices.Contains(passed, o.Hook) {
			e.Obstacles = append(e.Obstacles, o)
		}
	}
	return e, nil
}

// answer answers the questions, and reports whether policy is enforced at all.
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

// hooks returns the hooks that a connection's first packet passes, as far as its addresses tell.
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
		return nil // through lo, which such rules accept
	case from:
		return []string{"output", "postrouting"}
	case to:
		return []string{"prerouting", "input"}
	}
	return []string{"prerouting", "forward", "postrouting"}
}

// connections are those that a question is about, with what this node knows of them.
func (a *Agent) connections(q question.Question) (list []verdict.Question, err error) {
	a.Store.Read(func(v *store.View) { list, err = q.Connections(v, a.Node) })
	for i := range list {
		c := &list[i]
		c.Here, c.Name, c.Node, c.Route = a.Node, a.whose, a.podNode, a.Route
	}
	return list, err
}

// podNode names the node of the pod that has an address.
func (a *Agent) podNode(addr netip.Addr) string {
	if pod := a.Store.PodByAddr(addr); pod != nil {
		return pod.Node
	}
	return ""
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

// obstacles returns the rules of other programs that may drop what we accept.
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
