package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/balancer/config"
	"sluice.dev/sluice/internal/balancer/importer"
	"sluice.dev/sluice/internal/balancer/keys"
	"sluice.dev/sluice/internal/cli"
)

// importers are the formats that 'sluice import' reads.
var importers = map[string]func(io.Reader, importer.Options) (keys.Object, []importer.Note, error){
	"ipvs":       importer.IPVS,
	"keepalived": importer.Keepalived,
	"nftlb": func(r io.Reader, _ importer.Options) (keys.Object, []importer.Note, error) {
		return importer.NFTLB(r, config.Document)
	},
}

// importOptions are the arguments of 'sluice import'.
type importOptions struct {
	format, file string
	mode         string
	configID     string
	strict       bool
}

func newImportCommand() *cobra.Command {
	formats := []string{"ipvs", "keepalived", "nftlb"}
	var o importOptions
	cmd := &cobra.Command{
		Use:   "import ipvs|keepalived|nftlb FILE",
		Short: "Turn the configuration of another balancer into one for 'sluice balance'",
		Long: `Turn the configuration of another balancer into one for 'sluice balance': the output
of 'ipvsadm -Sn', a keepalived.conf with the files that it includes, or a file of nftlb. FILE may
be - for standard input.

The configuration goes to standard output as JSON. What was left out or changed goes to
standard error, a line for each: the line in FILE, what stands there, and why.

The exit status is 0 if every virtual service, address and server was taken over, and 3 if
one was not; with --strict it is also 3 if anything else was left out or means something
else now. It is 1 if nothing could be read.`,
		Example: "  sluice import keepalived /etc/keepalived/keepalived.conf > farms.json\n  ipvsadm -Sn | sluice import ipvs --mode ipvs - > farms.json",
		Args:    cobra.ExactArgs(2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return formats, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.format, o.file = args[0], args[1]
			switch {
			case !slices.Contains(formats, o.format):
				return cli.Usage(fmt.Errorf("import %s: choose ipvs, keepalived or nftlb", o.format))
			case !slices.Contains(farmModes, o.mode):
				return cli.Usage(fmt.Errorf("--mode %s: choose %s", o.mode, strings.Join(farmModes, " or ")))
			case o.mode == ipvsFarms && o.format == "nftlb":
				return cli.Usage(errors.New("--mode ipvs: what nftlb has is for --mode nftables"))
			}
			return runImport(cmd, o)
		},
	}
	cmd.Flags().StringVar(&o.mode, "mode", defaultMode, "`mode` of 'sluice balance' that the configuration is for: "+strings.Join(farmModes, " or "))
	cmd.Flags().StringVar(&o.configID, "config-id", "", "of keepalived, the `name` of the machine whose lines (@NAME) are taken, as in keepalived's own flag")
	cmd.Flags().BoolVar(&o.strict, "strict", false, "exit with status 3 for anything that is left out or changed")
	return cmd
}

func runImport(cmd *cobra.Command, o importOptions) error {
	in, options := cmd.InOrStdin(), importer.Options{IPVS: o.mode == ipvsFarms, ConfigID: o.configID}
	if o.file != "-" {
		options.File = o.file
		f, err := os.Open(o.file)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	doc, notes, err := importers[o.format](in, options)
	if err != nil {
		return errors.Join(printNotes(cmd.ErrOrStderr(), notes), fmt.Errorf("import %s: %w", o.file, err))
	}
	var text bytes.Buffer
	if err = json.Indent(&text, config.Document.JSON(doc), "", "  "); err == nil {
		text.WriteByte('\n')
		_, err = text.WriteTo(cmd.OutOrStdout())
	}
	if err := errors.Join(err, printNotes(cmd.ErrOrStderr(), notes)); err != nil {
		return err
	}
	return lossOf(cmd.ErrOrStderr(), notes, o.strict)
}

// lossOf ends the command by what was lost, which the last line counts.
func lossOf(w io.Writer, notes []importer.Note, strict bool) error {
	count := map[importer.Loss]int{}
	for _, n := range notes {
		count[n.Loss]++
	}
	whole, part := count[importer.Whole], count[importer.Part]
	if whole == 0 && (part == 0 || !strict) {
		return nil
	}
	var lost []string
	if whole > 0 {
		lost = append(lost, fmt.Sprintf("virtual services, addresses and servers that were not taken over: %d", whole))
	}
	if part > 0 {
		lost = append(lost, fmt.Sprintf("other things left out or changed: %d", part))
	}
	if err := printf(w, "%s\n", strings.Join(lost, "; ")); err != nil {
		return err
	}
	return cli.Status(cli.ExitFound)
}

// printNotes writes what was left out or changed in columns.
func printNotes(w io.Writer, notes []importer.Note) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, n := range notes {
		where := strings.TrimPrefix(fmt.Sprintf("%s line %d", n.File, n.Line), " ")
		if err := printf(tw, "%s\t%s\t%s\n", where, n.What, n.Why); err != nil {
			return err
		}
	}
	return tw.Flush()
}
