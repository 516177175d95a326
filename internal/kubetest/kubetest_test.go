package kubetest

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// dataplanesVariable names the dataplanes that TestConformance takes, parted by commas, or "all".
const dataplanesVariable = "KUBETEST_DATAPLANES"

// casesVariable holds what the names of the cases to run contain, parted by commas; all cases, if it is not set.
const casesVariable = "KUBETEST_CASES"

// width is how many cases run at the same time: most wait, for pods and for the proxies, most of the time.
const width = 8

// TestConformance puts the table to real clusters: to Sluice, and to kube-proxy to show that the table tells the truth. kube-proxy's
// iptables mode, which tells the least, runs on demand.
func TestConformance(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	exe := program(t)
	for _, d := range chosenDataplanes() {
		t.Run(string(d), func(t *testing.T) {
			c := start(t, exe, d)
			err := Run(t.Context(), c, d, chosenCases(), width, func(r Result) {
				t.Run(r.Case.Name, func(t *testing.T) {
					t.Logf("%.1f s", r.Took.Seconds())
					if r.Err != nil {
						t.Error(r.Err)
					}
				})
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func chosenDataplanes() []Dataplane {
	text := os.Getenv(dataplanesVariable)
	switch text {
	case "":
		return []Dataplane{Sluice, NFTables}
	case "all":
		return Dataplanes()
	}
	var chosen []Dataplane
	for _, d := range Dataplanes() {
		if slices.Contains(strings.Split(text, ","), string(d)) {
			chosen = append(chosen, d)
		}
	}
	return chosen
}

func chosenCases() []*Case {
	text, ok := os.LookupEnv(casesVariable)
	if !ok {
		return Cases()
	}
	return slices.DeleteFunc(Cases(), func(c *Case) bool {
		return !slices.ContainsFunc(strings.Split(text, ","), func(part string) bool { return strings.Contains(c.Name, part) })
	})
}

// TestTable checks what can be told of the table without a cluster.
func TestTable(t *testing.T) {
	names := map[string]bool{}
	for _, c := range Cases() {
		if names[c.Name] {
			t.Errorf("two cases are called %s", c.Name)
		}
		names[c.Name] = true
		if c.Shows == "" || len(c.Tests) == 0 || len(c.Steps) == 0 {
			t.Errorf("case %s lacks what it shows, the tests it stands for, or steps", c.Name)
		}
		for _, s := range c.Steps {
			q, ok := s.(Question)
			if !ok {
				continue
			}
			for _, x := range q.Differs {
				if x.Why == "" || !q.Want.excludes(x.Want) {
					t.Errorf("case %s: %s: %q and %q can both hold: were the difference gone, nobody would notice", c.Name, q, q.Want, x.Want)
				}
			}
		}
	}
}
