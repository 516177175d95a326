package suite

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/lab/build"
)

// clusterPolicies is the conformance suite of network-policy-api: Go's own tests, one after the
// other.
var clusterPolicies = &Suite{
	programs: build.Set{Name: "clusterpolicy", Programs: []build.Program{
		{Name: "conformance.test", Module: "kube/clusterpolicy", Package: "sigs.k8s.io/network-policy-api/conformance", Test: true},
	}},
	command: func(c Config) []string {
		const all = "TestConformanceProfiles"
		args := []string{filepath.Join(c.Bin, "conformance.test"), "-test.v=test2json", "-test.timeout=3h", "-test.run=^" + all + "$/" + c.Focus}
		if c.Skip != "" {
			args = append(args, "-test.skip=^"+all+"$/"+c.Skip)
		}
		return append(args, "-conformance-profiles=ClusterNetworkPolicy", "-supported-features=ClusterNetworkPolicyNamedPorts",
			"-organization=sluice", "-project=sluice", "-url=https://github.com/sluice-dev/sluice", "-contact=https://github.com/sluice-dev/sluice/issues/new",
			"-version="+cli.Version(), "-additional-info=make e2e E2E="+c.Name+"; agnhost speaks SCTP over raw sockets where the kernel has no sockets of it", "-report-output="+filepath.Join(c.Dir, conformanceReport))
	},
	count: countGo,
	read: func(dir string) (*Report, error) {
		r, err := readGo(dir)
		if err != nil {
			return nil, err
		}
		r.own, err = os.ReadFile(filepath.Join(dir, conformanceReport))
		if errors.Is(err, fs.ErrNotExist) { // the tests had no end
			err = nil
		}
		return r, err
	},
}

// conformanceReport is the file of the suite's own report.
const conformanceReport = "ConformanceReport.yaml"

var (
	goBegin = regexp.MustCompile(`^\x16?=== (RUN|NAME|CONT) +(\S+)$`)
	goEnd   = regexp.MustCompile(`^\x16? *--- (PASS|FAIL|SKIP): (\S+) \((.*)s\)$`)
	goLog   = regexp.MustCompile(`^ +\w+\.go:\d+: (.+)$`)
)

// goStates are the states by their words.
var goStates = map[string]State{"PASS": Passed, "FAIL": Failed, "SKIP": Skipped}

// scanGo reads the output of tests with -test.v=test2json, where each says at once that it has
// ended. It tells of each that has, but not of one for whose end those below it are enough.
func scanGo(out io.Reader, end func(Test)) {
	said := map[string]string{}    // the last line that each has logged
	within := map[string]bool{}    // tests that have others below them
	explained := map[string]bool{} // those of which one below has failed
	now := ""
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		line := lines.Text()
		if m := goBegin.FindStringSubmatch(line); m != nil {
			now = m[2]
			within[above(now)] = true
		} else if m := goLog.FindStringSubmatch(line); m != nil {
			said[now] = m[1]
		} else if m := goEnd.FindStringSubmatch(line); m != nil {
			t := Test{Title: title(m[2]), State: goStates[m[1]]}
			t.Took, _ = time.ParseDuration(m[3] + "s") // it is in the expression
			if t.State != Passed {
				t.Reason = said[m[2]]
			}
			if t.State == Failed {
				explained[above(m[2])] = true
			}
			if !within[m[2]] || t.State == Failed && !explained[m[2]] {
				end(t)
			}
		}
	}
	_, _ = io.Copy(io.Discard, out) // lines too long to be of interest
}

// above is the name of the test that a test is part of.
func above(name string) string { return name[:max(0, strings.LastIndex(name, "/"))] }

// title is the title of a test in words, without the name of the one that runs all.
func title(name string) string {
	if _, below, ok := strings.Cut(name, "/"); ok {
		name = below
	}
	return strings.NewReplacer("/", " ", "_", " ").Replace(name)
}

// countGo tells how many tests have ended.
func countGo(out io.Reader, say func(Counts)) {
	var n Counts
	scanGo(out, func(t Test) {
		switch t.State {
		case Passed:
			n.Passed++
		case Failed:
			n.Failed++
		}
		if say != nil {
			say(n)
		}
	})
}

// readGo reads the outcome of tests from what they have printed.
func readGo(dir string) (*Report, error) {
	f, err := os.Open(filepath.Join(dir, outputFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &Report{}
	scanGo(f, func(t Test) { r.Tests = append(r.Tests, t) })
	return r, writeJUnit(filepath.Join(dir, junitFile), r.Tests)
}
