// Command sluice gives a Linux node its Kubernetes service load balancing, network policy and pod
// network. Each subcommand has a file of its own.
package main

import (
	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/cli"
)

func main() { cli.Main(newRootCommand()) }

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Kubernetes service load balancing, network policy and pod networking for a node",
		Long: `Sluice gives a Linux node its Kubernetes service load balancing, network policy
and pod network, at a cost that does not grow with the cluster.`,
	}
	root.AddCommand(newRunCommand(), newPlanCommand(), newStatusCommand(), newServicesCommand(), newAddressesCommand(), newFabricCommand(), newBGPCommand(), newPoliciesCommand(), newWhyCommand(), newDropsCommand(),
		newSyncCommand(), newCleanupCommand(), newTakeoverCommand(), newCNICommand(), newPreflightCommand(), newCheckCommand(),
		newBalanceCommand(), newFarmsCommand(), newImportCommand(),
		newLabProgramCommand("lab", "Run a cluster in network namespaces on this machine: start it, inspect it, send traffic through it"),
		newLabProgramCommand("bench", "Measure on this machine what Sluice promises, beside other programs"),
		cli.NewVersionCommand())
	return root
}
