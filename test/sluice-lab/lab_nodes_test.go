package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/image"
	"sluice.dev/sluice/test/lab/node"
	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/machine"
	"sluice.dev/sluice/test/netns"
)

// nodesApp has of what a kubelet does with pods: images that are there and one that is not, an init
// container, a sidecar, probes, a volume, a Job, and a program that fails.
const nodesApp = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]
      initContainers: [{name: migrate, image: nobody.invalid/migrate:1, command: [migrate]}]
      containers:
      - name: web
        image: nobody.invalid/web:1
        command: [web]
        ports: [{containerPort: 80}, {containerPort: 5300, protocol: UDP}]
        readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}
        livenessProbe: {grpc: {port: 80}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80}, {name: names, port: 5300, protocol: UDP}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: words}
data: {word: sluice}
---
apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  nodeName: node1
  initContainers:
  - {name: sidecar, image: busybox, restartPolicy: Always, command: [sh, -c, "echo beside >/shared/said; sleep 1000000"], volumeMounts: [{name: shared, mountPath: /shared}]}
  containers:
  - name: box
    image: busybox
    command: [sh, -c, "trap exit TERM; sleep 1000000 & wait"]
    lifecycle: {postStart: {exec: {command: [sh, -c, "echo begun >/shared/hook"]}}}
    startupProbe: {exec: {command: [test, -e, /shared/said]}, periodSeconds: 1}
    resources: {limits: {memory: 64Mi}}
    volumeMounts: [{name: words, mountPath: /words}, {name: shared, mountPath: /shared}]
  volumes: [{name: words, configMap: {name: words}}, {name: shared, emptyDir: {}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: ask}
spec:
  template:
    spec:
      restartPolicy: OnFailure
      containers: [{name: ask, image: busybox, command: [sh, -c, "wget -q -O - http://web.default.svc.cluster.local/ && exit 0; sleep 1; exit 1"]}]
`

// TestLabNodes has real kubelets run pods as containers, with the agents installed as a
// DaemonSet, with all that makes them faster, and asks for what only they do. What a node loses
// when it is switched off comes back.
func TestLabNodes(t *testing.T) {
	t.Parallel()
	needRoot(t)
	machine.ControlPlane.Take(t)
	name := named("testnodes")
	file := filepath.Join(t.TempDir(), "app.yaml")
	if err := os.WriteFile(file, []byte(nodesApp), 0o644); err != nil {
		t.Fatal(err)
	}
	var l *lab.Lab
	t.Cleanup(func() {
		left := leftOf(l)
		if err := lab.Down(name); err != nil {
			t.Error(err)
		}
		if found := left(); len(found) > 0 {
			t.Errorf("left behind: %v", found)
		}
	})
	var progress bytes.Buffer
	o := labOptions{name: name, nodes: 2, sluice: os.Getenv(cli.SluiceEnv), withKubernetes: true, flags: []string{"--accelerate=sockets,drop,established"}}
	l, err := o.up(t.Context(), &progress, []string{file})
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	if len(l.Warnings) > 0 {
		t.Errorf("warnings: %q", l.Warnings)
	}
	k := &client{t, l}
	k.find(`"pod":"web-`, "logs", "job/ask")
	k.want("a volume", "sluice", "exec", "box", "-c", "box", "--", "cat", "/words/word")
	k.want("what a sidecar has written", "beside\n", "exec", "box", "-c", "box", "--", "cat", "/shared/said")
	k.want("the cluster's DNS", "Address", "exec", "box", "-c", "box", "--", "nslookup", "web.default.svc.cluster.local")
	k.want("a limit", "67108864\n", "exec", "box", "-c", "box", "--", "sh", "-c", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max")
	k.want("a token", "eyJ", "exec", "box", "-c", "box", "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
	k.want("what runs in place of an image", "the lab does not have the image nobody.invalid/web:1", "get", "events", "--field-selector=reason=StandIn", "-o", "jsonpath={..message}")
	if rep, err := l.Probe(t.Context(), 2, []string{"web"}); err != nil || rep.Failed > 0 || rep.Requests == 0 {
		t.Errorf("probe: %v: %+v", err, rep)
	}

	k.kubeletServes()

	// An agent that is killed is started again by the kubelet. Connections of gRPC go on.
	serves := k.serves("node2")
	agent := process.Behind(filepath.Join(lab.Dir, name, "node2", "run", "sluice.sock"))
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"lab", "restart", "--name", name, "node2", "--agent-only"}, &out, &out); code != cli.ExitOK || agent.Alive() {
		t.Errorf("restart --agent-only: exit status %d, the agent before it is alive: %v\n%s", code, agent.Alive(), out.String())
	}

	serves()

	// A program that fails is told as everywhere.
	k.want("a pod", "created", "run", "fails", "--image=busybox", "--restart=Always", "--", "sh", "-c", "exit 7")
	k.until("7", "get", "pod", "fails", "-o", "jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}")
	k.want("a pod", "deleted", "delete", "pod", "fails", "--now")

	// The power of a node goes, and comes back.
	before := k.get("get", "pod", "box", "-o", "jsonpath={.metadata.uid}")
	if code := execute(t.Context(), []string{"lab", "restart", "--name", name, "node1"}, &out, &out); code != cli.ExitOK {
		t.Errorf("restart: exit status %d\n%s", code, out.String())
	}
	k.until("1 true", "get", "pod", "box", "-o", "jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}")
	if err := l.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := k.get("get", "pod", "box", "-o", "jsonpath={.metadata.uid}"); after != before {
		t.Errorf("after the node came back there is another pod: %s, was %s", after, before)
	}
	if rep, err := l.Probe(t.Context(), 2, []string{"web"}); err != nil || rep.Failed > 0 || rep.Requests == 0 {
		t.Errorf("probe after the node came back: %v: %+v", err, rep)
	}
	k.want("the cluster's DNS, after the node came back", "Address", "exec", "box", "-c", "box", "--", "nslookup", "web.default.svc.cluster.local")

	// An image of one's own, where a stand-in ran.
	archive := filepath.Join(t.TempDir(), "own.tar")
	self, err := os.Executable()
	if err == nil {
		err = image.WriteOwn(archive, "nobody.invalid/web:1", "/bin/own", map[string]string{"bin/own": self})
	}
	if err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if code := execute(t.Context(), []string{"lab", "load", "--name", name, archive}, &out, &out); code != cli.ExitOK || !strings.Contains(out.String(), "nobody.invalid/web:1") {
		t.Errorf("load: exit status %d: %s", code, out.String())
	}
	k.want("a pod", "created", "-n", "kube-system", "run", "own", "--image=nobody.invalid/web:1", "--restart=Never", "--command", "--", "/bin/own", "lab", "--help")
	k.until("Succeeded", "-n", "kube-system", "get", "pod", "own", "-o", "jsonpath={.status.phase}")
	k.want("what the image's program says", "Run a cluster in network namespaces", "-n", "kube-system", "logs", "own")
}

