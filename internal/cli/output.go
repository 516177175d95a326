package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// OutputFlag adds -o to a command, which runs only with a format that Print knows.
func OutputFlag(cmd *cobra.Command, format *string) {
	formats := []string{"table", "json", "yaml"}
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains(formats, *format) {
			return Usage(fmt.Errorf("-o %s: choose table, json or yaml", *format))
		}
		return nil
	}
	cmd.Flags().StringVarP(format, "output", "o", "table", "table, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// Print writes v as JSON or YAML, or calls table to write it for people, in columns separated by
// tabs.
func Print(w io.Writer, format string, v any, table func(io.Writer)) error {
	if format == "table" {
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		table(tw)
		return tw.Flush()
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	b = append(b, '\n')
	if format == "yaml" {
		if b, err = yaml.JSONToYAML(b); err != nil {
			return fmt.Errorf("encode output: %w", err)
		}
	}
	_, err = w.Write(b)
	return err
}
