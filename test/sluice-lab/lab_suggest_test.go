package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/plan"
)

// TestSuggestionsLetPacketsPass applies what `why --suggest` prints, for connections between some
// workloads: each passes then, and no other that did not, but between pods of the same workloads to
// the same port. (policytest's TestSuggestions does so for random policies, without packets.)
func TestSuggestionsLetPacketsPass(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "corners.yaml")
	if err := os.WriteFile(file, []byte(corners), 0o600); err != nil {
		t.Fatal(err)
	}
	l := upLab(t, "testwhysug", file)
	client := agent.NewClient(l.Status(t.Context()).Nodes[0].Socket)
	given, before := policyTexts(l), podCases(l)
	sendAll(t, before, allowed(askWhy(t, l, before, inTurn)))
	asked, applied := map[string]bool{}, 0
	for i := range before {
		c := &before[i]
		if c.err == nil || asked[ends(l, c)] {
			continue
		}
		if asked[ends(l, c)] = true; len(asked)%pairsPerSuggestion != 0 {
			continue
		}
		q := c.question(t)
		q.Suggest = true
		e, err := client.Explain(t.Context(), q)
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		if len(e.NoRemedy) > 0 {
			t.Logf("%s: %v", c, e.NoRemedy)
			continue
		}
		texts, yamls := slices.Clone(given), ""
		for _, s := range e.Suggested {
			texts, yamls = append(texts, []byte(s.YAML)), yamls+"---\n"+s.YAML
		}
		setPolicies(t, l, texts...)
		applied++
		after := podCases(l)
		sendAll(t, after, func(j int) bool { return before[j].err == nil || i == j })
		for j := range after {
			if after[j].err != nil && (before[j].err == nil || i == j) { // a slow machine may lose a packet to the time-out
				send(t, []*whyCase{&after[j]}, answerTime)
			}
			switch was, is := before[j].err == nil, after[j].err == nil; {
			case is == was && i != j:
			case is && ends(l, &after[j]) == ends(l, c):
			case is == was:
				t.Errorf("%s is still denied with\n%s", c, yamls)
			default:
				t.Errorf("for %s, %s passes: %v, it was %v: %v\n%s", c, after[j], is, was, after[j].err, yamls)
			}
		}
	}
	if t.Logf("%d suggestions for %d pairs of workloads and ports", applied, len(asked)); applied == 0 {
		t.Error("nothing was suggested")
	}
}

// pairsPerSuggestion: of so many pairs of workloads and ports, one is asked about.
const pairsPerSuggestion = 3

// policyTexts are the lab's policies.
func policyTexts(l *lab.Lab) (texts [][]byte) {
	for _, p := range l.Cluster.Policies {
		texts = append(texts, p.Object)
	}
	return texts
}

// podCases are the cases that go from anywhere to a pod that is not on its node's network.
func podCases(l *lab.Lab) []whyCase {
	return slices.DeleteFunc(whyCases(l), func(c whyCase) bool {
		for _, p := range l.Cluster.Pods {
			if !p.Spec.HostNetwork && slices.Contains(plan.Addrs(p), c.to.Addr()) {
				return false
			}
		}
		return true
	})
}

// ends name the workloads of a case, and the port.
func ends(l *lab.Lab, c *whyCase) string {
	from, to := c.source.Name, ""
	for _, p := range l.Cluster.Pods {
		if p.Namespace+"/"+p.Name == c.source.Name {
			from = plan.WorkloadOf(p)
		}
		if slices.Contains(plan.Addrs(p), c.to.Addr()) {
			to = plan.WorkloadOf(p)
		}
	}
	return fmt.Sprintf("%s to %s:%d/%s", from, to, c.to.Port(), c.protocol)
}