// client asks a lab's API as people do.
type client struct {
	t *testing.T
	l *lab.Lab
}

func (c *client) kubectl(args ...string) (out []byte, err error) {
	planeErr := c.l.Plane(func(p *control.Plane) error {
		out, err = p.Kubectl(args...)
		return nil
	})
	if planeErr != nil {
		c.t.Fatal(planeErr)
	}
	return out, err
}

func (c *client) get(args ...string) string {
	c.t.Helper()
	out, err := c.kubectl(args...)
	if err != nil {
		c.t.Errorf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

func (c *client) want(what, want string, args ...string) {
	c.t.Helper()
	if got := c.get(args...); !strings.Contains(got, want) {
		c.t.Errorf("%s: %q, want %q in it", what, got, want)
	}
}

// serves has a client on a node ask the Service web by gRPC, and returns what asks again, which
// needs to be over the same connection.
func (c *client) serves(node string) (again func()) {
	c.t.Helper()
	ns, err := netns.Open(c.l.NodeNS(node))
	if err != nil {
		c.t.Fatal(err)
	}
	dials := 0
	target := "passthrough:" + net.JoinHostPort(c.get("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"), "80")
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(_ context.Context, address string) (conn net.Conn, err error) {
		dials++
		err = ns.Do(func() error { conn, err = net.Dial("tcp", address); return err })
		return conn, err
	}))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = errors.Join(conn.Close(), ns.Close()) })
	ask := func() {
		c.t.Helper()
		ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
		defer cancel()
		got, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err != nil || got.Status != grpc_health_v1.HealthCheckResponse_SERVING || dials != 1 {
			c.t.Errorf("health: %v, %v; over connection %d", got, err, dials)
		}
	}
	ask()
	return ask
}

