package suite

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// What Ginkgo writes: the tests of other sets, too, and what all tests need.
const ginkgoText = `[{"RunTime": 90000000000, "SpecReports": [
 {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeText": "should b", "State": "passed", "RunTime": 1000000000},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeText": "should a", "State": "failed", "Failure": {"Message": "no answer\nat line 7"}},
 {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeText": "update nfacct", "State": "timedout", "Failure": {"Message": "no socket"}},
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
	if got, want := r.Summary(), "1 passed, 2 failed (1 with a cause that is named), 1 skipped themselves, in 1m30s"; got != want {
		t.Errorf("summary: %s\nwant %s", got, want)
	}
	if ours := r.Ours(); len(ours) != 1 || ours[0].Title != "[sig-network] Services should a" || ours[0].Reason != "no answer" {
		t.Errorf("failed without a known cause: %+v", ours)
	}
	var b strings.Builder
	r.Table(&b)
	if want := "failed\tServices should a\tno answer\nfailed\tServices update nfacct\tit reads a counter that kube-proxy's mode iptables has\nskipped\tCloud should c\tonly on GCE\n"; b.String() != want {
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
		{Set: "smoke", DataPlane: "kube-proxy-nftables", Nodes: 2, Kubernetes: "v1.37.1", Runtime: "containerd 1.6.20", Cgroups: 2, Kernel: "6.12.1", Tests: []Test{{Title: "[sig-network] a", State: Passed}}},
		{Set: "conformance", DataPlane: "sluice", Nodes: 3, Kubernetes: "v1.37.1", Runtime: "containerd 1.6.20", Cgroups: 2, Kernel: "6.12.1", Tests: []Test{{Title: "[sig-network] a", State: Passed}}},
		{Set: "conformance", DataPlane: "sluice", Nodes: 3, Kubernetes: "v1.37.1", Runtime: "containerd 1.6.20", Cgroups: 2, Kernel: "6.12.1", Tests: []Test{
			{Title: "[sig-network] a|b", State: Failed, Reason: "<nil>", Cause: ""}, {Title: "[sig-network] c", State: Skipped, Reason: "no cloud"}, {Title: "[sig-network] d", State: Passed},
		}},
		{Set: "conformance", DataPlane: "sluice", Nodes: 3, Kubernetes: "v1.37.1", Runtime: "containerd 2.4.2", Cgroups: 2, Kernel: "6.12.1", Tests: []Test{{Title: "[sig-network] a", State: Passed}}},
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
		"| conformance | sluice | Kubernetes 1.37.1, containerd 1.6.20, cgroups v2, Linux 6.12.1 | 3 | 1 | 1 | 0 | 1 | 0s |\n",
		"Linux 6.12.1 | 3 | 1 | 0 | 0 | 0 | 0s |\n| smoke | kube-proxy-nftables |",
		"| a\\|b | failed | &lt;nil> |\n| c | skipped | no cloud |\n",
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
		{"CNPAdminTierGress Should support an 'allow-gress' policy", "cluster-network-policy"},
		{"E2E Suite [Top Level] L2 type=Loadbalancer should work for ExternalTrafficPolicy=Cluster", "metallb"},
		{"E2E Suite [Top Level] BGP A service of protocol load balancer should work with ETP=local IPV4", "metallb"},
		{"E2E Suite [Top Level] BGP BFD should work with the given bfd profile IPV4 - default", ""},
		{"E2E Suite [Top Level] Webhooks For BGPPeer Should reject invalid BGPPeer IP address", ""},
		{"[sig-node] Pods should be submitted and removed [Conformance]", ""},
	} {
		var in []string
		for _, s := range Sets {
			if regexp.MustCompile(s.Focus).MatchString(tc.title) && !(s.Skip != "" && regexp.MustCompile(s.Skip).MatchString(tc.title)) {
				in = append(in, s.Name)
			}
		}
		if slices.Sort(in); strings.Join(in, " ") != tc.in {
			t.Errorf("%s: in %v, want %s", tc.title, in, tc.in)
		}
	}
}

// What Go's tests print: tests within tests, one of which is tried again before it passes.
const goText = `=== RUN   TestConformanceProfiles
    profile_test.go:98: Running
=== RUN   TestConformanceProfiles/CNPFirst
    suite.go:7: Applying a
=== RUN   TestConformanceProfiles/CNPFirst/Should_pass_'a'
    helper.go:9: not yet
--- PASS: TestConformanceProfiles/CNPFirst/Should_pass_'a' (1.50s)
=== RUN   TestConformanceProfiles/CNPFirst/Should_deny
    helper.go:9: Command was x
    helper.go:10: no answer
    helper.go:11: 
        	Error Trace:	helper.go:11
        --- FAIL: TestConformanceProfiles/CNPFirst/Should_deny (10.00s)
=== RUN   TestConformanceProfiles/CNPFirst/Should_speak_SCTP
    helper.go:10: stderr: TIMEOUT
        --- FAIL: TestConformanceProfiles/CNPFirst/Should_speak_SCTP (10.00s)
