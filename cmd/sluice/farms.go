package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/lib/wake"
)

const farmsHelp = `List the farms that 'sluice balance' serves, a line for each backend, with its state and why. NEW/S is
the rate of new connections over the last second (of packets in the modes dsr and stlsdnat, which
track no connections; what a client that stays on its backend opens is not counted), ACTIVE the
connections that connection tracking knows, BYTES what was sent in these, both ways.

With --watch, the table is shown anew each second until Ctrl-C.`

func newFarmsCommand() *cobra.Command {
	var (
		socket, format string
		watch          bool
	)
	cmd := &cobra.Command{
		Use: "farms [NAME...]", Short: "List the farms of the balancer and their backends, live", Long: farmsHelp,
		Example: "  sluice farms --watch\n  sluice farms web -o json",
		RunE: func(cmd *cobra.Command, names []string) error {
			client := agentAt(socket, cmd.ErrOrStderr())
			if format != "" && format != "table" {
				farms, err := askForFarms(cmd.Context(), client, names)
				if err != nil {
					return err
				}
				return cli.Print(cmd.OutOrStdout(), format, farms, func(io.Writer) {})
			}
			return showFarms(cmd.Context(), cmd.OutOrStdout(), client, names, watch)
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show the table anew each second")
	socketFlag(cmd, &socket)
	cli.OutputFlag(cmd, &format)
	return cmd
}

// askForFarms returns the farms with the names; all, if there are none.
func askForFarms(ctx context.Context, client *agent.Client, names []string) ([]agent.FarmReport, error) {
	farms, err := client.Farms(ctx)
	if err != nil || len(names) == 0 {
		return farms, err
	}
	for _, n := range names {
		if !slices.ContainsFunc(farms, func(f agent.FarmReport) bool { return f.Name == n }) {
			return nil, fmt.Errorf("no farm %s is served: 'sluice farms' lists those that are", n)
		}
	}
	return slices.DeleteFunc(farms, func(f agent.FarmReport) bool { return !slices.Contains(names, f.Name) }), nil
}

// showFarms asks twice, as rates take two answers, and then each second while it watches.
func showFarms(ctx context.Context, w io.Writer, client *agent.Client, names []string, watch bool) error {
	before, err := askForFarms(ctx, client, names)
	if err != nil {
		return err
	}
	asked := time.Now()
	for wake.Sleep(ctx, time.Second) {
		now, err := askForFarms(ctx, client, names)
		if err != nil {
			return err
		}
		if watch && isTerminal(w) {
			_, _ = io.WriteString(w, "\033[H\033[2J")
		}
		rates := ratesBetween(before, now, time.Since(asked))
		err = cli.Print(w, "table", now, func(w io.Writer) { farmsTable(w, now, rates) })
		if err != nil || !watch {
			return err
		}
		before, asked = now, time.Now()
	}
	return nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// ratesBetween are how often backends were chosen in a second, by farm and backend.
func ratesBetween(before, now []agent.FarmReport, d time.Duration) map[[2]string]float64 {
	was := map[[2]string]uint64{}
	for _, f := range before {
		for _, b := range f.Backends {
			was[[2]string{f.Name, b.Name}] = b.Chosen
		}
	}
	rates := map[[2]string]float64{}
	for _, f := range now {
		for _, b := range f.Backends {
			k := [2]string{f.Name, b.Name}
			if b.Chosen >= was[k] { // otherwise its slots are new
				rates[k] = float64(b.Chosen-was[k]) / d.Seconds()
			}
		}
	}
	return rates
}

func farmsTable(w io.Writer, farms []agent.FarmReport, rates map[[2]string]float64) {
	if len(farms) == 0 {
		_, _ = fmt.Fprintln(w, "no farms")
		return
	}
	_, _ = fmt.Fprintln(w, "FARM\tADDRESS\tMODE\tBACKEND\tAT\tSTATE\tNEW/S\tACTIVE\tBYTES\tWHY")
	for _, f := range farms {
		if len(f.Backends) == 0 {
			_ = printf(w, "%s\t%s\t%s %s\t-\t-\t-\t-\t-\t-\t\n", f.Name, strings.Join(f.Addresses, " "), f.Mode, f.Scheduler)
		}
		for i, b := range f.Backends {
			name, addresses, mode := f.Name, strings.Join(f.Addresses, " "), f.Mode+" "+f.Scheduler
			if i > 0 {
				name, addresses, mode = "", "", ""
			}
			_ = printf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%d\t%s\t%s\n", name, addresses, mode, b.Name, b.Address, b.State,
				rates[[2]string{f.Name, b.Name}], b.Active, size(b.Bytes), b.Reason)
		}
	}
}

// size is a number of bytes for people.
func size(n uint64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	v, i := float64(n), 0
	for v >= 1000 && i < len(units)-1 {
		v, i = v/1000, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
