package suite

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What Ginkgo writes: the tests of other sets, too, and what all tests need.
const ginkgoText = `[{"RunTime": 90000000000, "SpecReports": [
 {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeText": "should b", "State": "passed", "RunTime": 1000000000},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeText": "should a", "State": "failed", "Failure": {"Message": "no answer\nat line 7"}},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeText": "speak SCTP", "State": "timedout", "Failure": {"Message": "no socket"}},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-network] Cloud"], "LeafNodeText": "should c", "State": "skipped", "Failure": {"Message": "only on GCE"}},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeText": "should d", "State": "skipped"},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeText": "should e", "State": "pending"}
]}]`

func TestReport(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ginkgoReport)
	if err := os.WriteFile(path, []byte(ginkgoText), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := readGinkgo(dir)
	if err != nil {
		t.Fatal(err)
	}
	r.finish()
	if got, want := r.Summary(), "1 passed, 2 failed (1 for what this machine or the suite lacks), 1 skipped themselves, in 1m30s"; got != want {
		t.Errorf("summary: %s\nwant %s", got, want)
	}
	if ours := r.Ours(); len(ours) != 1 || ours[0].Title != "[sig-network] Services should a" || ours[0].Reason != "no answer" {
		t.Errorf("failed without a cause elsewhere: %+v", ours)
	}
	var b strings.Builder
	r.Table(&b)
	if want := "failed\tServices should a\tno answer\nfailed\tServices speak SCTP\tthe kernel has no SCTP\nskipped\tCloud should c\tonly on GCE\n"; b.String() != want {
		t.Errorf("table:\n%s\nwant:\n%s", b.String(), want)
	}
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readGinkgo(dir); err == nil {
		t.Error("a report that is broken is read")
	}
	if _, err := readGinkgo(t.TempDir()); err == nil {
		t.Error("a report that is not there is read")
	}
}

func TestCount(t *testing.T) {
	out := "Running Suite: Kubernetes e2e suite\n•\n•••\n• [12.000 seconds]\nSome • in a text\n• [FAILED] [3.000 seconds]\n  [FAILED] in [It] - a.go:1\n  [FAILED] detail\n•• [PANICKED]\n"
	var last Counts
	countGinkgo(strings.NewReader(out), func(n Counts) { last = n })
	if last != (Counts{Passed: 6, Failed: 2}) {
		t.Errorf("counted %+v", last)
	}
}

// A page has the reports of all sets and data planes that were kept.
func TestKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "e2e")
	for _, r := range []*Report{
		{Set: "smoke", DataPlane: "kube-proxy-nftables", Nodes: 2, Kubernetes: "v1.37.1", Runtime: "containerd 1.6.20", Kernel: "6.12.1", Tests: []Test{{Title: "[sig-network] a", State: Passed}}},
		{Set: "conformance", DataPlane: "sluice", Nodes: 3, Kubernetes: "v1.37.1", Runtime: "containerd 1.6.20", Kernel: "6.12.1", Tests: []Test{{Title: "[sig-network] a", State: Passed}}},
		{Set: "conformance", DataPlane: "sluice", Nodes: 3, Kubernetes: "v1.37.1", Runtime: "containerd 1.6.20", Kernel: "6.12.1", Tests: []Test{
			{Title: "[sig-network] a|b", State: Failed, Reason: "<nil>", Cause: ""}, {Title: "[sig-network] c", State: Skipped, Reason: "no cloud"}, {Title: "[sig-network] d", State: Passed},
		}},
	} {
		if err := Keep(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| conformance | sluice | 3 | 1 | 1 | 0 | 1 | 0s |\n| smoke | kube-proxy-nftables | 2 | 1 | 0 | 0 | 0 | 0s |\n",
		"| a\\|b | failed | &lt;nil> |\n| c | skipped | no cloud |\n", "Run with Kubernetes 1.37.1, containerd 1.6.20, Linux 6.12.1.\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in the page:\n%s", want, text)
		}
	}
}

// The expressions of the sets choose what their names say.
func TestSets(t *testing.T) {
	for _, tc := range []struct {
		title string
		in    string // sets
	}{
		{"[sig-network] Services should serve a basic endpoint from pods [Conformance]", "conformance sig-network smoke"},
		{"[sig-network] Services should be able to up and down services", "sig-network"},
		{"[sig-network] Netpol NetworkPolicy between server and client should support a 'default-deny-ingress' policy [Feature:NetworkPolicy]", "netpol sig-network smoke"},
		{"[sig-node] Pods should be submitted and removed [Conformance]", ""},
	} {
		var in []string
		for _, s := range Sets {
			if regexp.MustCompile(s.Focus).MatchString(tc.title) {
				in = append(in, s.Name)
			}
		}
		if slices.Sort(in); strings.Join(in, " ") != tc.in {
			t.Errorf("%s: in %v, want %s", tc.title, in, tc.in)
		}
	}
}
