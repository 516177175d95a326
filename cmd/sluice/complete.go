package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
)

// completeTime is how long a shell waits for names.
const completeTime = 2 * time.Second

// namesFor asks the agent that the command line means for all names; none if it does not answer.
func namesFor(cmd *cobra.Command) agent.Names {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	n, _ := agent.NewClient(cmd.Flag("socket").Value.String()).Names(ctx)
	return n
}

// beginning returns the names that begin with what has been typed.
func beginning(names []string, typed string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, typed) })
}

// completed completes the first argument of a command, or the value of a flag if there is no
// argument yet.
func completed(of func(agent.Names) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return beginning(of(namesFor(cmd)), typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// completedNamespaces completes the namespace of a service or policy.
func completedNamespaces(cmd *cobra.Command, _ []string, typed string) (namespaces []string, _ cobra.ShellCompDirective) {
	n := namesFor(cmd)
	for _, name := range slices.Concat(n.Services, n.Policies) {
		if namespace, _, ok := strings.Cut(name, "/"); ok {
			namespaces = append(namespaces, namespace)
		}
	}
	slices.Sort(namespaces)
	return beginning(slices.Compact(namespaces), typed), cobra.ShellCompDirectiveNoFileComp
}

// completeWhy has both ends of `sluice why` completed, and the node of --via.
func completeWhy(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		n := namesFor(cmd)
		ends := n.Pods
		for _, s := range n.Services {
			ends = append(ends, "svc/"+s)
		}
		for _, node := range n.Nodes {
			ends = append(ends, "node/"+node)
		}
		directive := cobra.ShellCompDirectiveNoFileComp
		if len(args) == 1 {
			directive |= cobra.ShellCompDirectiveNoSpace // a port follows
		}
		return beginning(ends, typed), directive
	}
	_ = cmd.RegisterFlagCompletionFunc("via", func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return beginning(namesFor(cmd).Nodes, typed), cobra.ShellCompDirectiveNoFileComp
	})
}
