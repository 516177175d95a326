// Command sluice gives a Linux node its Kubernetes service load balancing and network
// policy, and brings the lab that shows and measures it. Each subcommand has a file of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/model"
)

// version is set by the linker.
var version string

// Exit statuses.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
	exitDeny  = 3 // `sluice why`: the connection is denied
	exitAsk   = 4 // `sluice why`: another node judges the connection
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends us at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs the command line and returns the exit status.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	started := false
	markStart(root, &started)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	switch {
	case errors.Is(err, errDenied):
		return exitDeny
	case errors.Is(err, errElsewhere):
		return exitAsk
	}
	_, _ = fmt.Fprintln(stderr, "sluice:", model.PrintableLines(err.Error()))
	if usage := (usageError{}); started && !errors.As(err, &usage) {
		return exitError
	}
	_, _ = fmt.Fprintf(stderr, "Run '%s --help' for what there is.\n", cmd.CommandPath())
	return exitUsage
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Kubernetes service load balancing and network policy through a flat nftables program",
		Long: `Sluice gives a Linux node its Kubernetes service load balancing and network
policy through one nftables table whose cost does not grow with the cluster.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newRunCommand(), newPlanCommand(), newStatusCommand(), newServicesCommand(), newPoliciesCommand(), newWhyCommand(), newDropsCommand(),
		newSyncCommand(), newCleanupCommand(), newTakeoverCommand(), newPreflightCommand(), newLabCommand(), newBenchCommand(), newVersionCommand())
	return root
}

// usageError is a command line that makes no sense, found after its syntax was accepted.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// markStart notes when a command's own work begins: what fails before is the
// command line's fault.
func markStart(cmd *cobra.Command, started *bool) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*started = true
			return run(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		markStart(c, started)
	}
}
