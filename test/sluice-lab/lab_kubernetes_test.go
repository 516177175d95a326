package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/load"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/machine"
	"sluice.dev/sluice/test/netns"
)

// webApp is an application with a client that runs on the first node. Its pods answer longer after
// the stop signal than an agent may need to hear of it from an API server that was away.
const webApp = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 2}}
  template:
    metadata: {labels: {app: web}, annotations: {lab.sluice.dev/drain: 12s}}
    spec:
      containers: [{name: web, image: web, ports: [{name: http, containerPort: 8080}], readinessProbe: {httpGet: {port: http}, periodSeconds: 1}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 80, targetPort: http, nodePort: 30080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: node1
  containers: [{name: client, image: client}]
`

// TestLabKubernetes changes an application under load with real clients of a real control plane. No
// request fails, whatever kubectl does, while the API server is away, or while an agent is.
func TestLabKubernetes(t *testing.T) {
	t.Parallel()
	needRoot(t)
	machine.ControlPlane.Take(t)
	name := named("testkube")
	file := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(file, []byte(webApp), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Down(name); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob(filepath.Join(netns.Dir, "sluice-lab-"+name+"-*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	var progress bytes.Buffer
	o := labOptions{name: name, nodes: 3, sluice: os.Getenv(cli.SluiceEnv), withKubernetes: true, agent: agentProcess}
	l, err := o.up(t.Context(), &progress, []string{file})
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	if len(l.Warnings) > 0 {
		t.Errorf("warnings: %q", l.Warnings)
	}
	stop := requests(t, l)
	kubectl := func(args ...string) {
		t.Helper()
		err := l.Plane(func(p *control.Plane) error {
			if out, err := p.Kubectl(args...); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	rolled := func() { t.Helper(); kubectl("rollout", "status", "deployment/web", "--timeout=120s") }

	kubectl("scale", "deployment/web", "--replicas=8")
	rolled()
	kubectl("rollout", "restart", "deployment/web")
	rolled()
	kubectl("drain", "node3", "--ignore-daemonsets", "--force", "--timeout=60s")
	rolled()
	kubectl("uncordon", "node3")
	if err := l.Plane(func(p *control.Plane) error { return p.Restart(t.Context(), control.APIServer) }); err != nil {
		t.Fatal(err)
	}
	kubectl("delete", "pod", "-l", "app=web", "--wait=false", "--field-selector=spec.nodeName=node2")
	rolled()
	restartAgent(t, l, "node1")
	kubectl("scale", "deployment/web", "--replicas=2")
	rolled()
	stop()

	// A pod that cannot be placed does not stop the lab, and a dead process is named and restarted.
	kubectl("create", "deployment", "unplaced", "--image=none")
	kubectl("patch", "deployment", "unplaced", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"no":"where"}}}}}`)
	if err := l.KillProxy("node2"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"lab", "status", "--name", name}, cli.ExitError, "agent on node2 has died; 'sluice lab restart --name " + name + " node2'"},
		{[]string{"lab", "up", "--kubernetes", "--name", name}, cli.ExitError, "it is up, though agent on node2 has died"},
		{[]string{"lab", "restart", "--name", name, "node9"}, cli.ExitError, "no node of that name; choose from node1, node2, node3, control, outside"},
		{[]string{"lab", "restart", "--name", name, "node2", "control", "outside"}, cli.ExitOK, ""},
	} {
		var out bytes.Buffer
		if code := execute(t.Context(), tc.args, &out, &out); code != tc.exit || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%v: exit status %d, want %d and %q in:\n%s", tc.args, code, tc.exit, tc.want, out.String())
		}
	}
	if rep, err := l.Probe(t.Context(), 1, []string{"web"}); err != nil || rep.Requests == 0 {
		t.Errorf("probe beside a pod without a node: %v", err)
	}
	kubectl("delete", "deployment", "unplaced")
	if err := l.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	rep, err := l.Probe(t.Context(), 2, []string{"web"})
	if err != nil || rep.Failed > 0 || rep.Requests == 0 {
		t.Errorf("probe: %v: %+v", err, rep)
	}
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"lab", "status", "--name", name}, &out, &out); code != cli.ExitOK || strings.Count(out.String(), "in sync") != 3 {
		t.Errorf("status: exit status %d:\n%s", code, out.String())
	}
	// A command on a node can run one on another.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	execOn(t, l, "node1", self, "lab", "exec", "--name", name, "node2", "--", "sluice", "status")
}

// restartAgent restarts the agent of a node from a command line, and nothing else there.
func restartAgent(t *testing.T, l *lab.Lab, node string) {
	t.Helper()
	dir := filepath.Join(lab.Dir, l.Name, node)
	agent, kubelet := process.Find(dir, "agent"), process.Find(dir, "kubelet")
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"lab", "restart", "--name", l.Name, node, "--agent-only"}, &out, &out); code != cli.ExitOK {
		t.Fatalf("restart --agent-only: exit status %d: %s", code, out.String())
	}
	if agent.Alive() || !process.Find(dir, "agent").Alive() {
		t.Errorf("the agent of %s was %v and is %v", node, agent, process.Find(dir, "agent"))
	}
	if kubelet != process.Find(dir, "kubelet") || l.Kubernetes != nil && !kubelet.Alive() {
		t.Errorf("the kubelet of %s was %v and is %v", node, kubelet, process.Find(dir, "kubelet"))
	}
}

// requests sends requests from a pod, a node and the outside host, until the returned function is
// called, which reports those that failed.
func requests(t *testing.T, l *lab.Lab) (stop func()) {
	t.Helper()
	service := l.Cluster.Services[1] // the first is the API server's
	cluster, node := plan.ClusterIPs(service), l.Cluster.Nodes[1].IPs
	all, err := load.Start(load.Config{Every: 50 * time.Millisecond, Short: true, Routes: []load.Route{
		{From: l.NodeNS("client.default"), To: netip.AddrPortFrom(cluster[0], 80)},
		{From: l.NodeNS("client.default"), To: netip.AddrPortFrom(cluster[1], 80)},
		{From: l.NodeNS("node1"), To: netip.AddrPortFrom(cluster[0], 80)},
		{From: l.NodeNS(plan.Outside), To: netip.AddrPortFrom(node[0], 30080)},
		{From: l.NodeNS(plan.Outside), To: netip.AddrPortFrom(node[1], 30080)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		sent, err := all.Outcome()
		if err != nil {
			t.Error(err)
		}
		t.Logf("%d requests", sent)
	})
	t.Cleanup(stop)
	return stop
}

func TestKubectlArguments(t *testing.T) {
	for _, tc := range []struct {
		line, name, rest string
		help             bool
	}{
		{"get pods", "default", "get pods", false},
		{"-n shop get pods --name x", "default", "-n shop get pods --name x", false},
		{"--name a -n shop get pods", "a", "-n shop get pods", false},
		{"--name=a get pods", "a", "get pods", false},
		{"--name a -- -n shop", "a", "-n shop", false},
		{"--help", "default", "", true},
		{"", "default", "", false},
	} {
		name, rest, help := kubectlArguments(strings.Fields(tc.line))
		if got := strings.Join(rest, " "); name != tc.name || got != tc.rest || help != tc.help {
			t.Errorf("%q: %q %q %v", tc.line, name, got, help)
		}
	}
}
