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
	"sluice.dev/sluice/internal/model"
)

// dropOptions are how long to watch, and the output format.
type dropOptions struct {
	socket, format string
	count          int
	span           time.Duration
}

func newDropsCommand() *cobra.Command {
	var o dropOptions
	cmd := &cobra.Command{
		Use:   "drops",
		Short: "Show dropped packets as this node drops them, with the reason",
		Long: `Show dropped packets as this node drops them, one line each: the reason, the pods at both ends, and
the policy and rule that decide. Names and policies are those at the time of printing.

Packets that service translation drops are not shown: to an address of the service CIDR that no
service has, from outside a service's source ranges, or to a service whose Local traffic policy
finds no endpoint on this node.

The kernel logs up to 200 packets a second for each reason. The number of packets above that is
printed on standard error. While nobody watches, nothing is logged.`,
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
	fl.StringVarP(&o.format, "output", "o", "text", "text, or json with one object a line")
	fl.IntVar(&o.count, "count", 0, "end after this many drops (default: no limit)")
	fl.DurationVar(&o.span, "for", 0, "end after this time (default: no limit)")
	return cmd
}

// errEnough ends watching after the requested number of drops.
var errEnough = errors.New("enough")

// watchDrops prints drops until ctx ends or the requested number is reached.
func watchDrops(parent context.Context, o dropOptions, out, notes io.Writer) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	seen := 0
	var missed agent.Missed
	started := func() {
		_, _ = fmt.Fprintln(notes, "watching; Ctrl-C ends it")
		if o.span > 0 {
			time.AfterFunc(o.span, cancel)
		}
	}
	err := agentAt(o.socket, notes).Drops(ctx, started, func(r agent.DropReport) error {
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
		_, _ = fmt.Fprintf(notes, "%s not shown: %s above the rate at which the kernel logs, %s lost in transit\n", model.Count(int(n), "more drop"), none(int(missed.Limited)), none(int(missed.Lost)))
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
	nobody := model.Ref{}
	if d.From.Object != nobody && d.To.Object != nobody && d.From.Address.Is6() {
		protocol += " (IPv6)" // which the names do not show
	}
	return printf(w, "%s %-14s %s -> %s %s: %s\n", d.Time.Format("15:04:05.000"), d.Reason, d.From.Short(), d.To.Short(), protocol, d.Says)
}
