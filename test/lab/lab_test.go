package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/programs"
)

// TestMain also plays the sluice binary for the labs of these tests: their pods' servers are this
// program.
func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "lab" && os.Args[2] == "serve" {
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
		defer stop()
		if err := echo.Run(ctx, os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// sluice is the path of the sluice that the labs of these tests have. They start none, but the
// sluice-cni beside it attaches their pods.
func sluice(t *testing.T) string { return programs.Path(t, "sluice") }

// app has a pod of each kind on three nodes: web on all, db as a StatefulSet in another namespace,
// a DaemonSet on the nodes' network.
const app = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - {name: web, ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 5353, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: data}
spec:
  serviceName: db
  replicas: 2
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: db, ports: [{containerPort: 5432}]}]
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: data}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{port: 5432}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  template:
    metadata: {labels: {app: agent}}
    spec:
      hostNetwork: true
      containers: [{name: agent, ports: [{containerPort: 9100}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, annotations: {seen: "by agents"}}
spec: {podSelector: {matchLabels: {app: web}}, ingress: [{}]}
---
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: security}
spec: {order: 5}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot, labels: {role: worker}}
`

// named returns the name of a lab that is this process's alone, so that tests of several checkouts
// can run at the same time.
func named(lab string) string { return fmt.Sprintf("%s%d", lab, os.Getpid()) }

// up brings up a lab without agents and takes it down at the end of the test.
func up(t *testing.T, name string) *Lab {
	t.Helper()
	objs, err := plan.ReadFS(fstest.MapFS{"app.yaml": {Data: []byte(app)}})
	if err != nil {
		t.Fatal(err)
	}
	l := upWith(t, Config{Name: name, Nodes: 3, Objects: objs})
	if len(l.Warnings) > 0 {
		t.Errorf("warnings: %q", l.Warnings)
	}
	return l
}

// upWith brings up a lab, and takes it down at the end of the test.
func upWith(t *testing.T, c Config) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.Name, c.Executable, c.Sluice = named(c.Name), exe, sluice(t)
	t.Cleanup(func() {
		if err := Down(c.Name); err != nil {
			t.Error(err)
		}
	})
	l, err := Up(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// ask sends one request from a place of the lab.
func ask(t *testing.T, l *Lab, from, protocol, to string) (echo.Answer, error) {
	t.Helper()
	p, err := l.find(from)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.Open(p.netns)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var a echo.Answer
	err = ns.Do(func() error {
		a, err = echo.Ask(protocol, netip.MustParseAddrPort(to), 2*time.Second)
		return err
	})
	return a, err
}

func TestPodsReachEachOther(t *testing.T) {
	t.Parallel()
	l := up(t, "testreach")
	for _, from := range []string{"web-1", "web-2", "data/db-0", "node1", "node3", "outside", "agent-node2"} {
		for _, to := range l.Cluster.Pods {
			for i, addr := range plan.Addrs(to) {
				for _, port := range l.Cluster.Ports(to) {
					a, err := ask(t, l, from, string(port.Protocol), netip.AddrPortFrom(addr, uint16(port.Port)).String())
					if err != nil {
						t.Errorf("%s to %s at %s %v: %v", from, to.Name, addr, port, err)
						continue
					}
					want := echo.Answer{Pod: to.Name, Namespace: to.Namespace, Node: to.Spec.NodeName, Protocol: string(port.Protocol), Port: uint16(port.Port), Client: a.Client}
					if a != want {
						t.Errorf("%s to %s at %s %v: answer %+v, want %+v", from, to.Name, addr, port, a, want)
					}
					if p := l.Cluster.Pods[0]; from == p.Name && from != to.Name && a.Client.Addr() != plan.Addrs(p)[i] {
						t.Errorf("%s to %s: seen as %s, want its own address %s", from, to.Name, a.Client, plan.Addrs(p)[i])
					}
				}
			}
		}
	}
}

func TestServersSpeakHTTPAndText(t *testing.T) {
	t.Parallel()
	l := up(t, "testtext")
	addr := plan.Addrs(l.Cluster.Pods[0])[0].String()
	for _, send := range []string{
		"hello\n",
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
		"HEAD / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.0\r\n\r\n", // two on one connection
	} {
		out := run(t, l, "node2", "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/8080; printf %%b %q >&3; while read -t 5 -r line <&3; do echo \"$line\"; case \"$line\" in {*) exit;; esac; done; exit 1", addr, send))
		body := out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:]
		var a echo.Answer
		if err := json.Unmarshal([]byte(body), &a); err != nil || a.Pod != "web-1" {
			t.Errorf("sent %q: got %q", send, out)
		}
	}
}

// run runs a command at a place of the lab and returns what it prints.
func run(t *testing.T, l *Lab, target string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := l.Start(target, cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("%s at %s: %v: %s", args, target, err, out.String())
	}
	return out.String()
}

func TestNamesResolve(t *testing.T) {
	t.Parallel()
	l := up(t, "testnames")
	c := l.Cluster
	web := plan.ClusterIPs(c.Services[0])
	db := []netip.Addr{plan.Addrs(c.Pods[3])[0], plan.Addrs(c.Pods[4])[0]}
	for _, tc := range []struct {
		from, name string
		want       []netip.Addr // none: does not resolve
	}{
		{"web-1", "web", web},
		{"node1", "web", web},
		{"outside", "web.default", web},
		{"data/db-0", "web", nil},
		{"data/db-0", "web.default.svc", web},
		{"db", "web.default.svc.cluster.local", web},
		{"db", "db", db},
		{"web-1", "db", nil},
		{"web-1", "db.data.svc.cluster.local", db},
		{"web-1", "db-1.db.data", db[1:]},
		{"web-1", "node2", c.Nodes[1].IPs},
	} {
		out := run(t, l, tc.from, "bash", "-c", "getent ahosts "+tc.name+" || true")
		got := map[string]bool{}
		for line := range strings.Lines(out) {
			got[strings.Fields(line)[0]] = true
		}
		ok := len(got) == len(tc.want)
		for _, a := range tc.want {
			ok = ok && got[a.String()]
		}
		if !ok {
			t.Errorf("%s from %s resolves to %v, want %v", tc.name, tc.from, got, tc.want)
		}
	}
}

// On a node, commands find the node's agent at its usual path, and the labs in their folder;
// elsewhere nothing changes.
func TestNodesHaveTheirAgentInPlace(t *testing.T) {
	t.Parallel()
	l := up(t, "testplace")
	for _, socket := range []string{filepath.Join(filepath.Dir(Dir), named("testplace")+".sock"), filepath.Join(t.TempDir(), "agent.sock")} {
		l.agent = &Agent{Socket: socket}
		for _, node := range []string{"node1", "node2"} {
			err := os.MkdirAll(filepath.Dir(l.socket(node)), 0o755)
			if err == nil {
				err = os.WriteFile(l.socket(node), []byte("agent of "+node), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			out := run(t, l, node, "cat", socket, l.path("lab.json"))
			if want := "agent of " + node; !strings.HasPrefix(out, want) || !strings.Contains(out, l.Name) {
				t.Errorf("on %s, %s and the lab read %.60q, want %q before the lab", node, socket, out, want)
			}
		}
		run(t, l, "node1", "rm", socket) // as 'sluice cleanup' does
		if _, err := os.Stat(l.socket("node1")); err == nil {
			t.Error("a socket that was removed on node1 is there outside of it")
		}
		for _, target := range []string{"web-1", "node3", "outside"} { // node3 has no agent
			if out := run(t, l, target, "bash", "-c", "cat "+socket+" || true"); !strings.Contains(out, "No such file") {
				t.Errorf("in %s, %s reads %q", target, socket, out)
			}
		}
		if _, err := os.Stat(socket); err == nil {
			t.Errorf("%s is there outside of the lab", socket)
		}
	}
}

// leftovers lists what exists of a lab: namespaces, files and processes.
func leftovers(t *testing.T, name string) []string {
	t.Helper()
	left, err := namespaces(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(Dir, name)); err == nil {
		left = append(left, "folder")
	}
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range cmdlines {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(Dir+"/"+name+"/")) {
			left = append(left, string(b))
		}
	}
	return left
}

func TestDownLeavesNothing(t *testing.T) {
	t.Parallel()
	l := up(t, "testdown")
	shell := exec.CommandContext(t.Context(), "sleep", "60")
	if err := l.Start("web-1", shell); err != nil {
		t.Fatal(err)
	}
	if err := l.Down(); err != nil {
		t.Fatal(err)
	}
	if err := shell.Wait(); err == nil {
		t.Error("a command inside a pod outlived the lab")
	}
	if left := leftovers(t, l.Name); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if err := l.Down(); err != nil {
		t.Errorf("second down: %v", err)
	}
}

func TestUpOverLabs(t *testing.T) {
	t.Parallel()
	l := up(t, "testover")
	if _, err := Up(t.Context(), Config{Name: l.Name, Nodes: 1, Objects: &plan.Objects{}}); err == nil {
		t.Fatal("up over a live lab succeeded")
	}
	if _, err := ask(t, l, "web-1", "TCP", netip.AddrPortFrom(plan.Addrs(l.Cluster.Pods[1])[0], 8080).String()); err != nil {
		t.Errorf("the live lab was hurt: %v", err)
	}
	// This simulates a crash: a server killed, a namespace removed, the record of the lab lost.
	p := l.process("node1", "serve")
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := netns.Delete(l.NodeNS("node2")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(l.path("lab.json")); err != nil {
		t.Fatal(err)
	}
	l = up(t, "testover")
	if _, err := ask(t, l, "web-1", "TCP", netip.AddrPortFrom(plan.Addrs(l.Cluster.Pods[1])[0], 8080).String()); err != nil {
		t.Errorf("the new lab: %v", err)
	}
}

func TestUpCancelledLeavesNothing(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	ctx, cancel := context.WithCancel(t.Context())
	objs, err := plan.ReadFS(fstest.MapFS{"app.yaml": {Data: []byte(app)}})
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	_, err = Up(ctx, Config{Name: named("testcancel"), Nodes: 2, Objects: objs, Executable: exe, Sluice: sluice(t), Progress: func(string) {
		if steps++; steps == 2 { // the network is built, servers run
			cancel()
		}
	}})
	if err == nil {
		t.Error("up succeeded although it was cancelled")
	}
	if left := leftovers(t, named("testcancel")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// An agent that cannot start fails the lab, with its logged reason. So does an agent that never
// gets in sync.
func TestUpFailsWithItsAgents(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ command, want string }{
		{"echo no such kernel >&2; exit 3", "no such kernel"},
		{"echo still thinking; sleep 60", "still thinking"}, // until the caller gives up
	} {
		objs, err := plan.ReadFS(fstest.MapFS{"app.yaml": {Data: []byte(app)}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		agent := &Agent{
			Command: func(AgentConfig) []string { return []string{"/bin/sh", "-c", tc.command} },
			Sync: func(_ context.Context, socket string) ([]string, error) {
				log, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(socket)), "agent.log"))
				if err == nil && strings.Contains(string(log), "thinking") {
					cancel()
				}
				return nil, errors.New("not yet")
			},
		}
		_, err = Up(ctx, Config{Name: named("testagent"), Nodes: 2, Objects: objs, Executable: exe, Sluice: sluice(t), Agent: agent})
		cancel()
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("up with agent %q: %v, want an error with %q", tc.command, err, tc.want)
		}
		if left := leftovers(t, named("testagent")); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
}

// A lab is up when the agents know each pod that has its own network.
func TestUpWaitsUntilPodsAreKnown(t *testing.T) {
	t.Parallel()
	objs, err := plan.ReadFS(fstest.MapFS{"app.yaml": {Data: []byte(app)}})
	if err != nil {
		t.Fatal(err)
	}
	asked := map[string]int{}
	agent := &Agent{
		Command: func(AgentConfig) []string { return []string{"/bin/sleep", "60"} },
		Sync:    func(context.Context, string) ([]string, error) { return nil, nil },
		Knows: func(_ context.Context, socket string, p *corev1.Pod) (bool, error) {
			asked[p.Name+"@"+filepath.Base(filepath.Dir(filepath.Dir(socket)))]++
			return asked[p.Name+"@"+p.Spec.NodeName] > 1, nil
		},
	}
	l := upWith(t, Config{Name: "testknown", Nodes: 2, Objects: objs, Agent: agent})
	want := map[string]int{}
	for _, p := range l.Cluster.Pods {
		if !p.Spec.HostNetwork {
			want[p.Name+"@"+p.Spec.NodeName] = 2
		}
	}
	if len(want) == 0 || !maps.Equal(asked, want) {
		t.Errorf("pods asked for: %v, want %v", asked, want)
	}
}

func TestTransientLabDiesWithItsOwner(t *testing.T) {
	t.Parallel()
	l := up(t, "testowner")
	if !l.alive() {
		t.Error("a lab that is up counts as dead")
	}
	self := process.Self()
	l.Owner = &self
	if !l.alive() {
		t.Error("its owner lives, yet it counts as dead")
	}
	l.Owner.Start++ // another process had that number
	if l.alive() {
		t.Error("its owner is dead, yet it counts as alive")
	}
}

func TestProbeWithoutProxy(t *testing.T) {
	t.Parallel()
	l := up(t, "testprobe")
	rep, err := l.Probe(t.Context(), 1, []string{"web"})
	if err != nil {
		t.Fatal(err)
	}
	// Nothing translates service addresses here, so every frontend fails from everywhere.
	if rep.Failed != rep.Requests || rep.Requests != 2*(3+3)+2*2 {
		t.Errorf("%d of %d requests failed, want all of 16: %+v", rep.Failed, rep.Requests, rep.Rows)
	}
	if p := rep.Pairs; p.Count != 1 || p.Pass != 0 || p.Failed() != 2 { // db to web, and web to itself
		t.Errorf("%d of %d pairs pass, %d failed, want 0 of 1, 2: %+v", p.Pass, p.Count, p.Failed(), p.Cells)
	}
	if _, err := l.Probe(t.Context(), 1, []string{"other/web"}); err == nil {
		t.Error("probed a service that is not there")
	}
	if rep, err = l.Probe(t.Context(), 1, []string{"db"}); err != nil || len(rep.Silent) != 1 || len(rep.Rows) != 0 {
		t.Errorf("probe of a headless service: %+v, %v", rep, err)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	l := up(t, "teststatus")
	s := l.Status(t.Context())
	var b strings.Builder
	s.Table(&b)
	for _, want := range []string{"node1\tzone-a\t10.10.0.11 fd00:10:10::b\t3\trunning\tnone", "data/db-0", "headless", "web\tClusterIP\t10.96.0.1 fd00:10:96::1\t-\t80/TCP\t3",
		"\nweb\tNetworkPolicy\nsecurity\tTier\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("status lacks %q:\n%s", want, b.String())
		}
	}
	if !s.Up {
		t.Error("not up")
	}
	object, err := os.ReadFile(filepath.Join(l.manifests(), "networkpolicy.networking.k8s.io.default.web.json"))
	if err != nil || !strings.Contains(string(object), `"seen": "by agents"`) {
		t.Errorf("the agents' folder has policy %q, %v", object, err)
	}
	object, err = os.ReadFile(filepath.Join(l.manifests(), "serviceaccount.default.robot.json"))
	if err != nil || !strings.Contains(string(object), `"role": "worker"`) || !strings.Contains(string(object), `"kind": "ServiceAccount"`) {
		t.Errorf("the agents' folder has service account %q, %v", object, err)
	}
	if _, err := Open(named("testnone"), nil); err == nil {
		t.Error("opened a lab that is not there")
	}
}

func TestTwoLabsSideBySide(t *testing.T) {
	t.Parallel()
	a, b := up(t, "testa"), up(t, "testb")
	if err := a.Down(); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, b, "web-1", "TCP", netip.AddrPortFrom(plan.Addrs(b.Cluster.Pods[1])[0], 8080).String()); err != nil {
		t.Errorf("lab b after lab a went down: %v", err)
	}
}

func TestChange(t *testing.T) {
	t.Parallel()
	l := up(t, "testchange")
	err := l.Change(t.Context(), func(c *plan.Cluster) error { return c.Scale("Deployment", "default", "web", 4) })
	if err != nil {
		t.Fatal(err)
	}
	var fourth string
	for _, p := range l.Cluster.Pods {
		if p.Name == "web-4" {
			fourth = netip.AddrPortFrom(plan.Addrs(p)[0], 8080).String()
		}
	}
	if _, err := ask(t, l, "outside", "TCP", fourth); err != nil {
		t.Errorf("new pod: %v", err)
	}
	again, err := Open(l.Name, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = again.Change(t.Context(), func(c *plan.Cluster) error { return c.Scale("Deployment", "default", "web", 1) })
	if err != nil {
		t.Fatal(err)
	}
	names, err := namespaces(again.Name)
	pods := slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, ".") })
	if err != nil || len(pods) != 3 {
		t.Errorf("pods' namespaces after scaling down: %v, %v", pods, err)
	}
	if _, err := ask(t, again, "outside", "TCP", fourth); err == nil {
		t.Error("a pod that is gone still answers")
	}
}
