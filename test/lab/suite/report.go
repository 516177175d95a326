package suite

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Report is the outcome of a run.
type Report struct {
	Set, DataPlane string
	Nodes          int
	// Of the nodes, as their Node objects have them.
	Kubernetes, Runtime, Kernel string
	Cgroups                     int // version

	Took  time.Duration
	Tests []Test // those of the set that ran, or decided not to, by title

	// Own is the file beside the kept report that has the suite's own one; "": there is none.
	Own string `json:",omitempty"`
	own []byte
}

// Test is the outcome of a test.
type Test struct {
	Title  string
	State  State
	Took   time.Duration
	Reason string // why it failed, or skipped itself
	// Cause is why it can't pass: what the machine or the suite lacks, or what Sluice does
	// otherwise, as its pages say; "" if none is known.
	Cause string
}

// short is the title without what all titles have.
func (t Test) short() string { return strings.TrimPrefix(t.Title, "[sig-network] ") }

func (t Test) why() string { return cmp.Or(t.Cause, t.Reason) }

// State is how a test ended.
type State string

// These are the states.
const (
	Passed  State = "passed"
	Failed  State = "failed"
	Skipped State = "skipped"
)

// Count returns the number of tests in a state.
func (r *Report) Count(s State) (n int) {
	for _, t := range r.Tests {
		if t.State == s {
			n++
		}
	}
	return n
}

// Ours returns the tests that failed without a known cause.
func (r *Report) Ours() (tests []Test) {
	for _, t := range r.Tests {
		if t.State == Failed && t.Cause == "" {
			tests = append(tests, t)
		}
	}
	return tests
}

// causes are why tests can't pass, by the data plane, their titles and the reasons that they give.
var causes = []struct {
	test *regexp.Regexp
	why  string
}{
	{regexp.MustCompile(`^sluice-userspace .*(SCTP|sctp)`), "there is no SCTP in the mode userspace (docs/modes.md)"},
	{regexp.MustCompile(`nfacct|NFAcct`), "it reads a counter that kube-proxy's mode iptables has"},
	{regexp.MustCompile(`LocalhostNodePorts|localhost nodeports`), "node ports are not served on loopback addresses (docs/kube-proxy.md), nor by kube-proxy's mode nftables"},
	{regexp.MustCompile(`with Secret Ref set for BGPPeer`), "the agents read passwords from Secrets that their installation names (docs/bgp.md), and the test makes its own later"},
	{regexp.MustCompile(`TCP CLOSE_WAIT timeout`), "Sluice sets this only in kube-proxy's role: with --agent-flag=--conntrack-max-per-core=0 --agent-flag=--conntrack-min=0 the test passes"},
}

// finish puts the tests in order, and names the causes that are known.
func (r *Report) finish() {
	for i := range r.Tests {
		for _, c := range causes {
			if t := &r.Tests[i]; t.State == Failed && c.test.MatchString(r.DataPlane+" "+t.Title+" "+t.Reason) {
				t.Cause = c.why
			}
		}
	}
	slices.SortFunc(r.Tests, func(a, b Test) int { return cmp.Compare(a.Title, b.Title) })
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// Table writes the report for people, its columns separated by tabs.
func (r *Report) Table(w io.Writer) {
	for _, s := range []State{Failed, Skipped} {
		for _, t := range r.Tests {
			if t.State == s {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", s, t.short(), t.why())
			}
		}
	}
}

// Summary says in a line how the run ended.
func (r *Report) Summary() string {
	text := fmt.Sprintf("%d passed, %d failed", r.Count(Passed), r.Count(Failed))
	if known := r.Count(Failed) - len(r.Ours()); known > 0 {
		text += fmt.Sprintf(" (%d with a cause that is named)", known)
	}
	return fmt.Sprintf("%s, %d skipped themselves, in %s", text, r.Count(Skipped), r.Took.Round(time.Second))
}

// junitFile is the file of a run's folder that has the report in JUnit's format.
const junitFile = "junit.xml"

// writeJUnit writes the outcome of tests in JUnit's format.
func writeJUnit(path string, tests []Test) error {
	type reason struct {
		Message string `xml:"message,attr"`
	}
	type testCase struct {
		Name    string  `xml:"name,attr"`
		Time    float64 `xml:"time,attr"`
		Failure *reason `xml:"failure"`
		Skipped *reason `xml:"skipped"`
	}
	var suite struct {
		XMLName xml.Name   `xml:"testsuite"`
		Tests   int        `xml:"tests,attr"`
		Cases   []testCase `xml:"testcase"`
	}
	suite.Tests = len(tests)
	for _, t := range tests {
		c := testCase{Name: t.Title, Time: t.Took.Seconds()}
		switch t.State {
		case Failed:
			c.Failure = &reason{t.Reason}
		case Skipped:
			c.Skipped = &reason{t.Reason}
		}
		suite.Cases = append(suite.Cases, c)
	}
	text, err := xml.MarshalIndent(suite, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
