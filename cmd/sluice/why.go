package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/question"
	"sluice.dev/sluice/internal/policy/verdict"
)

// Exit statuses of `sluice why` for answers other than yes. The answer has been printed by then.
const (
	statusDenied  = cli.Status(cli.ExitFound)
	statusUnknown = cli.Status(cli.ExitUnknown)
)

func newWhyCommand() *cobra.Command {
	var socket, format, via string
	var family int
	var suggest, all bool
	cmd := &cobra.Command{
		Use:   "why FROM TO:PORT[/PROTOCOL]",
		Short: "Say whether a connection passes, and what decides",
		Long: `Say whether a connection passes, and what decides. If nothing allows it, say which rule is missing,
and which rules come closest. The answer follows the connection over all nodes that it passes:
through service translation to each backend, and the policies of both ends and of the nodes' host
endpoints, and on this node through the rules of other programs (nftables, iptables), as do the
first packet and the answer to it. Every node gives the same answer, except for those rules: what they
do on other nodes is known there.

FROM and TO are each a pod (NAMESPACE/NAME, or NAME in the namespace default), a service
(svc/NAMESPACE/NAME), a node (node/NAME) or an address (IPv6 in brackets). A name without a prefix
is looked up as a pod, then as a service, then as a node. A service as FROM stands for the pods that
it selects. PORT is a number, or the name that the pod or service gives it; without a port,
svc/NAMESPACE/NAME means all its ports. PROTOCOL is tcp (the default), udp or sctp; for ICMP write
TO/icmp.

A client inside the cluster reaches a service by its cluster IPs, one outside by its external
addresses. A client outside comes in by the node whose address it uses. To a service with
externalTrafficPolicy Local it comes in by each node with an endpoint, to others by any node; --via
names one.

The first lines are the answer, with what denies. Connections, clients, nodes and backends that are
alike except for names and addresses are told of once, with their number, in at most 25 lines; --all
tells of each. Policies on another node than the one by which a client comes in may see that node in
place of the client; where they would decide otherwise if they saw it, a warning below the first line
says so. loadBalancerSourceRanges always see the client.

The answer is about new connections, and about the state that is wanted now: a warning says where
the kernel may differ. Other nodes are taken to run Sluice with the flags of this one. What they
alone know makes the answer unknown: deny lists and address lists from files of their own, and by
which interface something comes in where a host endpoint covers only one. Of packets that are dropped
though their connection is allowed, as stray ones of TCP are, 'sluice drops' says the reason.

With --suggest, the output is YAML: the smallest policies that would allow what policy denies, with
the explanation as comments. They select pods by all labels that are not of a single pod or roll-out,
so that pods with the same labels are meant too. The exit status is 0 if all of it would pass with them.

Up to four pods of this node, senders and those to which TCP may go, are asked whether they answer, by
a connection from the node that is closed at once.

The exit status is 0 if the connection is allowed, 3 if it is denied (even if only to some backends,
or in one address family), 4 if that is unknown, or a warning below the first line says how it may be
lost, and 1 or 2 if there is no answer.`,
		Example: `  sluice why shop/web-7d4b9 svc/shop/db:5432
  sluice why 198.51.100.7 node/node-a:30080
  sluice why 198.51.100.7 svc/shop/web --via node-b
  sluice why shop/web-7d4b9 kube-system/coredns-x2v5k:53/udp
  sluice why shop/web-7d4b9 '[fd00:1::5]/icmp'
  sluice why shop/web-7d4b9 shop/db-0:5432 --suggest | kubectl apply -f -`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if family != 0 && family != 4 && family != 6 {
				return cli.Usage(fmt.Errorf("--family %d: choose 4 or 6", family))
			}
			q, err := question.Parse(args[0], args[1])
			if err != nil {
				return cli.Usage(err)
			}
			q.Family, q.Via, q.Suggest = family, via, suggest
			e, err := agentAt(socket, cmd.ErrOrStderr()).Explain(cmd.Context(), q)
			if err != nil {
				return err
			}
			if err := cli.Print(cmd.OutOrStdout(), format, e, func(w io.Writer) {
				if suggest {
					suggestions(w, e, all)
				} else {
					explanation(w, e, all)
				}
			}); err != nil {
				return err
			}
			if suggest && e.Outcome == verdict.Denied && len(e.NoRemedy) == 0 {
				return nil
			}
			switch {
			case e.Outcome == verdict.Denied:
				return statusDenied
			case e.Outcome == verdict.Unknown, len(e.OnTheWay) > 0:
				return statusUnknown
			}
			return nil
		},
	}
	socketFlag(cmd, &socket)
	cli.OutputFlag(cmd, &format)
	cmd.Flags().IntVar(&family, "family", 0, "4 or 6: only this address family (default: all that both ends have)")
	cmd.Flags().BoolVar(&suggest, "suggest", false, "print the smallest policies that would allow it, to be applied with kubectl apply -f -")
	cmd.Flags().BoolVar(&all, "all", false, "show every connection and each way that it may go, also those that are alike")
	cmd.Flags().StringVar(&via, "via", "", "the node by which a client outside the cluster comes in")
	completeWhy(cmd)
	return cmd
}

