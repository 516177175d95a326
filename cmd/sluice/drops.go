package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
)

// dropOptions say how long to look, and in which form.
type dropOptions struct {
	socket, format string
	count          int
	span           time.Duration
}

func newDropsCommand() *cobra.Command {
	var o dropOptions
	cmd := &cobra.Command{
		Use:   "drops",
		Short: "Show the packets that this node drops, as it drops them, and why",
		Long: `Show the packets that this node drops, as it drops them: a line each, with the
reason, the pods at both ends, and the policy and rule that decide. Names and policies are those of
the moment at which the line is printed. What services drop is not among them: packets for an address
of services that no service has, from outside a service's source ranges, for a Local traffic policy
without an endpoint on this node, and stray segments.

The kernel tells of 200 packets a second of each reason at the most; how many more there were
is said on the standard error. While nobody looks, nothing is logged.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.format != "text" && o.format != "json" {
				return cli.Usage(fmt.Errorf("-o %s: choose text or json", o.format))
			}
			if o.count < 0 || o.span < 0 {
				return cli.Usage(errors.New("--count and --for must not be negative"))
			}
			return watchDrops(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	socketFlag(cmd, &o.socket)
	fl := cmd.Flags()
	fl.StringVarP(&o.format, "output", "o", "text", "text, or json: an object a line")
	fl.IntVar(&o.count, "count", 0, "end after so many drops (default: go on)")
	fl.DurationVar(&o.span, "for", 0, "end after this long (default: go on)")
	return cmd
}

// errEnough ends watching once all that was asked for has been seen.
var errEnough = errors.New("enough")

// watchDrops prints drops until ctx ends, or enough are seen.
func watchDrops(parent context.Context, o dropOptions, out, notes io.Writer) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	seen := 0
	var missed agent.Missed
	started := func() {
		_, _ = fmt.Fprintln(notes, "watching; end with Ctrl-C")
		if o.span > 0 {
			time.AfterFunc(o.span, cancel)
		}
	}
	err := agent.NewClient(o.socket).Drops(ctx, started, func(r agent.DropReport) error {
		if r.Missed != nil {
			missed = *r.Missed
		}
		if r.Drop == nil {
			return nil
		}
		if err := printDrop(out, o.format, *r.Drop); err != nil {
			return err
		}
		if seen++; seen == o.count {
			return errEnough
		}
		return nil
	})
	if n := missed.Limited + missed.Lost; n > 0 {
		_, _ = fmt.Fprintf(notes, "%d more were not shown: %d beyond the rate at which the kernel tells, %d lost on the way\n", n, missed.Limited, missed.Lost)
	}
	if ctx.Err() != nil || errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func printDrop(w io.Writer, format string, d agent.Drop) error {
	if format == "json" {
		return json.NewEncoder(w).Encode(d)
	}
	protocol := d.Protocol
	if d.From.Name != "" && d.To.Name != "" && d.From.Address.Is6() {
		protocol += " (IPv6)" // which names do not tell
	}
	return printf(w, "%s %-14s %s -> %s %s: %s\n", d.Time.Format("15:04:05.000"), d.Reason, d.From, d.To, protocol, d.Says)
}
