package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/preflight"
)

func newPreflightCommand() *cobra.Command {
	var (
		socket string
		cidrs  []string
		output string
	)
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this node can carry services, and say what to do where it can't",
		Long: `Check whether this node can carry services: kernel, privileges, routes,
forwarding, connection tracking, and other programs' rules that would drop
our traffic. Exits with 1 if a check fails; warnings do not count.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := preflight.Options{Socket: socket}
			for _, s := range cidrs {
				p, err := netip.ParsePrefix(s)
				if err != nil {
					return fmt.Errorf("parse --service-cidr: %w", err)
				}
				o.ServiceCIDRs = append(o.ServiceCIDRs, p)
			}
			results := preflight.Check(preflight.Gather(cmd.Context(), o))
			if err := printPreflight(cmd, output, results); err != nil {
				return err
			}
			if preflight.Failed(results) {
				return errors.New("this node cannot carry services yet: see the checks that say fail")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&socket, "socket", agent.DefaultSocket, "where the agent is reached, or would be")
	cmd.Flags().StringSliceVar(&cidrs, "service-cidr", nil, "the cluster's service addresses, one or two CIDRs (default: the families that the node has addresses of)")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml instead of a table")
	return cmd
}

func printPreflight(cmd *cobra.Command, output string, results []preflight.Result) error {
	var b []byte
	var err error
	switch output {
	case "":
		return preflight.Print(cmd.OutOrStdout(), results)
	case "json":
		b, err = json.MarshalIndent(results, "", "  ")
		b = append(b, '\n')
	case "yaml":
		b, err = yaml.Marshal(results)
	default:
		return fmt.Errorf("-o %s: choose json or yaml", output)
	}
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	_, err = cmd.OutOrStdout().Write(b)
	return err
}
