package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/model"
)

const policiesHelp = `List this node's policies in the order in which packets meet them.

PODS and HOSTS count the pods and host endpoints of this node that a policy selects. ALLOWED and
DENIED count the packets that it has decided here since it was first programmed: the first packet of
each connection. A TCP connection that is allowed and answered counts once. What is denied counts
each time that its sender tries again, and UDP counts each packet until the first answer. A policy
that selects nothing here is not programmed. NOTE says what is wrong with a policy, and what is in force meanwhile: the policy denies
all that it selects, or its last good version is in force, or nothing of it.`

func newPoliciesCommand() *cobra.Command {
	return newListCommand("policies", "List this node's policies in the order in which packets meet them", policiesHelp, listPolicies, policiesTable)
}

func listPolicies(cmd *cobra.Command, client *agent.Client) ([]agent.PolicyReport, error) {
	policies, err := client.Policies(cmd.Context())
	if err != nil {
		return nil, err
	}
	s, err := client.Status(cmd.Context())
	if s.Kept > 0 {
		_ = printf(cmd.ErrOrStderr(), "warning: %s\n", agent.Contradicts(true, s.Kept, s.Source.Lacking))
	}
	return policies, err
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
		case p.Refused != "" && p.Kind == string(model.NetworkPolicy):
			notes = append([]string{"isolates what it selects, and allows nothing: " + p.Refused}, notes...)
		case p.Refused != "":
			notes = append([]string{"denies all that it selects: " + p.Refused}, notes...)
		}
		_ = printf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", tier, order, p.Kind, namespace, p.Name,
			p.Pods, p.HostEndpoints, count(p.Allowed), count(p.Denied), strings.Join(notes, "; "))
	}
}
