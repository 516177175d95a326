package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/question"
)

const policiesHelp = `List this node's policies in the order in which packets meet them.

With a name, list only the policies of that name. NAME alone is one without a namespace, or in the
namespace of -n, or default.

PODS and HOSTS count the pods and host endpoints of this node that a policy selects. A policy that
selects nothing here is not programmed.

ALLOWED and DENIED count the packets that it has decided here since it was first programmed: the
first packet of each connection. A TCP connection that is allowed and answered counts once. What is
denied counts each time that its sender tries again, and UDP counts each packet until the first
answer.

NOTE says what is wrong with a policy, and what is in force meanwhile: the policy denies all that it
selects, or its last good version is in force, or nothing of it.`

func newPoliciesCommand() *cobra.Command {
	var f nameFilter
	cmd := newListCommand("policies [[NAMESPACE/]NAME]", "List this node's policies in the order in which packets meet them", policiesHelp,
		func(cmd *cobra.Command, client *agent.Client) ([]agent.PolicyReport, error) {
			return listPolicies(cmd, client, f)
		}, policiesTable)
	f.addTo(cmd, completed(func(n agent.Names) []string { return n.Policies }))
	return cmd
}

func listPolicies(cmd *cobra.Command, client *agent.Client, f nameFilter) ([]agent.PolicyReport, error) {
	policies, err := client.Policies(cmd.Context())
	if err != nil {
		return nil, err
	}
	if arg := cmd.Flags().Arg(0); arg != "" {
		policies, err = policiesNamed(policies, f, arg)
	} else {
		policies = slices.DeleteFunc(policies, func(p agent.PolicyReport) bool { return !f.admits(p.Namespace, p.Name) })
	}
	if err != nil {
		return nil, err
	}
	s, err := client.Status(cmd.Context())
	if s.Kept > 0 {
		_ = printf(cmd.ErrOrStderr(), "warning: %s\n", agent.Contradicts(true, s.Kept, s.Source.Lacking))
	}
	return policies, err
}

// policiesNamed returns the policies that have a name: those of that namespace, or, where no
// namespace is given, also those that have none. If there is none, the error names similar ones.
func policiesNamed(policies []agent.PolicyReport, f nameFilter, arg string) (found []agent.PolicyReport, err error) {
	asked, err := f.one(arg)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range policies {
		name := model.Name{Namespace: p.Namespace, Name: p.Name}
		if name == asked || name.String() == arg && f.namespace == "" {
			found = append(found, p)
		}
		names = append(names, name.String())
	}
	if len(found) > 0 {
		return found, nil
	}
	return nil, question.Unknown("policy", arg, asked, names, "'sluice policies' lists those that there are")
}

func policiesTable(w io.Writer, policies []agent.PolicyReport) {
	if len(policies) == 0 {
		_, _ = fmt.Fprintln(w, "no policies")
		return
	}
	_, _ = fmt.Fprintln(w, "TIER\tORDER\tKIND\tNAMESPACE\tNAME\tPODS\tHOSTS\tALLOWED\tDENIED\tNOTE")
	count := func(n *uint64) string {
		if n == nil {
			return "-"
		}
		return strconv.FormatUint(*n, 10)
	}
	for _, p := range policies {
		tier, order, namespace := cmp.Or(p.Tier, "-"), "-", cmp.Or(p.Namespace, "-")
		if p.Order != nil {
			order = strconv.FormatFloat(*p.Order, 'g', -1, 64)
		}
		notes := p.Issues
		switch {
		case p.Refused != "" && p.Kind == model.NetworkPolicy:
			notes = append([]string{"isolates what it selects, and allows at most what could be read of its rules: " + p.Refused}, notes...)
		case p.Refused != "":
			notes = append([]string{"denies all that it selects: " + p.Refused}, notes...)
		}
		_ = printf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", tier, order, p.Kind, namespace, p.Name,
			p.Pods, p.HostEndpoints, count(p.Allowed), count(p.Denied), strings.Join(notes, "; "))
	}
}
