package suite

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/test/lab/build"
)

// kubernetes is Kubernetes' own suite.
var kubernetes = &Suite{
	programs: build.Set{Name: "e2e", Programs: []build.Program{
		{Name: "ginkgo", Module: "kube/e2e", Package: "github.com/onsi/ginkgo/v2/ginkgo"},
		{Name: "e2e.test", Module: "kube/e2e", Package: "k8s.io/kubernetes/test/e2e", Test: true},
	}},
	command: func(c Config) []string {
		return append(ginkgo(c, "e2e.test"),
			"--provider=local", "--kubeconfig="+c.Kubeconfig, "--kubectl-path="+c.Kubectl, "--num-nodes="+fmt.Sprint(c.Nodes),
			"--disable-log-dump", "--dump-logs-on-failure=false", "--report-dir="+filepath.Join(c.Dir, "details"))
	},
	env:   func(c Config) []string { return []string{"KUBE_SSH_KEY_PATH=" + c.SSHKey, "KUBE_SSH_USER=root"} },
	count: countGinkgo, read: readGinkgo,
}

// ginkgoReport is the file of Ginkgo's report.
const ginkgoReport = "report.json"

// ginkgo is the command that has Ginkgo run a program of tests, whose arguments are to follow.
func ginkgo(c Config, tests string) []string {
	args := []string{
		filepath.Join(c.Bin, "ginkgo"), "--procs", fmt.Sprint(c.Procs), "--no-color", "--silence-skips", "--timeout", "3h", "--focus", c.Focus,
		"--json-report", ginkgoReport, "--junit-report", junitFile, "--output-dir", c.Dir,
	}
	if c.Skip != "" {
		args = append(args, "--skip", c.Skip)
	}
	return append(args, filepath.Join(c.Bin, tests), "--")
}

// readGinkgo reads Ginkgo's report.
func readGinkgo(dir string) (*Report, error) {
	path := filepath.Join(dir, ginkgoReport)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var reports []struct {
		RunTime     time.Duration
		SpecReports []struct {
			ContainerHierarchyTexts    []string
			LeafNodeType, LeafNodeText string
			State                      string
			RunTime                    time.Duration
			Failure                    struct{ Message string }
		}
	}
	if err := json.Unmarshal(text, &reports); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	r := &Report{}
	for _, from := range reports {
		r.Took += from.RunTime
		for _, s := range from.SpecReports {
			t := Test{Title: strings.TrimSpace(strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")), Took: s.RunTime, Reason: firstLine(s.Failure.Message)}
			switch {
			case s.State == "passed":
				t.State = Passed
			case s.State == "skipped" && t.Reason == "" || s.State == "pending":
				continue // another set's
			case s.State == "skipped":
				t.State = Skipped
			default:
				t.State = Failed
			}
			if s.LeafNodeType != "It" {
				if t.State != Failed {
					continue
				}
				t.Title = s.LeafNodeType // what all of them need
			}
			r.Tests = append(r.Tests, t)
		}
	}
	return r, nil
}

// countGinkgo tells how many tests have ended, from Ginkgo's output. At the beginning of a line is
// a dot for each; behind the dot of one that has failed, a word says so.
func countGinkgo(out io.Reader, say func(Counts)) {
	var (
		n    Counts
		line strings.Builder
		r    = bufio.NewReader(out)
	)
	for {
		c, _, err := r.ReadRune()
		if err != nil {
			return
		}
		switch {
		case c == '\n':
			line.Reset()
			continue
		case c == '•' && strings.Trim(line.String(), "•S") == "":
			n.Passed++
		case c == '[' && strings.TrimLeft(line.String(), "•S ") == "Failure " && strings.HasPrefix(line.String(), "•"): // as Ginkgo 1 has it
			n.Passed--
			n.Failed++
		case c == ']' && strings.Contains(line.String(), "•") && slices.Contains([]string{"[FAILED", "[PANICKED", "[TIMEDOUT"}, strings.TrimLeft(line.String(), "•S ")):
			n.Passed--
			n.Failed++
		default:
			line.WriteRune(c)
			continue
		}
		line.WriteRune(c)
		if say != nil {
			say(n)
		}
	}
}
