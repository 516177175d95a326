package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/lint"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/internal/source/kube"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/internal/upkeep"
)

// The checks of policies, in the order of the table.
const (
	checkPolicies    = "policies"
	checkNode        = "node"
	checkRefused     = "refused"
	checkUnsupported = "unsupported"
	checkDriver      = "driver"
	checkKernel      = "kernel"
	checkConnections = "connections"
	checkNoEffect    = "no effect"
)

// mostResults is how many results of one check are shown.
const mostResults = 40

// preflightPolicies says what would become of policies, and of this node by them, were they
// enforced now. It changes nothing, and needs no agent.
func preflightPolicies(ctx context.Context, node *nodeFlags) ([]preflight.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	node.compiler.Policy = true
	config, err := node.config()
	if err != nil {
		return nil, err
	}
	c, objects, read, err := compileOnce(ctx, node, config)
	if err != nil {
		return nil, err
	}
	issues := append(read.Issues, c.Issues()...)
	if node.kubeFlags.named() {
		unread, err := kube.UnreadPolicies(ctx, node.kubeFlags.api(true), slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		issues = append(issues, unread...)
	}
	want := c.State()

	results := []preflight.Result{knownPolicies(c, want.Policy)}
	for _, i := range issues {
		if i.Object == (model.Ref{Kind: model.NodeKind, Name: model.Name{Name: config.Node}}) {
			results = append(results, preflight.Result{Check: checkNode, Status: preflight.Fail, Seen: i.String()})
		}
	}
	results = append(results, ofPolicies(checkRefused, preflight.Fail, issues, "every policy is taken as it is written")...)
	now := findForbidden(ctx, want.Policy)
	choices, err := unsupportedPolicies(ctx, node, config, objects, want.Policy, now)
	if err != nil {
		return nil, err
	}
	results = append(results, choices...)
	results = append(results, tryPolicies(ctx, node, want)...)
	results = append(results, now.results(objects)...)
	if len(read.Unread) > 0 {
		return append(results, preflight.Result{Check: checkNoEffect, Status: preflight.Warn, Seen: "not judged, as not all objects could be read"}), nil
	}
	var hints []model.Issue
	objects.Read(func(v *store.View) { hints = lint.Hints(v, true) })
	return append(results, ofPolicies(checkNoEffect, preflight.Warn, hints, "every policy selects something")...), nil
}

// knownPolicies counts what the policies are about.
func knownPolicies(c *compile.Compiler, p *state.Policy) preflight.Result {
	var s agent.PolicyStatus
	s.CountPods(p)
	r := preflight.Result{Check: checkPolicies, Status: preflight.OK, Seen: fmt.Sprintf("%s known; they apply to %s of this node",
		none(len(c.Policy.Views())), model.Of(s.Selected, s.Local, "pod"))}
	if n := len(p.Hosts); n > 0 {
		r.Seen += ", and to " + model.Count(n, "host endpoint") + " of it"
	}
	if s.Local == 0 {
		r.Status, r.Do = preflight.Warn, "if this node has pods, name its Node object with --node: without pods nothing is said about connections"
	}
	return r
}

// ofPolicies makes results of issues, except for those that are about services alone.
func ofPolicies(check string, s preflight.Status, issues []model.Issue, none string) (results []preflight.Result) {
	others := []model.Kind{model.ServiceKind, model.EndpointSliceKind, model.NodeKind}
	for _, i := range issues {
		if !slices.Contains(others, i.Object.Kind) {
			results = append(results, preflight.Result{Check: check, Status: s, Seen: i.String()})
		}
	}
	if len(results) == 0 {
		return []preflight.Result{{Check: check, Status: preflight.OK, Seen: none}}
	}
	return firstResults(results)
}

// firstResults leaves out what is beyond mostResults, and counts it.
func firstResults(results []preflight.Result) []preflight.Result {
	more := len(results) - mostResults
	if more <= 0 {
		return results
	}
	last := results[0]
	last.Seen, last.Do = fmt.Sprintf("and %d more", more), ""
	return append(results[:mostResults:mostResults], last)
}

// tryPolicies programs the policies in a network namespace of its own, for what the driver lacks
// and what the kernel refuses.
func tryPolicies(ctx context.Context, node *nodeFlags, want *state.State) []preflight.Result {
	var lacks, refused []model.Issue
	elements := 0
	err := netns.Apart(func() error {
		mode, _, err := node.choose(ctx)
		if err != nil {
			return err
		}
		d, err := node.openDriver(mode, driver.Options{Log: slog.New(slog.DiscardHandler), Policy: true})
		if err != nil {
			return err
		}
		defer func() { _ = d.Close() }()
		lacks = d.Capabilities().Issues(want)
		plan, err := d.Adopt(ctx, want, driver.Keep{})
		if err != nil {
			return err
		}
		elements = plan.Len()
		if err := plan.Apply(ctx); err != nil {
			return err
		}
		refused = agent.Refusals(d.SetAside())
		return nil
	})
	switch {
	case errors.Is(err, netns.ErrApart):
		return []preflight.Result{{Check: checkKernel, Status: preflight.Warn, Seen: "cannot tell whether it takes them: " + err.Error(), Do: "run this as root on the node"}}
	case err != nil:
		return []preflight.Result{{Check: checkKernel, Status: preflight.Fail, Seen: "the policies could not be tried: " + privilege(err).Error()}}
	}
	results := ofPolicies(checkDriver, preflight.Fail, lacks, "it can carry out all of them")
	return append(results, ofPolicies(checkKernel, preflight.Fail, refused, "it takes all of them: "+model.Count(elements, "operation")+", tried in a network namespace apart")...)
}

// connections are those of the node that policies would deny.
type connections struct {
	forbidden []upkeep.Forbidden
	of        int // that there are
	err       error
}

func findForbidden(ctx context.Context, p *state.Policy) (c connections) {
	c.forbidden, c.of, c.err = upkeep.FindForbidden(ctx, p)
	return c
}

// results says which connections would be denied, most first.
func (c connections) results(objects *store.Store) []preflight.Result {
	if c.err != nil {
		return []preflight.Result{{Check: checkConnections, Status: preflight.Warn, Seen: "cannot tell which would be denied: " + privilege(c.err).Error()}}
	}
	name := func(a netip.Addr) string {
		if pod := objects.PodByAddr(a); pod != nil {
			return pod.Name.String()
		}
		return a.String()
	}
	counts := map[string]int{}
	for _, f := range c.forbidden {
		to := name(f.Destination)
		if f.DestinationPort != 0 {
			to = net.JoinHostPort(to, strconv.Itoa(int(f.DestinationPort)))
		}
		counts[fmt.Sprintf("%s -> %s, %s: %s", name(f.Source), to, f.ProtocolName(), f.By.Reason())]++
	}
	if len(counts) == 0 {
		return []preflight.Result{{Check: checkConnections, Status: preflight.OK, Seen: "none would be denied of the " + strconv.Itoa(c.of) + " that are open or ended lately"}}
	}
	var results []preflight.Result
	mostFirst := func(a, b string) int { return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b)) }
	for _, text := range slices.SortedFunc(maps.Keys(counts), mostFirst) {
		results = append(results, preflight.Result{Check: checkConnections, Status: preflight.Warn, Seen: fmt.Sprintf("%d of %d would be denied: %s", counts[text], c.of, text)})
	}
	return firstResults(results)
}