// kubeletServes asks for what kubectl has from a kubelet, of a pod box.
func (c *client) kubeletServes() {
	c.t.Helper()
	c.want("what a hook has written", "begun\n", "exec", "box", "-c", "box", "--", "cat", "/shared/hook")
	c.want("a pod", "created", "run", "counts", "--image=busybox", "--restart=Never", "--", "sh", "-c", "while ! test -e /go; do sleep 0.1; done; for i in 1 2 3; do echo $i; sleep 0.3; done")
	c.until("Running", "get", "pod", "counts", "-o", "jsonpath={.status.phase}")
	followed := make(chan string, 1)
	go func() { followed <- c.get("logs", "-f", "counts") }()
	c.get("exec", "counts", "--", "touch", "/go")
	if got := <-followed; got != "1\n2\n3\n" {
		c.t.Errorf("logs -f: %q", got)
	}
	c.want("a debugger", "", "debug", "box", "--image=busybox", "--target=box", "--container=looks", "--", "cat", "/proc/1/cmdline")
	c.find("sleep", "logs", "box", "-c", "looks")
	copied := filepath.Join(c.t.TempDir(), "hook")
	c.get("cp", "-c", "box", "box:/shared/hook", copied)
	if text, err := os.ReadFile(copied); err != nil || string(text) != "begun\n" {
		c.t.Errorf("cp: %q, %v", text, err)
	}
	err := c.l.Plane(func(p *control.Plane) error {
		kubectl := func(args ...string) *exec.Cmd {
			return exec.CommandContext(c.t.Context(), filepath.Join(p.Bin, "kubectl"), append([]string{"--kubeconfig", p.Admin()}, args...)...)
		}
		var out bytes.Buffer
		attach := kubectl("run", "speaks", "--image=busybox", "--restart=Never", "-i", "--quiet", "--", "sed", "s/asked/answered/")
		attach.Stdin, attach.Stdout, attach.Stderr = strings.NewReader("asked\n"), &out, &out
		if err := p.NetNS.Start(attach); err != nil {
			return err
		}
		if err := attach.Wait(); err != nil || !strings.Contains(out.String(), "answered\n") {
			c.t.Errorf("attach: %v, %q", err, out.String())
		}
		forward := kubectl("port-forward", "service/web", "18080:80")
		if err := p.NetNS.Start(forward); err != nil {
			return err
		}
		defer func() { _ = errors.Join(forward.Process.Kill(), forward.Wait()) }() // it ends by the signal
		client := http.Client{Transport: &http.Transport{DialContext: p.Dial, DisableKeepAlives: true}, Timeout: 5 * time.Second}
		for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			answer, err := client.Get("http://127.0.0.1:18080/")
			if err == nil {
				return answer.Body.Close()
			}
			if time.Now().After(end) {
				return err
			}
		}
	})
	if err != nil {
		c.t.Errorf("port-forward: %v", err)
	}
}

// until waits until kubectl prints a text.
func (c *client) until(want string, args ...string) {
	c.t.Helper()
	c.await(want, func(out string) bool { return out == want }, args...)
}

// find waits until a text is in what kubectl prints.
func (c *client) find(want string, args ...string) {
	c.t.Helper()
	c.await(want, func(out string) bool { return strings.Contains(out, want) }, args...)
}

func (c *client) await(want string, is func(string) bool, args ...string) {
	c.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		out, err := c.kubectl(args...)
		if err == nil && is(string(out)) {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("%v: %q, %v; want %q", args, out, err, want)
		}
	}
}

// leftOf returns what finds everything of a lab that is not removed with it. It is called while the
// lab is up.
func leftOf(l *lab.Lab) func() []string {
	var groups []string
	var disks string
	if l != nil {
		disks, _ = os.Readlink(filepath.Join(lab.Dir, l.Name, "disks"))           // it has them if it is up
		files, _ := filepath.Glob(filepath.Join(lab.Dir, l.Name, "*", node.File)) // the pattern is well-formed
		for _, file := range files {
			if c, err := node.Load(file); err == nil {
				groups = append(groups, c.Group)
			}
		}
	}
	return func() (left []string) {
		if l == nil {
			return nil
		}
		patterns := []string{filepath.Join(netns.Dir, fmt.Sprintf("sluice-lab-%s-*", l.Name)), filepath.Join(lab.Dir, l.Name), disks}
		for _, g := range groups {
			patterns = append(patterns, "/sys/fs/cgroup/"+g, "/sys/fs/cgroup/*/"+g)
		}
		for _, p := range patterns {
			found, _ := filepath.Glob(p) // as above
			left = append(left, found...)
		}
		return left
	}
}
