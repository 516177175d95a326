package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
)

func newStatusCommand() *cobra.Command {
	var check, ok bool
	cmd := newListCommand("status", "Show the agent's state", "",
		func(cmd *cobra.Command, client *agent.Client) (agent.Status, error) {
			s, err := client.Status(cmd.Context())
			ok = s.OK
			return s, err
		}, statusTable)
	show := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := show(cmd, args)
		if err == nil && check && !ok {
			err = cli.Status(cli.ExitFound)
		}
		return err
	}
	cmd.Flags().BoolVar(&check, "check", false, "exit with status 3 if there is a PROBLEM")
	return cmd
}

// statusTable writes the status for people, first whether all is well.
func statusTable(w io.Writer, s agent.Status) {
	row := func(name, format string, args ...any) {
		_ = printf(w, name+"\t"+format+"\n", args...)
	}
	if s.OK {
		row("state", "OK: the kernel has all that the sources hold")
	}
	for i, p := range s.Problems {
		row([]string{"state", ""}[min(i, 1)], "PROBLEM: %s", p)
	}
	for i, note := range s.Notes {
		row([]string{"note", ""}[min(i, 1)], "%s", note)
	}
	row("node", "%s", s.Node)
	row("agent", "%s, process %d, up %s", s.Version, s.PID, span(time.Duration(s.Uptime)))
	if s.Mode != "" {
		row("mode", "%s", s.Mode)
	}
	read := "read in full"
	if !s.Source.Synced {
		read = "not read in full yet"
	} else if len(s.Source.Lacking) > len(s.Source.Waiting) {
		read = "not all of it read"
	} else if len(s.Source.Waiting) > 0 {
		read += "; " + model.FirstFew(s.Source.Lacking, 3)
	}
	row("source", "%s %s, %s", s.Source.Name, s.Source.Where, read)
	row("objects", "%s", counts(s.Objects))
	if some := counts(s.Source.Skipped); some != "none" {
		row("passed over", "%s", some)
	}
	if f := s.Farms; f != nil {
		row("programmed", "%s, %s serving", model.Count(f.Farms, "farm"), model.Of(f.Serving, f.Backends, "backend"))
	} else {
		row("programmed", "%s, %s", model.Count(s.Frontends, "frontend"), model.Count(s.Backends, "backend"))
		policyRows(row, s.Policy)
	}
	if s.Policy != nil && s.Kept > 0 {
		row("", "but pods whose policies did not change since the start are still judged by what an earlier agent programmed: see PROBLEM")
	}
	if a := s.LastApply; a != nil {
		row("last change", "%s ago: %s in %s (%s)", span(time.Since(a.Time)), model.Count(a.Operations, "operation"), span(time.Duration(a.Took)), a.Path)
	} else {
		row("last change", "none yet")
	}
	for _, f := range s.Followers {
		fabricRow(row, f)
	}
	for i, a := range s.Accelerators {
		how := "on"
		if a.Off != "" {
			how = "off, which costs speed alone: " + a.Off
		} else if a.Note != "" {
			how = "on: " + a.Note
		}
		row([]string{"accelerated", ""}[min(i, 1)], "%s: %s", a.Name, how)
	}
	if s.BGP != nil {
		bgpRow(row, s.BGP)
	}
	for _, f := range s.Failures {
		row("failing", "since %s, %s: %s", f.Since.Format(time.DateTime), model.Count(f.Attempts, "attempt"), f.Error)
	}
	if s.Heals > 0 {
		row("healed", "%s", model.Count(s.Heals, "time"))
	}
	for i, address := range slices.Sorted(maps.Keys(s.Unserved)) {
		row([]string{"not served", ""}[min(i, 1)], "%s: trying until it can be: %s", address, s.Unserved[address])
	}
	if c := s.Conntrack; c != nil && c.Max > 0 {
		row("connections", "%d of %d tracked (%d %%)", c.Count, c.Max, c.Count*100/c.Max)
	}
	if r := s.Affinity; r != nil && r.IPv4+r.IPv6+r.Forgotten > 0 {
		row("affinity", "%s remembered of IPv4 and %s of IPv6, at most %d each; %s forgotten to make room", model.Count(r.IPv4, "client"), none(r.IPv6), r.Most, none(r.Forgotten))
	}
	for i, o := range s.Obstacles {
		row([]string{"other rules", ""}[min(i, 1)], "%s; 'sluice preflight' says what to do", o.Seen)
	}
	if len(s.Issues) == 0 {
		row("faults", "none")
	}
	for i, issue := range model.IssueLines(s.Issues) {
		row([]string{"faults", ""}[min(i, 1)], "%s", issue)
	}
}

