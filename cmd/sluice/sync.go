package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/model"
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

Objects at fault are named in warnings: all others are in the kernel, and the exit status is 0. It
is 1, and the reason is printed, if the kernel could not be programmed, the sources could not be
read, or that takes too long.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			client := agentAt(socket, cmd.ErrOrStderr())
			err := client.Sync(ctx)
			if fault, ok := errors.AsType[*agent.FaultError](err); ok {
				for _, i := range model.IssueLines(fault.Issues) {
					_ = printf(cmd.ErrOrStderr(), "warning: %s\n", i)
				}
				return nil
			}
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
