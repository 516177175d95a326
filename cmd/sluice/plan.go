package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/store"
)

func newPlanCommand() *cobra.Command {
	var (
		o       planOptions
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what would change in the kernel, without changing it",
		Long: `Show what would change in the kernel, without changing it.

With --manifests, --kubeconfig or --in-cluster, the command reads all objects once and compares
them with the kernel of this network namespace; this needs no agent. Without any of these flags,
it asks the agent what it would do now: nothing, unless something prevents it from doing so.
Give the flags of 'sluice run', as far as they are here, also --fabric: tunnels and routes are
then a part of the plan.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			var plan agent.Plan
			err := o.checkObjects()
			switch {
			case err == nil:
				plan, err = o.planObjects(ctx, cmd.ErrOrStderr())
			case errors.Is(err, errNoObjects):
				plan, err = agentAt(o.socket, cmd.ErrOrStderr()).Plan(ctx)
			}
			if err != nil {
				return err
			}
			return printPlan(cmd.OutOrStdout(), plan)
		},
	}
	o.register(cmd)
	o.fabric.register(cmd.Flags(), &o.compiler)
	cmd.Flags().BoolVar(&o.bgp, "bgp", false, "with --fabric: leave the routes that may be of BGP peers, which the agent alone knows")
	socketFlag(cmd, &o.socket)
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "give up after this long")
	return cmd
}

type planOptions struct {
	nodeFlags
	fabric fabricFlags
	bgp    bool
	socket string
}

// planObjects compares the declared objects with the kernel. It writes objects at fault to warn.
func (o *planOptions) planObjects(ctx context.Context, warn io.Writer) (agent.Plan, error) {
	if err := o.fabric.complete(&o.compiler); err != nil {
		return agent.Plan{}, err
	}
	config, err := o.config()
	if err != nil {
		return agent.Plan{}, err
	}
	key, err := withKey(&config, o.fabric.encrypt, o.socket, warn)
	if err != nil {
		return agent.Plan{}, err
	}
	c, _, read, err := compileOnce(ctx, &o.nodeFlags, config)
	if err != nil {
		return agent.Plan{}, err
	}
	for _, i := range append(read.Issues, c.Issues()...) {
		_ = printf(warn, "warning: %s\n", i)
	}
	mode, why, err := o.choose(ctx)
	if err != nil {
		return agent.Plan{}, err
	}
	if why != "" {
		_ = printf(warn, "mode %s: %s\n", mode.name, why)
	}
	d, err := o.openDriver(mode, o.options(slog.Default()))
	if err != nil {
		return agent.Plan{}, privilege(err)
	}
	defer func() { _ = d.Close() }()
	for _, i := range d.Capabilities().Issues(c.State()) {
		_ = printf(warn, "warning: %s\n", i)
	}
	if err := d.Probe(ctx); err != nil {
		return agent.Plan{}, privilege(fmt.Errorf("probe kernel: %w", err))
	}
	plan, err := reconcile.Adopt(ctx, d, c.State(), agent.Lacking(read), nil)
	if err != nil {
		return agent.Plan{}, privilege(err)
	}
	if kept := plan.Kept().Elements(); kept > 0 {
		_ = printf(warn, "warning: %s\n", agent.Keeping(kept, read.Lacking))
	}
	lacking := agent.Lacking(read)
	lacking.Routes = o.bgp
	ways, err := planFabric(ctx, c, key, lacking)
	if err != nil {
		return agent.Plan{}, privilege(err)
	}
	return agent.Plan{Operations: plan.Len() + ways.Operations, Text: plan.String() + ways.Text}, nil
}

// compileOnce reads all declared objects once, and compiles them for the node.
func compileOnce(ctx context.Context, node *nodeFlags, config compile.Config) (*compile.Compiler, *store.Store, source.Status, error) {
	if err := node.readable(); err != nil {
		return nil, nil, source.Status{}, err
	}
	objects := store.New()
	src := node.source(objects, slog.New(slog.DiscardHandler))
	read, err := readOnce(ctx, src)
	if err != nil {
		return nil, nil, read, err
	}
	c := compile.New(config)
	if api, ok := src.(source.Dialer); ok {
		c.SetAPIServers(api.Dialed())
	}
	if config.Policy {
		links, err := link.Here.Links()
		if err != nil {
			return nil, nil, read, err
		}
		c.SetLinks(links)
	}
	if config.Fabric {
		underlay, err := link.Here.Underlay()
		if err != nil {
			return nil, nil, read, err
		}
		c.SetUnderlay(underlay)
	}
	c.Update(objects, objects.Take())
	return c, objects, agent.Await(read, objects), nil
}

// readOnce lets the source deliver all that it holds, and returns the source's status.
func readOnce(ctx context.Context, src source.Source) (source.Status, error) {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- src.Run(ctx) }()
	err := src.Flush(ctx)
	status := src.Status()
	stop()
	return status, errors.Join(err, <-ended)
}

func printPlan(w io.Writer, p agent.Plan) error {
	if p.Operations == 0 {
		_, err := fmt.Fprintln(w, "nothing to do")
		return err
	}
	end := ""
	if n := len(p.Text); n > 0 && p.Text[n-1] != '\n' {
		end = "\n"
	}
	_, err := fmt.Fprintf(w, "%s%s%s\n", model.PrintableLines(p.Text), end, model.Count(p.Operations, "operation"))
	return err
}
