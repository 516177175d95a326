package kubetest

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dataplanesVariable names the data planes that TestConformance uses, comma-separated, or "all".
const dataplanesVariable = "KUBETEST_DATAPLANES"

var someCases = flag.String("cases", "", "run the cases whose names contain one of these `parts`, comma-separated")

// width is how many cases run at the same time: most of them wait most of the time, for pods and
// for the proxies.
const width = 8

var updatePage = flag.Bool("update", false, "write docs/conformance.md, if all cases ran on all dataplanes")

var page = filepath.Join("..", "..", "docs", "conformance.md")

// TestConformance runs the table on real clusters: with Sluice and, on demand, with kube-proxy in
// both modes, to show that the table is right. That is not for every run of the tests: at times a
// kube-proxy in nftables mode believes that a node is in no zone, and does not recover.
func TestConformance(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	results := Results{}
	for _, d := range chosenDataplanes() {
		t.Run(string(d), func(t *testing.T) {
			c, w := dataplane(t, d)
			w.run(t.Context(), d, "", chosenCases(), width, func(r Result) {
				results[d] = append(results[d], r)
				t.Run(r.Case.Name, func(t *testing.T) {
					t.Logf("%.1f s", r.Took.Seconds())
					if r.Load.Sent > 0 {
						t.Logf("%d of %d requests failed meanwhile; the first: %v", r.Load.Failed, r.Load.Sent, r.Load.First)
					}
					if r.Before != nil {
						t.Logf("the first attempt failed: %v", r.Before)
					}
					if r.Err != nil {
						t.Error(r.Err)
					}
					if r.Err != nil || r.Before != nil {
						t.Log(c.logs())
					}
				})
			})
		})
	}
	if *updatePage {
		write(t, results)
	}
}

func write(t *testing.T, results Results) {
	for _, d := range Dataplanes() {
		if len(results[d]) != len(Cases()) {
			t.Fatalf("%s ran %d of %d cases: the page is left as it is", d, len(results[d]), len(Cases()))
		}
	}
	var text strings.Builder
	if err := results.Write(&text, Cases()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(page, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPage checks that the page is of this table, and of a run in which everything was as expected.
func TestPage(t *testing.T) {
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	all := Results{}
	for _, d := range Dataplanes() {
		for _, c := range Cases() {
			all[d] = append(all[d], Result{Case: c})
		}
	}
	var want strings.Builder
	if err := all.Write(&want, Cases()); err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Errorf("%s is not what a run of the table gives: run KUBETEST_DATAPLANES=all go test -run TestConformance -update", page)
	}
}

// testCall matches how the end-to-end tests name a test.
var testCall = regexp.MustCompile(`(?:ConformanceIt|\bIt)\("([^"]+)"`)

// TestEveryTestIsAccountedFor compares the titles in the table with the end-to-end tests
// themselves: each test has a case or is left out for a reason, and no title is unknown.
func TestEveryTestIsAccountedFor(t *testing.T) {
	folder := suite(t)
	left := map[string]bool{} // "service.go should …"
	for _, file := range Suite {
		source, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testCall.FindAllStringSubmatch(string(source), -1) {
			left[file+" "+m[1]] = true
		}
	}
	real, omitted := maps.Clone(left), map[string]bool{}
	account := func(title string) string {
		described, name, _ := strings.Cut(title, " / ")
		key := Suite[described] + " " + name
		if !real[key] {
			t.Errorf("there is no test %q", title)
		}
		delete(left, key)
		return key
	}
	for _, o := range Omissions() {
		for _, title := range o.Tests {
			omitted[account(title)] = true
		}
	}
	for _, c := range Cases() {
		for _, title := range c.Tests {
			if omitted[account(title)] {
				t.Errorf("%q is left out, and yet case %s stands for it", title, c.Name)
			}
		}
	}
	for key := range left {
		t.Errorf("no case stands for the test %q, and no reason is given", key)
	}
	t.Logf("%d of %d tests have cases", len(real)-len(omitted), len(real))
}

// suite returns the folder of Kubernetes' end-to-end tests of the network, in the pinned version.
func suite(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "k8s.io/kubernetes")
	cmd.Dir = filepath.Join("..", "..", "test", "kube")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("find Kubernetes' sources: %v", err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(module.Dir, "test", "e2e", "network")
}

// dataplane returns a lab with that data plane.
func dataplane(t *testing.T, d Dataplane) (*labCluster, *world) {
	t.Helper()
	if d == Sluice {
		return sluice(t)
	}
	return other(t, d)
}

func chosenDataplanes() []Dataplane {
	text := os.Getenv(dataplanesVariable)
	switch text {
	case "":
		return []Dataplane{Sluice}
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
	return slices.DeleteFunc(Cases(), func(c *Case) bool {
		return !slices.ContainsFunc(strings.Split(*someCases, ","), func(part string) bool { return strings.Contains(c.Name, part) })
	})
}

// TestTable checks what can be checked without a cluster.
func TestTable(t *testing.T) {
	names := map[string]bool{}
	for _, c := range Cases() {
		if names[c.Name] {
			t.Errorf("two cases are called %s", c.Name)
		}
		names[c.Name] = true
		if c.Shows == "" || len(c.Steps) == 0 {
			t.Errorf("case %s lacks what it shows, or steps", c.Name)
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
	for _, m := range modes {
		for name, why := range m.lacks {
			if !names[name] || why == "" {
				t.Errorf("mode %s lacks case %s, which is not in the table, or for no reason", m.name, name)
			}
		}
	}
}
