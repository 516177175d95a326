package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/policy/question"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/probe"
)

// harbour says who may reach whose service: twelve workloads in two namespaces. All may reach the
// gate.
var harbour = map[string][]string{
	"quay/crane":   {"quay/yard", "quay/pilot", "port/office"},
	"quay/gate":    {"*"},
	"quay/pilot":   nil,
	"quay/tug":     {"quay/pilot", "quay/radar"},
	"quay/radar":   {"quay/pilot", "quay/weather"},
	"quay/weather": {"quay/pilot", "quay/tug", "port/office", "quay/radar", "quay/gate"},
	"quay/yard":    {"quay/crane"},
	"port/customs": {"quay/gate", "port/depot", "port/office", "quay/crane"},
	"port/depot":   {"quay/crane", "quay/yard", "port/customs"},
	"port/ledger":  {"port/customs", "port/depot", "port/office"},
	"port/mail":    {"port/office", "port/customs", "quay/gate"},
	"port/office":  nil,
}

// harbourManifests writes the harbour as an application: everything is denied, except for one
// policy for each workload.
func harbourManifests() string {
	var b strings.Builder
	for _, ns := range []string{"quay", "port"} {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {part-of: harbour}}\n", ns)
		fmt.Fprintf(&b, "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: nobody, namespace: %s}\n"+
			"spec: {podSelector: {}, policyTypes: [Ingress, Egress]}\n", ns)
	}
	for _, name := range slices.Sorted(maps.Keys(harbour)) {
		namespace, app, _ := strings.Cut(name, "/")
		fmt.Fprintf(&b, `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  template:
    metadata: {labels: {app: %[2]s}}
    spec: {containers: [{name: %[2]s, ports: [{name: talk, containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s}
spec: {ipFamilyPolicy: PreferDualStack, selector: {app: %[2]s}, ports: [{port: 80, targetPort: talk}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %[2]s, namespace: %[1]s}
spec: {podSelector: {matchLabels: {app: %[2]s}}, policyTypes: [Ingress, Egress], egress: [{}], ingress: [%[3]s]}
`, namespace, app, strings.Join(harbourRules(harbour[name]), ", "))
	}
	return b.String()
}

// harbourRules are ingress rules for the clients.
func harbourRules(clients []string) []string {
	var rules []string
	for _, c := range clients {
		namespace, app, _ := strings.Cut(c, "/")
		peer := fmt.Sprintf("{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}, podSelector: {matchExpressions: [{key: app, operator: In, values: [%s]}]}}", namespace, app)
		if c == "*" {
			peer = "{namespaceSelector: {matchLabels: {part-of: harbour}}}"
		}
		rules = append(rules, "{from: ["+peer+"], ports: [{port: talk}]}")
	}
	return rules
}

// reach lists the pairs of a table that pass, as "client to service:port".
func reach(p *probe.Pairs) map[string]bool {
	pass := map[string]bool{}
	for i, client := range p.Clients {
		for j, cell := range p.Cells[i] {
			if cell.Passed && !cell.Own {
				pass[client+" to "+p.Ports[j]] = true
			}
		}
	}
	return pass
}

// Real pods fill the table of who reaches what, and it agrees with the policies: 37 of the
// harbour's 132 pairs pass. It follows when a policy is deleted.
func TestLabShowsWhoMayReachWhat(t *testing.T) {
	t.Parallel()
	needRoot(t)
	name := named("testwho")
	app := filepath.Join(t.TempDir(), "harbour.yaml")
	if err := os.WriteFile(app, []byte(harbourManifests()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Down(name); err != nil {
			t.Error(err)
		}
	})
	var out bytes.Buffer
	o := labOptions{name: name, nodes: 3, sluice: os.Getenv(cli.SluiceEnv)}
	l, err := o.up(t.Context(), &out, []string{app})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if len(l.Warnings) > 0 {
		t.Errorf("warnings: %q", l.Warnings)
	}
	want := map[string]bool{}
	for server, clients := range harbour {
		for _, c := range clients {
			want[c+" to "+server+":80"] = true
		}
		for other := range harbour {
			if slices.Equal(clients, []string{"*"}) && other != server {
				want[other+" to "+server+":80"] = true
			}
		}
	}
	delete(want, "* to quay/gate:80")
	checkPairs(t, l, 37, want)
	checkWhy(t, l, want)
	if got := execute(t.Context(), []string{"lab", "probe", "--name", name, "--requests", "1"}, &out, &out); got != cli.ExitOK || !strings.Contains(out.String(), "37 of 132 pairs of client and port pass, as the policies say") {
		t.Errorf("exit status %d, and no count of the pairs:\n%s", got, out.String())
	}

	// Without its own policy, only the policies that deny everything apply to the ledger.
	err = l.Change(t.Context(), func(c *plan.Cluster) error {
		c.Policies = slices.DeleteFunc(c.Policies, func(p plan.Policy) bool { return p.Name == "ledger" })
		return nil
	})
	if err == nil {
		err = l.Sync(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	// Nor may it send anything.
	maps.DeleteFunc(want, func(pair string, _ bool) bool { return strings.Contains(pair, "ledger") })
	checkPairs(t, l, 33, want)
}

// checkPairs probes a lab and compares the passing pairs with the expected ones.
func checkPairs(t *testing.T, l *lab.Lab, pass int, want map[string]bool) {
	t.Helper()
	rep, err := l.Probe(t.Context(), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p := rep.Pairs; p.Pass != pass || p.Expected != pass || p.Count != 132 {
		t.Errorf("%d of %d pairs pass and %d should, want %d of 132", p.Pass, p.Count, p.Expected, pass)
	}
	if got := reach(rep.Pairs); !maps.Equal(got, want) {
		t.Errorf("pairs that pass: %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	if rep.Failed > 0 {
		var b strings.Builder
		rep.Table(&b)
		t.Errorf("%d of %d requests had a wrong outcome:\n%s", rep.Failed, rep.Requests, b.String())
	}
}

// checkWhy asks every node's agent about each pair of pods, through the service and without: each
// gives the answer that the packets gave.
func checkWhy(t *testing.T, l *lab.Lab, passes map[string]bool) {
	t.Helper()
	for _, node := range l.Status(t.Context()).Nodes {
		client := agent.NewClient(node.Socket)
		for _, from := range l.Cluster.Pods {
			for _, to := range l.Cluster.Pods {
				pair := plan.WorkloadOf(from) + " to " + plan.WorkloadOf(to) + ":80"
				for _, target := range []string{"svc/" + plan.WorkloadOf(to) + ":80", to.Namespace + "/" + to.Name + ":talk"} {
					q, err := question.Parse(from.Namespace+"/"+from.Name, target)
					if err != nil {
						t.Fatal(err)
					}
					e, err := client.Explain(t.Context(), q)
					if err != nil {
						t.Fatalf("%s asked about %v to %s: %v", node.Name, q.From, target, err)
					}
					want := verdict.Denied
					if passes[pair] || from == to {
						want = verdict.Allowed
					}
					if e.Outcome != want {
						t.Errorf("on %s, why says %v of %v to %s, the kernel says %v:\n%v", node.Name, e.Outcome, q.From, target, want, e.Connections)
					}
				}
			}
		}
	}
}
