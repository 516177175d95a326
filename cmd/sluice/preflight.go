package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/preflight"
)

var errNotReady = errors.New("this node cannot carry services and policy yet: see the checks that say fail")

func newPreflightCommand() *cobra.Command {
	var socket, format string
	var cidrs prefixes
	var policy bool
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this node can carry services and policy, and say what to do where it can't",
		Long: `Check whether this node can carry services and policy: kernel, privileges, routes,
forwarding, connection tracking, bridges, other programs' rules that would drop our
traffic, programs that do part of our work (kube-proxy, Calico, Cilium, kube-router),
ports, and memory limits. Exits with 1 if a check fails; warnings do not count.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(format); err != nil {
				return err
			}
			facts := preflight.Gather(cmd.Context(), preflight.Options{Socket: socket, ServiceCIDRs: cidrs, Policy: policy,
				Driver: func(ctx context.Context) error { return probeDriver(ctx, policy) }})
			results := preflight.Check(facts)
			err := print(cmd.OutOrStdout(), format, results, func(w io.Writer) { preflight.Print(w, results) })
			if err == nil && preflight.Failed(results) {
				err = errNotReady
			}
			return err
		},
	}
	socketFlag(cmd, &socket)
	outputFlag(cmd, &format)
	cmd.Flags().BoolVar(&policy, "policy", true, "the agent is to carry out network policy, too")
	cmd.Flags().Var(&cidrs, "service-cidr", "the services' addresses, one or two CIDRs (default: the address families that the node uses)")
	return cmd
}

func probeDriver(ctx context.Context, policy bool) error {
	d, err := openDriver(nftables.Options{Policy: policy})
	if err != nil {
		return err
	}
	return errors.Join(d.Probe(ctx), d.Close())
}