// maxLines is how long an explanation is for people who do not ask for all of it.
const maxLines = 25

// explanation writes an explanation for people: all of it, or what fits in maxLines.
func explanation(w io.Writer, e agent.Explanation, all bool) {
	rest, way := besides(e, all), onTheWay(e, all)
	tell := func(text string, rest []string) {
		answer, hows, _ := strings.Cut(model.PrintableLines(text), "\n")
		if rest, allowed := strings.CutPrefix(answer, "allowed: "); allowed && len(way) > 0 {
			answer = "allowed, but see the warning: " + rest
		}
		_, _ = fmt.Fprint(w, answer, "\n", strings.Join(way, ""), hows, strings.Join(rest, ""))
	}
	if all {
		tell(verdict.TextOfAll(e.Connections), rest)
		return
	}
	const last = 1 // line, that something is folded
	some := rest[:min(len(rest), maxLines/2-len(way))]
	text, folded := verdict.Text(e.Connections, maxLines-len(some)-len(way)-last)
	tell(text, some)
	if folded || len(some) < len(rest) {
		ways := 0
		for _, a := range e.Connections {
			ways += len(a.Paths)
		}
		_ = printf(w, "folded: %s, %s; --all shows each\n", model.Count(len(e.Connections), "connection"), model.Count(ways, "way"))
	}
}

// onTheWay are the lines below the answer, of what is wrong with the way.
func onTheWay(e agent.Explanation, all bool) (lines []string) {
	most := 3
	if all {
		most = len(e.OnTheWay)
	}
	for _, text := range e.OnTheWay[:min(len(e.OnTheWay), most)] {
		lines = append(lines, model.Printable("  warning: "+text)+"\n")
	}
	if more := len(e.OnTheWay) - most; more > 0 {
		lines = append(lines, fmt.Sprintf("  warning: and %s: see 'sluice fabric'\n", model.Count(more, "more fault")))
	}
	return lines
}

// besides are the lines of an explanation about what is not of the connections themselves.
func besides(e agent.Explanation, all bool) (lines []string) {
	most := 3
	if all {
		most = len(e.Ask)
	}
	add := func(format string, args ...any) {
		lines = append(lines, model.Printable(fmt.Sprintf(format, args...))+"\n")
	}
	if len(e.Ask) > 0 {
		add("ask there: node %s", model.FirstFew(e.Ask, most))
	}
	for _, text := range e.Warnings {
		add("warning: %s", text)
	}
	for _, o := range e.Obstacles {
		add("warning: other rules: %s", o.Seen)
		if o.Do != "" {
			add("  > %s", o.Do)
		}
	}
	return lines
}

// suggestions writes the policies that would allow a connection, with the explanation as comments.
func suggestions(w io.Writer, e agent.Explanation, all bool) {
	var b strings.Builder
	explanation(&b, e, all)
	for _, text := range e.NoRemedy {
		_ = printf(&b, "no policy: %s\n", text)
	}
	for line := range strings.Lines(b.String()) {
		_, _ = fmt.Fprintf(w, "# %s", line)
	}
	for _, s := range e.Suggested {
		_, _ = fmt.Fprintf(w, "---\n%s", s.YAML)
	}
}