// fabricRow writes how the ways to other nodes' pods are.
func fabricRow(row func(name, format string, args ...any), f reconcile.FollowerStatus) {
	switch {
	case f.Error != "":
		row("fabric", "tunnels and routes to other nodes are as they were: %s", f.Error)
	case f.InStep && f.Faults > 0:
		row("fabric", "tunnels and routes to other nodes are programmed, with %s: 'sluice fabric' has the ways", model.Count(f.Faults, "fault"))
	case f.InStep:
		row("fabric", "tunnels and routes to other nodes are as wanted")
	default:
		row("fabric", "tunnels and routes to other nodes are being changed")
	}
}

// bgpRow writes with how many BGP peers there are sessions.
func bgpRow(row func(name, format string, args ...any), s *agent.BGPStatus) {
	up := s.Peers - len(s.Down)
	switch {
	case s.Peers == 0:
		row("bgp", "no peers: no other node is in a mesh with it, and no BGPPeer selects it")
	case len(s.Down) == 0:
		row("bgp", "%s established", model.Count(up, "session"))
	default:
		row("bgp", "%s established; 'sluice bgp' has more", model.Of(up, s.Peers, "session"))
	}
	for i, why := range s.Down {
		if i == 3 {
			row("", "and %d more without a session", len(s.Down)-i)
			return
		}
		row("", "%s", why)
	}
}

// policyRows writes what policy does on the node.
func policyRows(row func(name, format string, args ...any), p *agent.PolicyStatus) {
	if p == nil {
		row("policy", "not carried out (--policy=false, or a mode without it)")
		return
	}
	if p.Policies == 0 {
		row("policy", "none known")
	} else {
		row("policy", "%d known; they apply to %s of this node, as %s of rules", p.Policies, model.Of(p.Selected, p.Local, "pod"), model.Count(p.Rules, "set"))
	}
	var addresses []string
	for _, of := range []struct {
		n, in      int
		what, whom string
	}{{p.Members, p.Sets, "set", "pods"}, {p.ListEntries, p.Lists, "list", "networks"}} {
		if of.in > 0 {
			addresses = append(addresses, fmt.Sprintf("%s in %s of %s", none(of.n), model.Count(of.in, of.what), of.whom))
		}
	}
	if len(addresses) > 0 {
		row("addresses", "%s", strings.Join(addresses, ", "))
	}
	if len(p.AddressLists) > 0 {
		row("address lists", "%s", listing(p.AddressLists))
	}
	if len(p.Bridged) > 0 {
		row("bridged", "%s", p.Bridge())
	}
	if len(p.Unrouted) > 0 {
		row("no route", "%s", p.NoRoute())
	}
	for i, refused := range p.Refused {
		row([]string{"refused", ""}[min(i, 1)], "%s: allows nothing to what it selects (see 'sluice policies')", refused)
	}
	for i, ignored := range p.Ignored {
		row([]string{"ignored", ""}[min(i, 1)], "%s: has no effect, as it cannot be carried out as it is written, and --unsupported=ignore-policy is given", ignored)
	}
}

// none returns "none" or "2".
func none(n int) string {
	if n == 0 {
		return "none"
	}
	return strconv.Itoa(n)
}

// counts returns "Pod 3, Service 2", leaving out zeros, or "none".
func counts(m map[string]int) string {
	some := maps.Clone(m)
	maps.DeleteFunc(some, func(_ string, n int) bool { return n == 0 })
	if len(some) == 0 {
		return "none"
	}
	return listing(some)
}

// listing returns "bad 0, worse 2".
func listing(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}
