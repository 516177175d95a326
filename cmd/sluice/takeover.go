package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/agent/nslock"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/services/takeover"
)

// kubeProxy is the only program from which a node is taken over, or to which it is given back.
const kubeProxy = "kube-proxy"

func newTakeoverCommand() *cobra.Command {
	var from, to string
	var o takeover.Options
	cmd := &cobra.Command{
		Use:   "takeover (--from kube-proxy | --to kube-proxy)",
		Short: "Take this node's services over from kube-proxy, or give them back, without a dropped connection",
		Long: `Take this node's services over from kube-proxy, or give them back, without a
dropped connection.

--from kube-proxy: heed 'sluice preflight', and start the agent beside kube-proxy first. Then this does, in this order:
` + takeover.FromSteps() + `
--to kube-proxy: start kube-proxy, then stop the agent; what the agent has programmed works on. Then this does:
` + takeover.ToSteps() + `
Connections go on all the time. Run again after an interruption, it goes on where it
was. The exit status is 0 only if everything is done.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (from == kubeProxy) == (to == kubeProxy) || from+to != kubeProxy {
				return cli.Usage(errors.New("say --from kube-proxy, or --to kube-proxy"))
			}
			return runTakeover(cmd, o, from == kubeProxy)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&from, "from", "", "take over from this `program`: kube-proxy")
	fl.StringVar(&to, "to", "", "give back to this `program`: kube-proxy")
	fl.StringVar(&o.Node, "node", "", "name of this node's Node object (default: the host's name), used in suggested commands")
	fl.BoolVar(&o.DryRun, "dry-run", false, "only say what would be done")
	fl.BoolVar(&o.Force, "force", false, "continue even if one program serves what the other does not")
	fl.Var((*prefixes)(&o.GiveUp), "give-up", "`CIDRs` of this node's addresses on which kube-proxy's node ports may stop working, such as 127.0.0.0/8")
	fl.DurationVar(&o.Wait, "wait", 0, "how long to wait until a program has stopped or started, and until the agent has programmed everything")
	fl.DurationVar(&o.Drain, "drain-timeout", 10*time.Minute, "how long to wait until the connections that IPVS carries have ended")
	socketFlag(cmd, &o.Socket)
	return cmd
}

func runTakeover(cmd *cobra.Command, o takeover.Options, from bool) error {
	if o.Node == "" {
		name, err := hostName("--node")
		if err != nil {
			return err
		}
		o.Node = name
	}
	if agent.Elsewhere(o.Socket) != 0 {
		return fmt.Errorf("the agent on %s works in another network namespace: name the socket of this one's with --socket", o.Socket)
	}
	kernel := programmed{&modeFlags{record: sysctl.RecordPath(o.Socket)}}
	o.Kernel, o.Out = kernel, cmd.OutOrStdout()
	o.Sync = func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // a healthy agent takes no longer
		defer cancel()
		return agent.NewClient(o.Socket).Sync(ctx)
	}
	o.Minor = func(err error) bool {
		_, only := errors.AsType[*agent.FaultError](err)
		return only
	}
	o.Services = func(ctx context.Context) (map[string]bool, error) {
		names := map[string]bool{}
		all, err := agent.NewClient(o.Socket).Services(ctx)
		for _, s := range all {
			names[s.Namespace+"/"+s.Name] = true
		}
		return names, err
	}
	if from {
		return privilege(takeover.From(cmd.Context(), o))
	}
	o.Locked = nslock.Held
	o.Purge = func(ctx context.Context) error {
		if err := kernel.purge(ctx); err != nil {
			return err
		}
		return errors.Join(tellSysctls(cmd, o.Socket), removeSocket(o.Out, o.Socket))
	}
	return privilege(takeover.To(cmd.Context(), o))
}

// tellSysctls lists the kernel parameters that the agent has set. They are not restored here:
// kube-proxy works with these values, and connections may depend on them (forwarding, the size of
// the connection table).
func tellSysctls(cmd *cobra.Command, socket string) error {
	changed, err := sysctl.List(sysctl.RecordPath(socket))
	for _, c := range changed {
		_, _ = fmt.Fprintf(cmd.OutOrStdout(), "note    kernel parameter %s stays %s, as kube-proxy needs it (it was %s): 'sluice cleanup' restores it\n", c.Key, c.Now, c.Was)
	}
	return err
}
