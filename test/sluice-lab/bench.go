package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/test/bench"
)

func newBenchCommand() *cobra.Command {
	o := bench.Options{Scale: bench.Full}
	cmd := &cobra.Command{
		Use:   "bench [EXPERIMENT...]",
		Short: "Measure what Sluice promises, beside other programs, on this machine",
		Long: "Measure what Sluice promises, beside other programs, on this machine. All traffic stays in\n" +
			"network namespaces that are removed at the end. Results are written as JSON, SVG\n" +
			"and a table, README.md. Without a name, all experiments run; \"policy\" and \"kube-proxy\"\n" +
			"stand for all that begin with them. Those of kube-proxy, modes and nodes, and soak, start a real Kubernetes API\n" +
			"server. They build it first, in a checkout of the sources, which takes some minutes, once.\n\n" + experimentList(),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return experimentNames(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.Binary, err = findSluice(o.Binary); err != nil {
				return err
			}
			o.Experiments, o.Progress = args, cmd.ErrOrStderr()
			o.Command = strings.Join(append([]string{"sluice"}, os.Args[1:]...), " ")
			return bench.Run(cmd.Context(), o)
		},
	}
	sluiceFlag(cmd, &o.Binary)
	fl := cmd.Flags()
	fl.StringVar((*string)(&o.Scale), "scale", string(o.Scale), "full (about an hour) or small (about fifteen minutes)")
	fl.IntVar(&o.Rounds, "rounds", 0, "how often each case is measured; 0: depends on the scale")
	fl.DurationVar(&o.SoakFor, "soak-for", 0, "how long the experiment soak lasts; 0: depends on the scale")
	fl.IntSliceVar(&o.Services, "services", nil, "numbers of services or farms, in experiments that compare some (modes-connections, modes-changes, kube-proxy-…, balancer-interruptions, soak); none: depends on the scale")
	fl.IntVar(&o.Objects, "objects", 0, "how many objects the experiment hostile draws; 0: depends on the scale")
	fl.IntVar(&o.From, "from", 0, "the number of the first of them: a long run may be cut in parts (one that is interrupted says how to go on)")
	fl.IntVar(&o.Pods, "pods", 0, "about how many pods are on other nodes beside them; 0: depends on the scale")
	fl.Uint64Var(&o.Seed, "seed", 1, "seed from which they are drawn")
	fl.StringVar(&o.Baseline, "baseline", "", "another sluice program to compare this one with, in the experiment baseline; without a name, only that experiment runs")
	fl.StringVar(&o.Out, "out", "docs/benchmarks", "folder for the results")
	return cmd
}

func experimentNames() []string {
	var names []string
	for _, e := range bench.Experiments() {
		names = append(names, e.Name)
	}
	return names
}

func experimentList() string {
	var b strings.Builder
	for _, e := range bench.Experiments() {
		fmt.Fprintf(&b, "  %-22s  %s\n", e.Name, e.Title)
	}
	return b.String()
}
