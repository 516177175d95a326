package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	policy "sluice.dev/sluice/internal/policy/compile"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// unsupportedPolicies says of each policy that cannot be carried out as it is written what each
// choice of --unsupported would do on this node. What the choice of the flags comes to has been
// read and compiled, and now are the connections that it would deny.
func unsupportedPolicies(ctx context.Context, node *nodeFlags, config compile.Config, read *store.Store, compiled *state.Policy, now connections) (results []preflight.Result, err error) {
	as := func(u unsupported) (*state.Policy, *store.Store, error) {
		if u == node.unsupported {
			return compiled, read, nil
		}
		flags := *node
		flags.unsupported = u
		c, objects, _, err := compileOnce(ctx, &flags, config)
		if err != nil {
			return nil, nil, err
		}
		return c.State().Policy, objects, nil
	}
	denying, objects, err := as(denyUnsupported)
	if err != nil {
		return nil, err
	}
	var refused []*model.Policy
	objects.Read(func(v *store.View) {
		refused = slices.DeleteFunc(v.Policies(), func(p *model.Policy) bool { return p.Refused == "" })
	})
	if len(refused) == 0 {
		return nil, nil
	}
	ignoring, _, err := as(ignoreUnsupported)
	if err != nil {
		return nil, err
	}
	if node.unsupported != denyUnsupported {
		now = findForbidden(ctx, denying) // where it fails, another check says so
	}
	slices.SortFunc(refused, func(a, b *model.Policy) int { return a.Key.Compare(b.Key) })
	for _, p := range refused {
		n := 0
		for _, f := range now.forbidden {
			if f.By.Policy == p.Key || slices.Contains(f.By.Isolating, p.Key) {
				n++
			}
		}
		subjects := podsOf(objects, config.Node, p)
		if len(subjects) == 0 {
			results = append(results, preflight.Result{Check: checkUnsupported, Status: preflight.OK, Seen: p.Key.String() + ": selects no pod of this node"})
			continue
		}
		text := fmt.Sprintf("%s: selects %s of this node: %s. --unsupported=deny, the default, %s, and would deny %s. --unsupported=ignore-policy %s",
			p.Key, model.Count(len(subjects), "pod"), firstNames(subjects), denial(p), model.Of(n, now.of, "connection"), judgedThen(ignoring, subjects, p))
		results = append(results, preflight.Result{Check: checkUnsupported, Status: preflight.Warn, Seen: text})
	}
	return firstResults(results), nil
}

// podsOf are the pods of a node that a policy selects.
func podsOf(objects *store.Store, node string, p *model.Policy) (pods []*model.Pod) {
	objects.Read(func(v *store.View) {
		for _, pod := range v.Pods() {
			if pod.Node == node && !pod.HostNetwork && !pod.Finished && p.Subject.Matches(policy.Labels(v, pod)) {
				pods = append(pods, pod)
			}
		}
	})
	return pods
}

func firstNames(pods []*model.Pod) string {
	const most = 3
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name.String())
	}
	return model.FirstFew(names, most)
}

// denial says what a refused policy does to what it selects.
func denial(p *model.Policy) string {
	what := strings.Join(directions(p), " and ")
	switch p.StandIn() {
	case model.InForceIsolate:
		return "isolates them in " + what + ", so that only other policies allow anything"
	case model.InForceIsolateRest:
		return "isolates them in " + what + ", and allows what could be read of its rules"
	}
	return "denies them all " + what
}

func directions(p *model.Policy) (names []string) {
	if p.Ingress {
		names = append(names, "ingress")
	}
	if p.Egress {
		names = append(names, "egress")
	}
	return names
}

// judgedThen says what judges pods in the directions of a policy when that is ignored.
func judgedThen(now *state.Policy, pods []*model.Pod, p *model.Policy) string {
	open, others := 0, map[model.PolicyKey]struct{}{}
	for _, pod := range pods {
		judged := false
		for _, a := range pod.IPs {
			w := now.Workloads[a.Unmap()]
			if w == nil {
				continue
			}
			var rules []*state.Rules
			if p.Ingress {
				rules = append(rules, now.Rules[w.Ingress])
			}
			if p.Egress {
				rules = append(rules, now.Rules[w.Egress])
			}
			for _, r := range rules {
				judged = judged || r != nil
				for _, key := range r.Declared() {
					others[key] = struct{}{}
				}
			}
		}
		if !judged {
			open++
		}
	}
	var parts []string
	if open > 0 {
		parts = append(parts, fmt.Sprintf("leaves %s without any policy in %s, so that everything passes there", model.Count(open, "pod"), strings.Join(directions(p), " and ")))
	}
	if len(others) > 0 {
		parts = append(parts, "leaves the decision to "+model.Join(slices.SortedFunc(maps.Keys(others), model.PolicyKey.Compare), ", "))
	}
	return strings.Join(parts, ", and ")
}
