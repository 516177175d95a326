package main

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/link"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/internal/takeover"
)

var errNotReady = errors.New("this node cannot carry services and policy yet: see the failed checks")

func newPreflightCommand() *cobra.Command {
	var socket, format string
	var cidrs prefixes
	var policy bool
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this node can carry services and policy, and say how to fix what is missing",
		Long: `Check whether this node can carry services and policy: kernel, privileges, routes,
forwarding, connection tracking, bridges, rules of other programs that would drop our
traffic, programs that do part of our work (kube-proxy, Calico, Cilium, kube-router),
ports, service addresses that belong to a node, and memory limits.

The exit status is 1 if a check fails. Warnings do not count.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			facts := preflight.Gather(cmd.Context(), preflight.Options{Socket: socket, ServiceCIDRs: cidrs, Policy: policy,
				Requirements: serviceRequirements, PolicyRequirements: policyRequirements, Optional: optionalRequirements,
				Driver:  func(ctx context.Context) (name, lacks string, err error) { return probeDriver(ctx, policy) },
				Refused: func(ctx context.Context) ([]string, error) { return refusedAddresses(ctx, socket) }})
			results := preflight.Check(facts)
			err := cli.Print(cmd.OutOrStdout(), format, results, func(w io.Writer) { preflight.Print(w, results) })
			if err == nil && preflight.Failed(results) {
				err = errNotReady
			}
			return err
		},
	}
	socketFlag(cmd, &socket)
	cli.OutputFlag(cmd, &format)
	cmd.Flags().BoolVar(&policy, "policy", true, "check for an agent that enforces network policy, too")
	cmd.Flags().Var(&cidrs, "service-cidr", "service addresses, one or two CIDRs (default: the address families that the node uses)")
	return cmd
}

func probeDriver(ctx context.Context, policy bool) (name, lacks string, err error) {
	d, err := openDriver(driver.Options{Policy: policy})
	if err != nil {
		return "", "", err
	}
	can, asked := d.Capabilities(), driver.Capability(driver.All)
	if !policy {
		asked &^= driver.Policy | driver.HostPolicy | driver.UntrackedPolicy
	}
	return can.Name, (asked &^ can.Can).String(), errors.Join(d.Probe(ctx), d.Close())
}

// refusedAddresses names what the agent refuses to services. If there is no agent, it names what
// kube-proxy serves and an agent without further flags would not.
func refusedAddresses(ctx context.Context, socket string) (refused []string, err error) {
	if agent.Alive(socket) {
		status, err := agent.NewClient(socket).Status(ctx)
		for _, issue := range status.Issues {
			if issue.Refused {
				refused = append(refused, issue.String())
			}
		}
		return refused, err
	}
	own, err := link.Here.HostAddresses()
	if err != nil {
		return nil, err
	}
	claims, err := takeover.Served(ctx)
	for _, c := range claims {
		switch {
		case c.NodePort() && defaultReserved().has(c.Key.Protocol, c.Key.Port):
			refused = append(refused, "kube-proxy serves "+c.String()+", which is one of the agent's --reserved-ports")
		case slices.ContainsFunc(own, func(p netip.Prefix) bool { return !p.IsSingleIP() && p.Addr() == c.Key.Addr }):
			refused = append(refused, "kube-proxy serves "+c.String()+", which is this node's own address")
		}
	}
	return refused, err
}
