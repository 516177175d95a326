package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/balance/importer"
	"sluice.dev/sluice/internal/cli"
)

// importers are the formats that 'sluice import' reads.
var importers = map[string]func(io.Reader) (*importer.Document, []importer.Note, error){
	"ipvs":       importer.IPVS,
	"keepalived": importer.Keepalived,
	"nftlb":      importer.NFTLB,
}

func newImportCommand() *cobra.Command {
	formats := []string{"ipvs", "keepalived", "nftlb"}
	return &cobra.Command{
		Use:   "import ipvs|keepalived|nftlb FILE",
		Short: "Turn the configuration of another balancer into one for 'sluice balance'",
		Long: `Turn the configuration of another balancer into one for 'sluice balance': the output
of 'ipvsadm -Sn', a keepalived.conf, or a file of nftlb. FILE may be - for standard input.

The configuration goes to standard output as JSON. What was left out or changed goes to
standard error, a line for each: the line in FILE, what stands there, and why.`,
		Example: "  sluice import keepalived /etc/keepalived/keepalived.conf > balance.json\n  ipvsadm -Sn | sluice import ipvs - > balance.json",
		Args:    cobra.ExactArgs(2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return formats, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(formats, args[0]) {
				return cli.Usage(fmt.Errorf("import %s: choose ipvs, keepalived or nftlb", args[0]))
			}
			return runImport(cmd, args[0], args[1])
		},
	}
}

func runImport(cmd *cobra.Command, format, file string) error {
	in := cmd.InOrStdin()
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	doc, notes, err := importers[format](in)
	if err != nil {
		return errors.Join(printNotes(cmd.ErrOrStderr(), notes), fmt.Errorf("import %s: %w", file, err))
	}
	text, err := json.MarshalIndent(doc, "", "  ")
	if err == nil {
		_, err = cmd.OutOrStdout().Write(append(text, '\n'))
	}
	return errors.Join(err, printNotes(cmd.ErrOrStderr(), notes))
}

// printNotes writes what was left out or changed in columns.
func printNotes(w io.Writer, notes []importer.Note) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, n := range notes {
		if err := printf(tw, "line %d\t%s\t%s\n", n.Line, n.What, n.Why); err != nil {
			return err
		}
	}
	return tw.Flush()
}
