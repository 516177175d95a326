package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/bpf"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/kernel/sysctl"
)

func newCleanupCommand() *cobra.Command {
	var socket string
	var stay bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what the agent programmed in this network namespace, and nothing else",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cleanup(cmd, socket); err != nil || !stay {
				return err
			}
			_, _ = fmt.Fprintln(cmd.OutOrStdout(), "done; staying until a signal ends this command")
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().BoolVar(&stay, "stay", false, "afterwards stay until a signal comes, as a DaemonSet's pods have to")
	socketFlag(cmd, &socket)
	return cmd
}

// cleanup removes everything that the agent of this network namespace and socket has left in the
// kernel and in files. What belongs to an agent of another namespace with the same socket stays.
// What cannot be removed holds up nothing else in the kernel, unless it is another agent's or a
// privilege is missing: then tunnels and farms are left, too. Kernel parameters stay as they are
// whenever something is left, as it may need them.
func cleanup(cmd *cobra.Command, socket string) error {
	if agent.Alive(socket) && agent.Elsewhere(socket) == 0 {
		return fmt.Errorf("an agent answers on %s and would put everything back: stop it first", socket)
	}
	err := programmed{&modeFlags{record: sysctl.RecordPath(socket)}}.purge(cmd.Context())
	switch {
	case errors.Is(err, driver.ErrBusy):
		return fmt.Errorf("%w: an agent with another --socket runs in this network namespace: stop it first; what it programmed is still there, and tunnels and farms are left, too", err)
	case errors.Is(err, unix.EPERM):
		return privilege(fmt.Errorf("remove services and policy: %w", err))
	}
	balancer := balanceOptions{agent: agent.Config{Socket: socket}}
	err = errors.Join(
		wrap("remove accelerators", bpf.RemoveAll()),
		wrap("remove services and policy", err),
		wrap("remove tunnels and routes", purgeFabric(cmd.Context())),
		wrap("remove farms", balancer.purgeFarms(cmd.Context(), "", slog.New(slog.DiscardHandler))),
	)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(cmd.OutOrStdout(), "kernel: nothing of sluice is left in this network namespace")
	return errors.Join(tolerate(cmd.Context(), socket), restoreSysctls(cmd.OutOrStdout(), socket), removeSocket(cmd.OutOrStdout(), socket), removeNodeKey(keyPath(socket)))
}

// wrap says what failed; nil: nothing did.
func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// tolerate has connections go on whose segments connection tracking has not all seen, if it is to
// ask for their numbers again.
func tolerate(ctx context.Context, socket string) error {
	noted, err := sysctl.List(sysctl.RecordPath(socket))
	if err != nil || !slices.ContainsFunc(noted, func(o sysctl.Override) bool { return o.Key == sysctl.AnyWindow }) {
		return err
	}
	tracking, err := conntrack.Open()
	if err != nil {
		return err
	}
	return errors.Join(tracking.Tolerate(ctx), tracking.Close())
}

// restoreSysctls sets kernel parameters to their values before the agent's first start.
func restoreSysctls(w io.Writer, socket string) error {
	restored, err := sysctl.Restore(sysctl.RecordPath(socket))
	for _, c := range restored {
		_ = printf(w, "restored: %s\n", c)
	}
	return err
}

// removeSocket removes the socket of an agent that was killed.
func removeSocket(w io.Writer, socket string) error {
	removed, err := agent.RemoveSocket(socket)
	if removed {
		_, _ = fmt.Fprintln(w, "removed:", socket)
	}
	return err
}
