package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/machine"
	"sluice.dev/sluice/test/netns"
)

// emptyLab brings up a lab without an application from a command line.
func emptyLab(t *testing.T, name string, flags ...string) *lab.Lab {
	t.Helper()
	needRoot(t)
	name = named(name)
	t.Cleanup(func() {
		if err := lab.Down(name); err != nil {
			t.Error(err)
		}
	})
	var stdout, stderr bytes.Buffer
	args := append([]string{"lab", "up", "--empty", "--name", name}, flags...)
	if code := execute(t.Context(), args, &stdout, &stderr); code != cli.ExitOK {
		t.Fatalf("%v: exit status %d\n%s%s", args, code, stdout.String(), stderr.String())
	}
	l, err := openLab(name)
	if err != nil {
		t.Fatal(err)
	}
	if l.Kubernetes == nil && !strings.Contains(stdout.String(), " no pods, ") || !strings.Contains(stdout.String(), "it runs no application") {
		t.Errorf("%v prints:\n%s", args, stdout.String())
	}
	return l
}

func TestLabEmpty(t *testing.T) {
	t.Parallel()
	l := emptyLab(t, "testempty", "--nodes", "2")
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"lab", "status", "--name", l.Name}, &out, &out); code != cli.ExitOK || strings.Count(out.String(), "in sync") != 2 {
		t.Errorf("status: exit status %d:\n%s", code, out.String())
	}
	checkListed(t, l, "up", "running")
	restartAgent(t, l, "node2")
	if err := l.KillProxy("node2"); err != nil {
		t.Fatal(err)
	}
	checkListed(t, l, "dead", "1 of 2 running")
	restartAgent(t, l, "node2")
	checkListed(t, l, "up", "running")
	if entries, err := filepath.Glob(filepath.Join(lab.Dir, l.Name, "manifests", "pod.*")); err != nil || len(entries) > 0 {
		t.Errorf("an empty lab has pods: %v %v", entries, err)
	}
}

// A lab says which accelerators are off that its agents were to have.
func TestLabWithoutAccelerator(t *testing.T) {
	t.Parallel()
	l := emptyLab(t, "testslow", "--nodes=1", "--agent-flag=--accelerate=established", "--agent-flag=--set-sysctls=false")
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"lab", "status", "--name", l.Name}, &out, &out); code != cli.ExitOK || !strings.Contains(out.String(), "agents: accelerator established is off: it needs") {
		t.Errorf("status: exit status %d:\n%s", code, out.String())
	}
}

// checkListed checks a lab's line in the list of all labs.
func checkListed(t *testing.T, l *lab.Lab, state, agents string) {
	t.Helper()
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"lab", "list"}, &out, &out); code != cli.ExitOK {
		t.Errorf("list: exit status %d:\n%s", code, out.String())
	}
	plane := "none"
	if l.Kubernetes != nil {
		plane = "Kubernetes"
	}
	since := l.Cluster.Created.Local().Format(time.DateTime)
	line := fmt.Sprintf(`(?m)^%s +%s +%d +%d +%s +%s +%s$`, l.Name, state, len(l.Cluster.Nodes), len(l.Cluster.Pods), since, agents, plane)
	if !regexp.MustCompile(line).MatchString(out.String()) {
		t.Errorf("no line like %q:\n%s", line, out.String())
	}
	out.Reset()
	execute(t.Context(), []string{"lab", "list", "-o", "json"}, &out, &out)
	var labs lab.Labs
	if err := json.Unmarshal(out.Bytes(), &labs); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(labs, func(s lab.Summary) bool { return s.Name == l.Name && s.State == state && s.Agents == agents }) {
		t.Errorf("%s is not %q, %q in %s", l.Name, state, agents, out.String())
	}
}

// Manifests that a user applies to an empty lab with an API run there, and answer, also on the pod
// network that the agents make. The agents have learned of their BGP peer from the API.
func TestLabEmptyKubernetes(t *testing.T) {
	t.Parallel()
	machine.ControlPlane.Take(t)
	l := emptyLab(t, "testemptykube", "--kubernetes", "--crds", "--fabric", "bgp")
	checkBGP(t, l)
	file := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(file, []byte(webApp), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := l.Apply(file); err != nil {
		t.Fatal(err)
	}
	if err := l.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(l.Warnings) > 0 {
		t.Errorf("warnings: %q", l.Warnings)
	}
	checkListed(t, l, "up", "running")
	checkProbe(t, l)
	checkPolicies(t, l)
	checkFinished(t, l)
	followRecipes(t, l)
	checkKubectl(t, l)
}

// checkFinished asks about a pod that has finished, which the agent does not follow any more.
func checkFinished(t *testing.T, l *lab.Lab) {
	t.Helper()
	var pod []byte
	err := l.Plane(func(p *control.Plane) (err error) {
		for _, args := range [][]string{
			{"create", "job", "once", "--image=busybox", "--", "true"},
			{"wait", "--for=condition=complete", "--timeout=60s", "job/once"},
			{"get", "pod", "-l", "job-name=once", "-o", "jsonpath={.items[0].metadata.name}"},
		} {
			if pod, err = p.Kubectl(args...); err != nil {
				return fmt.Errorf("%v: %w: %s", args, err, pod)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "lab", "exec", "--name", l.Name, "node1", "--", "sluice", "why", string(pod), "svc/web")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "pod default/"+string(pod)+" has finished") {
		t.Errorf("why %s: %v: %s", pod, err, out)
	}
}

// published are policies of all kinds for which --crds has the API serve definitions, as their
// users write them. Each keeps the client from the web.
var published = map[string]string{
	"ClusterNetworkPolicy": `
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: no-web}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}
  ingress: [{name: client, action: Deny, from: [{namespaces: {}}]}]
`,
	"Calico's NetworkPolicy in a Tier": `
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: security}
spec: {order: 10}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: security.no-web, namespace: default}
spec: {tier: security, order: 1, selector: app == 'web', types: [Ingress], ingress: [{action: Deny, source: {selector: all()}}, {action: Pass}]}
`,
	"GlobalNetworkPolicy with a NetworkSet": `
apiVersion: projectcalico.org/v3
kind: GlobalNetworkSet
metadata: {name: pods, labels: {role: pods}}
spec: {nets: [10.244.0.0/16, "fd00:10:244::/56"]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: no-web}
spec: {selector: app == 'web', types: [Ingress], ingress: [{action: Deny, source: {selector: role == 'pods'}}]}
`,
}

func checkPolicies(t *testing.T, l *lab.Lab) {
	t.Helper()
	i := slices.IndexFunc(l.Cluster.Services, func(s *corev1.Service) bool { return s.Name == "web" })
	web := netip.AddrPortFrom(plan.ClusterIPs(l.Cluster.Services[i])[0], 80)
	passes := func(want bool) bool {
		ns, err := netns.Open(l.NodeNS("client.default"))
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		err = ns.Do(func() error { _, err := echo.Ask("TCP", web, time.Second); return err })
		return (err == nil) == want
	}
	for name, policy := range published {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(file, []byte(policy), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			verb   string
			passes bool
		}{{"apply", false}, {"delete", true}} {
			err := l.Plane(func(p *control.Plane) error {
				if out, err := p.Kubectl(step.verb, "-f", file); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for end := time.Now().Add(time.Minute); !passes(step.passes); {
				if time.Now().After(end) {
					t.Fatalf("%s: after %s, the client reaches the web: %t", name, step.verb, !step.passes)
				}
			}
		}
	}
}
