package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/plan"
)

// completePlaces completes a command's first argument by names of the lab that --name means, as it
// was when it was last looked at; after it follows what the directive says.
func completePlaces(names func(*lab.Lab) []string, after cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && after == cobra.ShellCompDirectiveDefault {
			return nil, after
		}
		l, err := lab.Open(cmd.Flag("name").Value.String(), nil)
		if err != nil {
			return cobra.AppendActiveHelp(nil, err.Error()), cobra.ShellCompDirectiveNoFileComp
		}
		return slices.DeleteFunc(names(l), func(n string) bool {
			return slices.Contains(args, n) || !strings.HasPrefix(n, typed)
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// hosts are a lab's nodes, and with others its other hosts.
func hosts(l *lab.Lab, others bool) (names []string) {
	for _, n := range l.Cluster.Nodes {
		names = append(names, n.Name)
	}
	if others {
		names = append(names, plan.Outside)
		if l.Kubernetes != nil {
			names = append(names, plan.Control)
		}
	}
	return names
}

func pods(l *lab.Lab) (names []string) {
	for _, p := range l.Cluster.Pods {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return names
}

func services(l *lab.Lab) (names []string) {
	for _, s := range l.Cluster.Services {
		names = append(names, s.Namespace+"/"+s.Name)
	}
	return names
}
