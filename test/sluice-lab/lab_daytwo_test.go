package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/image"
	"sluice.dev/sluice/test/lab/load"
	"sluice.dev/sluice/test/lab/node"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/machine"
)

// dayTwoApp is a service of two pods, of which one is always there, and a client that stays on the
// first node. Its pods answer longer after the stop signal than a busy machine's controllers need
// to take them out of the service.
const dayTwoApp = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {lab.sluice.dev/drain: 6s}}
    spec:
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]
      containers:
      - {name: web, image: nobody.invalid/web:1, ports: [{containerPort: 80}], readinessProbe: {httpGet: {port: 80}, periodSeconds: 1, timeoutSeconds: 10}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: node1
  containers: [{name: client, image: busybox, command: [sleep, "1000000"]}]
`

// TestLabDayTwo does under load what administrators do with a cluster, and what happens to one:
// Sluice is upgraded and rolled back by Helm, and an upgrade fails; a node is drained, leaves, and
// another one joins; kubelets and containerds die and hang while pods are made. No request fails,
// and no address of a pod is lost.
func TestLabDayTwo(t *testing.T) {
	t.Parallel()
	needRoot(t)
	machine.ControlPlane.Take(t)
	d := &dayTwo{name: named("testdaytwo")}
	file := filepath.Join(t.TempDir(), "app.yaml")
	if err := os.WriteFile(file, []byte(dayTwoApp), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Down(d.name); err != nil {
			t.Error(err)
		}
	})
	var progress bytes.Buffer
	o := labOptions{name: d.name, nodes: 2, sluice: os.Getenv(cli.SluiceEnv), withKubernetes: true, agent: agentHelm, fabric: string(plan.Native)}
	l, err := o.up(t.Context(), &progress, []string{file})
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	d.client = &client{t, l}
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{{"upgrade", d.upgrade}, {"drain", d.drain}, {"kill", d.kill}, {"leave and join", d.leaveAndJoin}, {"down", d.down}} {
		if !t.Run(step.name, step.do) {
			return
		}
	}
}

// dayTwo is the lab of TestLabDayTwo.
type dayTwo struct {
	*client
	name string
}

// under sends requests while f runs, none of which may fail: from the client to the service, from
// outside to the node port of the first node and, unless the load is short, from the client to a
// pod of the second node.
func (d *dayTwo) under(t *testing.T, short bool, f func()) {
	t.Helper()
	d.t = t
	clusterIP := netip.MustParseAddr(d.get("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"))
	d.l.Status(t.Context()) // so that the pods' networks have their names
	client := d.l.NodeNS("client.default")
	routes := []load.Route{
		{From: client, To: netip.AddrPortFrom(clusterIP, 80)},
		{From: d.l.NodeNS(plan.Outside), To: netip.AddrPortFrom(d.l.Cluster.Nodes[0].IPs[0], 30080)},
	}
	if !short {
		for _, p := range d.pods(t, "default") {
			if p.Labels["app"] == "web" && p.Spec.NodeName == "node2" {
				routes = append(routes, load.Route{From: client, To: netip.AddrPortFrom(plan.Addrs(&p)[0], 80)})
				break
			}
		}
	}
	begin := time.Now()
	requests, err := load.Start(load.Config{Routes: routes, Every: 20 * time.Millisecond, Short: short})
	if err != nil {
		t.Fatal(err)
	}
	defer requests.Stop()
	requests.More(50)
	f()
	requests.More(50)
	sent, err := requests.Outcome()
	if err != nil {
		t.Errorf("%v\nthe pods and events now:\n%s%s", err, d.get("get", "pods", "-o", "wide"), d.get("get", "events", "--sort-by=.metadata.creationTimestamp"))
	}
	t.Logf("%d requests in %.1f s, the longest time without an answer %s", sent, time.Since(begin).Seconds(), requests.Silence())
}

// pods lists the pods of a namespace; "": of all.
func (d *dayTwo) pods(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	path := "/api/v1/pods"
	if namespace != "" {
		path = "/api/v1/namespaces/" + namespace + "/pods"
	}
	var list corev1.PodList
	err := d.l.Plane(func(p *control.Plane) error { return p.Get(t.Context(), path, &list) })
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// rolledOut waits until all agents run from an image.
func (d *dayTwo) rolledOut(t *testing.T, image string) {
	t.Helper()
	d.want("the rollout", "successfully rolled out", "-n", "kube-system", "rollout", "status", "daemonset/sluice", "--timeout=2m")
	for _, p := range d.pods(t, "kube-system") {
		if p.Labels["app.kubernetes.io/name"] == "sluice" && p.DeletionTimestamp == nil && p.Spec.Containers[0].Image != image {
			t.Errorf("%s runs %s, want %s", p.Name, p.Spec.Containers[0].Image, image)
		}
	}
}

func (d *dayTwo) helm(t *testing.T, args ...string) {
	t.Helper()
	if _, err := d.l.Helm(t.Context(), append(args, "--namespace", "kube-system")...); err != nil {
		t.Fatal(err)
	}
}

func (d *dayTwo) upgrade(t *testing.T) {
	archive, repository := filepath.Join(t.TempDir(), "next.tar"), strings.TrimSuffix(lab.AgentImage, ":latest")
	programs := image.AgentPrograms(d.l.Sluice)
	programs["usr/local/bin/next"] = d.l.Sluice // so that it is another image
	if err := image.WriteOwn(archive, repository+":next", image.AgentEntrypoint, programs); err != nil {
		t.Fatal(err)
	}
	if _, err := d.l.Load(archive); err != nil {
		t.Fatal(err)
	}
	d.under(t, false, func() {
		d.helm(t, "upgrade", "sluice", d.l.Chart(), "--reset-then-reuse-values", "--set", "image.tag=next")
		d.rolledOut(t, repository+":next")
	})
	d.under(t, false, func() { // to an image that nobody has: the first node has no agent, and goes on
		d.helm(t, "upgrade", "sluice", d.l.Chart(), "--reset-then-reuse-values", "--set", "image.repository=nobody.invalid/sluice")
		d.find("ImagePullBackOff", "-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=sluice", "-o", "jsonpath={..waiting.reason}")
		d.want("the agents that are left", "1", "-n", "kube-system", "get", "daemonset", "sluice", "-o", "jsonpath={.status.numberReady}")
		d.helm(t, "rollback", "sluice")
		d.rolledOut(t, repository+":next")
	})
}

func (d *dayTwo) drain(t *testing.T) {
	d.under(t, true, func() {
		d.want("draining", "drained", "drain", "node2", "--ignore-daemonsets", "--delete-emptydir-data")
		d.want("uncordoning", "uncordoned", "uncordon", "node2")
	})
}

// kill ends kubelet and containerd, and has containerd hang, while pods are made.
func (d *dayTwo) kill(t *testing.T) {
	program := func(host, name string) func(unix.Signal) {
		return func(s unix.Signal) {
			p := node.Program(filepath.Join(lab.Dir, d.name, host), name)
			if p.PID == 0 {
				t.Errorf("%s has no %s", host, name)
			}
			if err := p.Signal(s); err != nil {
				t.Error(err)
			}
		}
	}
	d.under(t, true, func() {
		d.scale(t, 8)
		program("node2", "kubelet")(unix.SIGKILL)
		program("node1", "containerd")(unix.SIGKILL)
		d.ready(8)
	})
	d.addresses(t)
	d.under(t, false, func() {
		d.scale(t, 11)
		hung := program("node2", "containerd")
		hung(unix.SIGSTOP)
		time.Sleep(2 * time.Second) // this long
		hung(unix.SIGCONT)
		d.ready(11)
	})
	d.addresses(t)
	d.want("scaling", "scaled", "scale", "deployment/web", "--replicas=2")
	d.ready(2)
	d.addresses(t)
}

// scale makes more pods of the service, and returns once the second node attaches one of them.
func (d *dayTwo) scale(t *testing.T, replicas int) {
	t.Helper()
	before := len(d.given(t, "node2"))
	d.want("scaling", "scaled", "scale", "deployment/web", fmt.Sprintf("--replicas=%d", replicas))
	for end := time.Now().Add(time.Minute); len(d.given(t, "node2")) <= before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("node2 attaches no further pod:\n%s", d.get("get", "pods", "-o", "wide"))
		}
	}
}

func (d *dayTwo) ready(replicas int) {
	d.t.Helper()
	d.until(fmt.Sprintf("%[1]d %[1]d", replicas), "get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas} {.status.replicas}")
}

// given lists the addresses that the CNI plugin of a node has given, as it has noted them.
func (d *dayTwo) given(t *testing.T, host string) (all []netip.Addr) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(lab.Dir, d.name, "disks", host, "var/lib/cni/networks/sluice"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, file := range files {
		if a, err := netip.ParseAddr(file.Name()); err == nil {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// addresses waits until the addresses that the nodes have given are those that pods have: none is
// lost, and none is given twice.
func (d *dayTwo) addresses(t *testing.T) {
	t.Helper()
	var given, have map[string][]netip.Addr
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		given, have = map[string][]netip.Addr{}, map[string][]netip.Addr{}
		for _, n := range d.l.Cluster.Nodes {
			given[n.Name] = d.given(t, n.Name)
		}
		for _, p := range d.pods(t, "") {
			if !p.Spec.HostNetwork && p.Spec.NodeName != "" {
				have[p.Spec.NodeName] = append(have[p.Spec.NodeName], plan.Addrs(&p)...)
			}
		}
		same := true
		for host := range given {
			slices.SortFunc(have[host], netip.Addr.Compare)
			same = same && slices.Equal(given[host], have[host])
		}
		if same {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("addresses that were given: %v\nthose of pods: %v", given, have)
		}
	}
}

// leaveAndJoin takes a node out of the cluster, and has a new machine join under its name.
func (d *dayTwo) leaveAndJoin(t *testing.T) {
	route := func() string {
		out, err := exec.CommandContext(t.Context(), "ip", "-n", d.l.NodeNS("node1"), "route", "show", d.l.Cluster.Nodes[1].PodCIDRs[0].String()).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	eventually := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("node1 still has the route to the pods of node2 %s: %q", what, route())
			}
		}
	}
	d.under(t, true, func() {
		if !strings.Contains(route(), "10.10.0.12") {
			t.Errorf("the route to the pods of node2: %q", route())
		}
		d.want("draining", "drained", "drain", "node2", "--ignore-daemonsets", "--delete-emptydir-data")
		var out bytes.Buffer
		if code := execute(t.Context(), []string{"lab", "stop", "--name", d.name, "--wipe", "node2"}, &out, &out); code != cli.ExitOK {
			t.Fatalf("stop: exit status %d: %s", code, out.String())
		}
		d.want("deleting", "deleted", "delete", "node", "node2")
		eventually("after that has left", func() bool { return !strings.Contains(route(), "10.10.0.12") })
		if code := execute(t.Context(), []string{"lab", "restart", "--name", d.name, "node2"}, &out, &out); code != cli.ExitOK {
			t.Fatalf("restart: exit status %d: %s", code, out.String())
		}
		eventually("as before that has joined", func() bool { return strings.Contains(route(), "10.10.0.12") })
		d.want("the new node", "condition met", "wait", "node/node2", "--for=condition=Ready", "--timeout=2m")
		d.want("scaling", "scaled", "scale", "deployment/web", "--replicas=4")
		d.ready(4)
	})
	d.under(t, false, func() {})
	d.addresses(t)
}

// down takes the lab down in the middle of a kubectl exec.
func (d *dayTwo) down(t *testing.T) {
	left := leftOf(d.l)
	cmd := exec.CommandContext(t.Context(), filepath.Join(d.l.Kubernetes.Bin, "kubectl"), "--kubeconfig", d.l.HostKubeconfig(), "exec", "-i", "client", "--", "cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = in.Write([]byte("there\n"))
	}
	if err == nil {
		_, err = out.Read(make([]byte, 6))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := lab.Down(d.name); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("kubectl exec says that the program has ended well")
	}
	if found := left(); len(found) > 0 {
		t.Errorf("left behind: %v", found)
	}
}
