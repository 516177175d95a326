package main

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/model"
)

const fabricHelp = `Show how this node reaches the pods of others: the pools, the tunnels, each node's pod CIDRs (and
Calico's blocks) with the way there, and what is wrong with any of them.

MTU is the largest packet that a pod can send that way. HEARD is how long ago the node last answered
an ICMP echo by that way, through the tunnel if there is one; "never": it has not so far. "-" as
MODE: those pods are not reached, and the reason is below.`

func newFabricCommand() *cobra.Command {
	return newListCommand("fabric", "Show how this node reaches the pods of others", fabricHelp,
		func(cmd *cobra.Command, client *agent.Client) (agent.FabricReport, error) {
			return client.Fabric(cmd.Context())
		}, fabricTable)
}

func fabricTable(w io.Writer, r agent.FabricReport) {
	for _, u := range r.Underlay {
		_ = printf(w, "%s sends from %s on %s, MTU %d\n", r.Node, u.Prefix, u.Device, u.MTU)
	}
	_, _ = fmt.Fprintln(w, "\nPOOL\tCIDR\tMODE\tNAT\tBLOCKS")
	for _, p := range r.Pools {
		_ = printf(w, "%s\t%s\t%s\t%s\t%d\n", p.Name, p.CIDR, p.Mode, map[bool]string{true: "yes", false: "no"}[p.NAT], p.Blocks)
	}
	if len(r.Tunnels) > 0 {
		_, _ = fmt.Fprintln(w, "\nTUNNEL\tMODE\tADDRESS\tFROM\tMTU\tNODES")
	}
	for _, t := range r.Tunnels {
		_ = printf(w, "%s\t%s\t%s\t%s\t%d\t%d\n", t.Device, t.Kind, t.Address, t.Local, t.MTU, t.Nodes)
	}
	_, _ = fmt.Fprintln(w, "\nNODE\tPODS\tMODE\tBY\tDEVICE\tMTU\tHEARD")
	for _, b := range r.Blocks {
		mtu := "-"
		if b.MTU > 0 {
			mtu = fmt.Sprint(b.MTU)
		}
		_ = printf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", b.Node, b.CIDR, cmp.Or(b.Mode, "-"), cmp.Or(b.Via, "-"), cmp.Or(b.Device, "-"), mtu, heardText(b.Heard))
	}
	if r.Error != "" {
		_ = printf(w, "\nPROBLEM: %s\n", agent.FabricProblem(r.Error))
	}
	if r.Note != "" {
		_ = printf(w, "\nnote: %s\n", r.Note)
	}
	if len(r.Issues) > 0 {
		_ = printf(w, "\n%s:\n", model.Count(len(r.Issues), "fault"))
	}
	for _, i := range model.IssueLines(r.Issues) {
		_ = printf(w, "%s\n", i)
	}
}

func heardText(h *model.Heard) string {
	switch {
	case h == nil:
		return "-"
	case h.Last.IsZero():
		return "never"
	}
	return time.Since(h.Last).Round(time.Second).String() + " ago"
}
