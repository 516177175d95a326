package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/netns"
)

const webService = `
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
`

// answeredBy is the first try of a cluster from a node, as a failure, with its requests answered by
// the given pods.
func answeredBy(tries []Try, pods ...string) Result {
	i := slices.IndexFunc(tries, func(t Try) bool { return t.Source.Kind == FromNode })
	r := Result{Try: tries[i], Sent: 2, By: map[string]int{}, Failed: 1, Reason: "odd"}
	for _, p := range pods {
		r.By["default/"+p]++
	}
	return r
}

// A rollout during requests is no failure. A wrong outcome in an unchanged cluster is one.
func TestFailuresOfAChangingClusterAreExcused(t *testing.T) {
	for _, tc := range []struct {
		name            string
		change          string // "", or what happens meanwhile
		by              []string
		failed, excused int
	}{
		{"nothing changed", "", nil, 1, 0},
		{"answered by a new pod", "rollout", []string{"web-1", "new-2"}, 0, 0},
		{"answered by none", "rollout", nil, 0, 1},
		{"answered by a pod in between", "rollout", []string{"web-1", "between-1"}, 0, 1},
		{"endpoints that went and came", "version", nil, 0, 1},
		{"the service is gone", "gone", nil, 0, 1},
	} {
		before, after := cluster(t, webService), cluster(t, webService)
		tries, _ := Tries(before, sources(before))
		results := []Result{answeredBy(tries, tc.by...)}
		switch tc.change {
		case "rollout":
			for _, s := range after.Slices {
				s.ResourceVersion = "2"
				for i := range s.Endpoints {
					s.Endpoints[i].TargetRef.Name = strings.Replace(s.Endpoints[i].TargetRef.Name, "web", "new", 1)
				}
			}
		case "version":
			for _, s := range after.Slices {
				s.ResourceVersion = "2"
			}
		case "gone":
			after.Services = nil
		}
		now, _ := Tries(after, sources(after))
		Excuse(results, before, after, now)
		if r := results[0]; r.Failed != tc.failed || r.Excused != tc.excused {
			t.Errorf("%s: %d failed, %d excused, want %d and %d", tc.name, r.Failed, r.Excused, tc.failed, tc.excused)
		}
	}
}

// A pod may go at any moment. While its namespace is being removed or made, the file with its name
// is not a namespace.
func TestASourceThatIsGoneDoesNotEndTheProbe(t *testing.T) {
	c := cluster(t, webService)
	gone := sources(c)[2]
	gone.NetNS = fmt.Sprintf("sluice-lab-testgone-%d", os.Getpid())
	tries, _ := Tries(c, []Source{gone})
	check := func() {
		t.Helper()
		results, err := Run(t.Context(), tries, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Failed != 1 || !strings.Contains(r.Reason, "gone") || r.Service != "default/web" {
				t.Errorf("%+v", r)
			}
		}
		if len(results) == 0 {
			t.Error("no results")
		}
	}
	check()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have a file where network namespaces are")
	}
	path := filepath.Join(netns.Dir, gone.NetNS)
	if err := os.MkdirAll(netns.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
	check()
}

func TestReportOfWhatIsExcused(t *testing.T) {
	c := cluster(t, webService)
	tries, _ := Tries(c, sources(c))
	r := answeredBy(tries)
	r.Excused, r.Failed, r.Of = 1, 0, "default/client"
	rep := NewReport([]Result{r}, nil)
	rep.AddPairs([]Result{r})
	var b strings.Builder
	rep.Table(&b)
	if text := b.String(); !strings.Contains(text, "not checked: the cluster changed meanwhile: odd") || !strings.Contains(text, "? not checked") {
		t.Errorf("table:\n%s", text)
	}
	if s := rep.Summary(); rep.Failed != 0 || !strings.Contains(s, "all as they should be, except for 2 while the cluster changed") || !strings.Contains(s, "no client has another's service to ask") {
		t.Errorf("%d failed; summary: %s", rep.Failed, s)
	}
}

// kube-proxy may leave pods without an answer at another node's port of a service with policy
// Local; Sluice may not.
func TestWhatDiffersWithKubeProxy(t *testing.T) {
	c := cluster(t, `
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, nodePort: 30080}]}
`)
	tries, _ := Tries(c, sources(c))
	OfKubeProxy(c, tries)
	n := 0
	for _, try := range tries {
		past := try.Source.Kind == FromPod && try.Frontend.Kind == NodePort && try.Source.Node != try.Frontend.Node
		if past != (try.Fate == Differs) {
			t.Errorf("%s to %v: %v", try.Source.Name, try.Frontend, try.Expect)
		}
		if !past {
			continue
		}
		n++
		for err, fine := range map[error]bool{echo.ErrSilent: true, echo.ErrRefused: false} {
			r := Result{Try: try, By: map[string]int{}}
			if got := r.check(echo.Answer{}, err); (got == "") != fine {
				t.Errorf("%v: %q", err, got)
			}
		}
	}
	if n == 0 {
		t.Error("no try differs")
	}
}
