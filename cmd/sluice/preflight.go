package main

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/preflight"
)

var errNotReady = errors.New("this node cannot carry services yet: see the checks that say fail")

func newPreflightCommand() *cobra.Command {
	var socket, format string
	var cidrs prefixes
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this node can carry services, and say what to do where it can't",
		Long: `Check whether this node can carry services: kernel, privileges, routes,
forwarding, connection tracking, and other programs' rules that would drop
our traffic. Exits with 1 if a check fails; warnings do not count.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(format); err != nil {
				return err
			}
			facts := preflight.Gather(cmd.Context(), preflight.Options{Socket: socket, ServiceCIDRs: cidrs, Driver: probeDriver})
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
	cmd.Flags().Var(&cidrs, "service-cidr", "the services' addresses, one or two CIDRs (default: the address families that the node uses)")
	return cmd
}

func probeDriver(ctx context.Context) error {
	d, err := openDriver(slog.Default())
	if err != nil {
		return err
	}
	return errors.Join(d.Probe(ctx), d.Close())
}
