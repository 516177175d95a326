package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/question"
)

// Exit statuses of `sluice why` for answers other than yes. The answer has been printed by then.
const (
	statusDenied    = cli.Status(3)
	statusElsewhere = cli.Status(4)
)

func newWhyCommand() *cobra.Command {
	var socket, format string
	var family int
	cmd := &cobra.Command{
		Use:   "why FROM TO:PORT[/PROTOCOL]",
		Short: "Say whether a connection passes this node, and what decides",
		Long: `Say whether a connection passes this node, and what decides. If nothing allows it, say which rule
is missing. The answer follows the connection through service translation, the policies of both
ends, and the node's own firewall.

FROM and TO are each a pod (NAMESPACE/NAME, or NAME in the namespace default), a service
(svc/NAMESPACE/NAME), a node (node/NAME) or an address (IPv6 in brackets). A name without a prefix
is looked up as a pod, then as a service, then as a node. A service as FROM stands for the pods that
it selects. PORT is a number, or the name that the pod or service gives it. PROTOCOL is tcp (the
default), udp or sctp; for ICMP write TO/icmp.

The answer is about this node. If another node judges one of the ends too, a note names it. If this
node judges neither end, the answer names the nodes to ask. The answer is about new connections, and
about the state that is wanted now: a warning says where the kernel may differ.

The exit status is 0 if the connection is allowed, 3 if it is denied (even if only to some backends,
or in one address family), 4 if another node judges it, and 1 or 2 if there is no answer.`,
		Example: `  sluice why shop/web-7d4b9 svc/shop/db:5432
  sluice why 198.51.100.7 node/node-a:30080
  sluice why shop/web-7d4b9 kube-system/coredns-x2v5k:53/udp
  sluice why shop/web-7d4b9 '[fd00:1::5]/icmp'`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if family != 0 && family != 4 && family != 6 {
				return cli.Usage(fmt.Errorf("--family %d: choose 4 or 6", family))
			}
			q, err := question.Parse(args[0], args[1])
			if err != nil {
				return cli.Usage(err)
			}
			q.Family = family
			e, err := agent.NewClient(socket).Explain(cmd.Context(), q)
			if err != nil {
				return err
			}
			if err := cli.Print(cmd.OutOrStdout(), format, e, func(w io.Writer) { explanation(w, e) }); err != nil {
				return err
			}
			switch {
			case e.Denied():
				return statusDenied
			case len(e.Elsewhere) > 0:
				return statusElsewhere
			}
			return nil
		},
	}
	socketFlag(cmd, &socket)
	cli.OutputFlag(cmd, &format)
	cmd.Flags().IntVar(&family, "family", 0, "4 or 6: only this address family (default: all that both ends have)")
	return cmd
}

// explanation writes an explanation for people.
func explanation(w io.Writer, e agent.Explanation) {
	for i, answer := range e.Answers {
		if i > 0 {
			_, _ = fmt.Fprintln(w)
		}
		_, _ = fmt.Fprint(w, model.PrintableLines(answer.String()))
	}
	for _, text := range e.Warnings {
		_ = printf(w, "warning: %s\n", text)
	}
	for _, o := range e.Obstacles {
		_ = printf(w, "warning: another program's rules may still drop it: %s\n", o.Seen)
		if o.Do != "" {
			_ = printf(w, "  > %s\n", o.Do)
		}
	}
}
