package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/model"
)

func newPoliciesCommand() *cobra.Command {
	var socket, format string
	cmd := &cobra.Command{
		Use:   "policies",
		Short: "List this node's policies in the order in which packets meet them",
		Long: `List this node's policies in the order in which packets meet them.

PODS and HOSTS count the pods and host endpoints of this node that a policy selects. ALLOWED and
DENIED count the connections that it has decided here. A policy that selects nothing here is not
programmed. NOTE says what is wrong with a policy, and what is in force meanwhile: the policy denies
all that it selects, or its last good version is in force, or nothing of it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := agent.NewClient(socket)
			policies, err := client.Policies(cmd.Context())
			if err != nil {
				return err
			}
			s, err := client.Status(cmd.Context())
			if err != nil {
				return err
			}
			if s.Kept > 0 {
				_ = printf(cmd.ErrOrStderr(), "warning: %s\n", agent.Contradicts(true, s.Kept, s.Source.Lacking))
			}
			return cli.Print(cmd.OutOrStdout(), format, policies, func(w io.Writer) { policiesTable(w, policies) })
		},
	}
	socketFlag(cmd, &socket)
	cli.OutputFlag(cmd, &format)
	return cmd
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
