package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
)

func newSyncCommand() *cobra.Command {
	var (
		socket  string
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "sync",
		Short: "Wait until everything that the sources hold now is in the kernel",
		Long: `Wait until everything that the sources hold now is in the kernel.

If that is not possible, for example because an object is at fault, the command prints the reason
and the exit status is 1. Everything else has been programmed nevertheless.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			client := agent.NewClient(socket)
			err := client.Sync(ctx)
			if !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			s, statusErr := client.Status(cmd.Context())
			switch {
			case statusErr != nil:
				return fmt.Errorf("not done after %s: %w", timeout, err)
			case s.OK:
				return fmt.Errorf("not done after %s: the agent is still at work (--timeout waits longer)", timeout)
			}
			return fmt.Errorf("not done after %s: %s", timeout, strings.Join(s.Problems, "; "))
		},
	}
	socketFlag(cmd, &socket)
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "give up after this time")
	return cmd
}
