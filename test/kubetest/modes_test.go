package kubetest

import (
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/kernel/probe"
)

var allInModes = flag.Bool("modes", false, "run the whole table in each mode of the agent, and not a few cases")

// fewCases stand for the table where that is not run as a whole: who reaches what on all nodes,
// what pods see, and what follows a change. They show that the agent has the mode carry out what
// the API contains. What a mode does with services is proved by drivertest's table, for each
// driver.
var fewCases = []string{"everyone-reaches-everything", "source-address", "endpoints-change"}

// TestModes runs cases of the table in each mode, in one lab whose agents change from one to the
// next. What serves is of the present mode alone, as the cases make all that they ask for. All give
// the same answers, except for what a mode lacks. What this machine's kernel lacks, a guest has:
// make test-ipvs.
func TestModes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			if err := probe.Missing(t.Context(), m.needs); errors.Is(err, probe.ErrNotSupported) {
				t.Skip(err)
			}
			c, w := sluice(t, append(m.flags, "--policy=false")...)
			cases := slices.DeleteFunc(chosenCases(), func(c *Case) bool {
				return m.lacks[c.Name] != "" || !*allInModes && *someCases == "" && !slices.Contains(fewCases, c.Name)
			})
			for name, why := range m.lacks {
				t.Logf("left out: %s: %s", name, why)
			}
			w.run(t.Context(), Sluice, "-"+m.name, cases, width, func(r Result) {
				t.Run(r.Case.Name, func(t *testing.T) {
					t.Logf("%.1f s", r.Took.Seconds())
					if r.Err != nil {
						t.Errorf("%v\n%s", r.Err, strings.TrimSpace(c.logs()))
					}
				})
			})
		})
	}
}
