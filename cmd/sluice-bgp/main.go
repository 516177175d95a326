// Command sluice-bgp is Sluice's BGP speaker: the agent starts it where BGP is asked for, writes to
// its standard input what it is to do, and reads from its standard output how its peers are and
// what they announce.
package main

import (
	"errors"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sluice.dev/sluice/internal/bgp/speaker"
	"sluice.dev/sluice/internal/cli"
)

func main() { cli.Main(newCommand()) }

func newCommand() *cobra.Command {
	level := slog.LevelInfo
	cmd := &cobra.Command{
		Use:   "sluice-bgp",
		Short: "The BGP speaker of Sluice's agent",
		Long: `Sluice's agent runs this program where it is to speak BGP. It reads orders, one JSON
object a line, from its standard input: peers, and routes to announce. On its
standard output it reports how the peers are, and what routes they announce. Its
log is the standard error.

It ends with its input, without a word to its peers: those that know graceful
restart keep the routes until the next one runs. Use 'sluice bgp' to see how it is.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if term.IsTerminal(int(os.Stdin.Fd())) {
				_ = cmd.Help()
				return cli.Usage(errors.New("orders come from Sluice's agent, and not from a terminal"))
			}
			log := cli.TextLog(cmd.ErrOrStderr(), level)
			return speaker.New(log).Run(cmd.Context(), os.Stdin, cmd.OutOrStdout())
		},
	}
	cmd.Flags().TextVar(&level, "log-level", level, "lowest `level` to log: debug, info, warn or error")
	return cmd
}