=== NAME  TestConformanceProfiles/CNPFirst
    suite.go:8: done
    --- FAIL: TestConformanceProfiles/CNPFirst (21.50s)
=== RUN   TestConformanceProfiles/CNPSecond
    suite.go:20: it needs nodes
    --- SKIP: TestConformanceProfiles/CNPSecond (0.00s)
=== RUN   TestConformanceProfiles/CNPThird
=== RUN   TestConformanceProfiles/CNPThird/Should_pass
        --- PASS: TestConformanceProfiles/CNPThird/Should_pass (0.10s)
=== NAME  TestConformanceProfiles/CNPThird
    suite.go:9: cannot clean up
    --- FAIL: TestConformanceProfiles/CNPThird (1.00s)
--- FAIL: TestConformanceProfiles (22.00s)
FAIL
`

// asJSON marks what the tests say of themselves, as they do for test2json.
func asJSON(text string) string {
	return regexp.MustCompile(`(?m)^ *(===|---)`).ReplaceAllString(text, "\x16$1")
}

// A test of Go counts if it has none below, or if none below it explains that it has failed.
func TestGoReport(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, outputFile), []byte(asJSON(goText)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, conformanceReport), []byte("kind: ConformanceReport\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := clusterPolicies.read(dir)
	if err != nil {
		t.Fatal(err)
	}
	r.finish()
	r.Set, r.DataPlane, r.Runtime, r.Kernel = "cluster-network-policy", "sluice", "containerd 1.6.20", "6.18.44"
	want := []Test{
		{Title: "CNPFirst Should deny", State: Failed, Took: 10 * time.Second, Reason: "no answer"},
		{Title: "CNPFirst Should pass 'a'", State: Passed, Took: 1500 * time.Millisecond},
		{Title: "CNPFirst Should speak SCTP", State: Failed, Took: 10 * time.Second, Reason: "stderr: TIMEOUT"},
		{Title: "CNPSecond", State: Skipped, Reason: "it needs nodes"},
		{Title: "CNPThird", State: Failed, Took: time.Second, Reason: "cannot clean up"},
		{Title: "CNPThird Should pass", State: Passed, Took: 100 * time.Millisecond},
	}
	if !slices.Equal(r.Tests, want) {
		t.Errorf("tests:\n%+v\nwant:\n%+v", r.Tests, want)
	}
	var last Counts
	countGo(strings.NewReader(asJSON(goText)), func(n Counts) { last = n })
	if last != (Counts{Passed: 2, Failed: 3}) {
		t.Errorf("counted %+v", last)
	}
	if text, err := os.ReadFile(filepath.Join(dir, junitFile)); err != nil || !strings.Contains(string(text), `<testcase name="CNPSecond" time="0">`) || strings.Count(string(text), "<failure") != 3 {
		t.Errorf("JUnit's report: %v\n%s", err, text)
	}
	if err := Keep(dir, r); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"cluster-network-policy-sluice-containerd-1-linux-6.18.yaml": "kind: ConformanceReport\n", "README.md": "| [cluster-network-policy](cluster-network-policy-sluice-containerd-1-linux-6.18.yaml) | sluice |"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
}

// What Ginkgo 1 writes: tests that were not chosen are skipped without a reason.
const ginkgo1Text = `<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="E2E Suite" tests="3" failures="1" errors="0" time="9">
 <testcase name="L2 should work" classname="E2E Suite" time="1.5"></testcase>
 <testcase name="L2 should be fast" classname="E2E Suite" time="2"><failure type="Failure">/go/l2.go:12
Timed out after 120s.
Expected
/go/l2.go:20</failure></testcase>
 <testcase name="BGP should work" classname="E2E Suite" time="0"><skipped message="/go/bgp.go:1&#xA;Not enough nodes"></skipped></testcase>
 <testcase name="Webhooks should reject" classname="E2E Suite" time="0"><skipped></skipped></testcase>
</testsuite>`

func TestGinkgo1(t *testing.T) {
	dir := t.TempDir()
	if _, err := readGinkgo1(dir); err == nil {
		t.Error("a report that is not there is read")
	}
	if err := os.Mkdir(filepath.Join(dir, "details"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "details", "junit_01.xml"), []byte(ginkgo1Text), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := readGinkgo1(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []Test{
		{Title: "L2 should work", State: Passed, Took: 1500 * time.Millisecond},
		{Title: "L2 should be fast", State: Failed, Took: 2 * time.Second, Reason: "Timed out after 120s."},
		{Title: "BGP should work", State: Skipped, Reason: "Not enough nodes"},
	}
	if !slices.Equal(r.Tests, want) {
		t.Errorf("tests:\n%+v\nwant:\n%+v", r.Tests, want)
	}
	var last Counts
	countGinkgo(strings.NewReader("Will run 3 of 4 specs\n•\n------------------------------\n• [SLOW TEST:9.000 seconds]\nL2\n• Failure [2.000 seconds]\nL2\n  [Fail] a\n•SS•"), func(n Counts) { last = n })
	if last != (Counts{Passed: 4, Failed: 1}) {
		t.Errorf("counted %+v", last)
	}
}
