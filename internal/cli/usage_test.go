package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// What is wrong with a command line is said in the user's words.
func TestWrongCommandLines(t *testing.T) {
	for args, want := range map[string]string{
		"":                    "",
		"ask":                 "ask needs FROM TO:PORT; for example: prog ask web db:5432\n",
		"ask web":             "ask needs FROM TO:PORT, and was given web; for example: prog ask web db:5432\n",
		"ask web db:1 x":      "ask needs FROM TO:PORT, and was given web db:1 x; for example: prog ask web db:5432\n",
		"list web":            "list takes no arguments: leave out web\n",
		"list --most x":       "--most x: give a whole number\n",
		"list --share x":      "--share x: give a number\n",
		"list --all=x":        "--all x: give true or false\n",
		"list --timeout 5":    "--timeout 5: give a time with its unit, such as 300ms, 30s or 5m\n",
		"list --from 10.0.0":  "--from: \"10.0.0\" is no network\n",
		"list --timeout":      "flag needs an argument: --timeout\n",
		"list --nonsense":     "unknown flag: --nonsense\n",
		"lits":                "unknown command \"lits\" for \"prog\"\n\nDid you mean this?\n  list\n",
		"list --timeout 300s": "",
		"ask web db:5432":     "",
	} {
		root := &cobra.Command{Use: "prog", SuggestionsMinimumDistance: 2}
		run := func(*cobra.Command, []string) error { return nil }
		ask := &cobra.Command{Use: "ask FROM TO:PORT", Args: cobra.ExactArgs(2), RunE: run, Example: "  prog ask web db:5432\n  prog ask a b:1"}
		list := &cobra.Command{Use: "list", Args: cobra.NoArgs, RunE: run}
		list.Flags().Int("most", 0, "")
		list.Flags().Float64("share", 0, "")
		list.Flags().Bool("all", false, "")
		list.Flags().Duration("timeout", time.Second, "")
		list.Flags().Var(network{}, "from", "")
		root.AddCommand(ask, list)
		var out, errs bytes.Buffer
		status := Execute(t.Context(), root, strings.Fields(args), &out, &errs)
		if want == "" && (status != ExitOK || errs.Len() > 0) || want != "" && (status != ExitUsage || !strings.HasPrefix(errs.String(), "prog: "+want)) {
			t.Errorf("%q: exit status %d, %s; want %s", args, status, errs.String(), want)
		}
	}
}

// network is a flag's value that says itself what is wrong with one.
type network struct{}

func (network) String() string     { return "" }
func (network) Type() string       { return "network" }
func (network) Set(s string) error { return errNetwork(s) }

type errNetwork string

func (e errNetwork) Error() string { return `"` + string(e) + `" is no network` }
