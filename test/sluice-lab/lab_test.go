package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// shopLab brings up a lab with the example shop and agents on a real kernel.
func shopLab(t *testing.T, name string) *lab.Lab {
	t.Helper()
	return upLab(t, name)
}

// The agents follow changes in the lab: after every step, all services answer or refuse as
// expected.
func TestLabFollowsChanges(t *testing.T) {
	t.Parallel()
	l := shopLab(t, "testfollow")
	scale := func(name string, n int) func(*plan.Cluster) error {
		return func(c *plan.Cluster) error { return c.Scale("Deployment", "shop", name, n) }
	}
	front := func(ready, terminating bool) func(*plan.Cluster) error {
		return func(c *plan.Cluster) error { return c.Mark("shop", "front-2", ready, terminating) }
	}
	for _, step := range []struct {
		name   string
		change func(*plan.Cluster) error
	}{
		{"as it is", func(*plan.Cluster) error { return nil }},
		{"more carts", scale("cart", 7)},
		{"front-2 not ready", front(false, false)},
		{"front-2 terminating", front(true, true)},
		{"front-2 back", front(true, false)},
		{"one cart", scale("cart", 1)},
		{"no search", scale("search", 0)},
		{"one search", scale("search", 1)},
	} {
		if err := l.Change(t.Context(), step.change); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if err := l.Sync(t.Context()); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		rep, err := l.Probe(t.Context(), 2, []string{"cart", "cart-callback", "front", "front-direct", "search"})
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		for _, row := range rep.Rows {
			if row.Failed > 0 {
				t.Errorf("%s: %s %s from %s: %q", step.name, row.Service, row.Via, row.From, row.Failures)
			}
		}
	}
}

func TestLabCommandLine(t *testing.T) {
	t.Parallel()
	l := shopLab(t, "testline")
	checkExec(t, l)
	checkFlows(t, l)
	for _, tc := range []struct {
		args []string
		exit int
		want string // on either output
	}{
		{[]string{"lab", "status", "--name", l.Name}, cli.ExitOK, "in sync"},
		{[]string{"lab", "status", "--name", l.Name, "-o", "json"}, cli.ExitOK, `"agent": "in sync"`},
		{[]string{"lab", "status", "--name", l.Name, "-o", "xml"}, cli.ExitUsage, "choose table, json or yaml"},
		{[]string{"lab", "probe", "--name", l.Name, "cart", "-o", "yaml"}, cli.ExitOK, "service: shop/cart"},
		{[]string{"lab", "probe", "--name", l.Name, "--requests", "0"}, cli.ExitUsage, "at least 1"},
		{[]string{"lab", "probe", "--name", l.Name, "nosuch"}, cli.ExitError, "no Service nosuch"},
		{[]string{"lab", "exec", "--name", l.Name, "nosuch", "true"}, cli.ExitError, "no such node, pod or workload"},
		{[]string{"lab", "exec", "--name", l.Name, "node1", "--", "no-such-command"}, cli.ExitError, "run no-such-command: this machine has no such program in PATH"},
		{[]string{"lab", "exec"}, cli.ExitUsage, "for example: sluice lab exec front-1 -- curl"},
		{[]string{"lab", "prob"}, cli.ExitUsage, "lab has no command prob: did you mean probe?"},
		{[]string{"lab", "nonsense"}, cli.ExitUsage, "lab --help' lists those that there are"},
		{[]string{"__complete", "lab", "exec", "--name", l.Name, "shop/front"}, cli.ExitOK, "shop/front-1\nshop/front-2\n"},
		{[]string{"__complete", "lab", "exec", "--name", l.Name, "n"}, cli.ExitOK, "node1\nnode2\nnode3\n"},
		{[]string{"__complete", "lab", "restart", "--name", l.Name, "--agent-only", "node1", ""}, cli.ExitOK, "node2\nnode3\n:"},
		{[]string{"__complete", "lab", "probe", "--name", l.Name, "shop/ca"}, cli.ExitOK, "shop/cart\n"},
		{[]string{"__complete", "lab", "probe", "--name", "te"}, cli.ExitOK, l.Name + "\n"},
		{[]string{"lab", "restart", "--name", l.Name, "node1"}, cli.ExitError, "for example: sluice lab restart node1 --agent-only"},
		{[]string{"lab", "restart", "--name", l.Name, "node9", "--agent-only"}, cli.ExitError, "choose from node1, node2, node3"},
		{[]string{"lab", "restart", "--name", l.Name, "node2", "--agent-only"}, cli.ExitOK, "the agent of node2 runs again"},
		{[]string{"lab", "up", "--name", l.Name}, cli.ExitError, "up already"},
		{[]string{"lab", "up", "--name", "Not-A-Name"}, cli.ExitError, "lower-case"},
		{[]string{"lab", "up", "--empty", "app.yaml"}, cli.ExitUsage, "leave out either --empty or app.yaml"},
		{[]string{"lab", "up", "--kubernetes", "--agent-flag=--mode=iptables"}, cli.ExitUsage, "needs --agent process"},
		{[]string{"lab", "up", "/nonexistent.yaml"}, cli.ExitError, "/nonexistent.yaml"},
		{[]string{"lab", "probe", "--name", named("testnone")}, cli.ExitError, "sluice lab up --name " + named("testnone")},
		{[]string{"lab", "down", "--name", l.Name}, cli.ExitOK, "is down"},
		{[]string{"lab", "down", "--name", l.Name}, cli.ExitOK, "is down"},
		{[]string{"lab", "status", "--name", l.Name}, cli.ExitError, "there is none"},
	} {
		var out bytes.Buffer
		if got := execute(t.Context(), tc.args, &out, &out); got != tc.exit || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%v: exit status %d, want %d and %q in:\n%s", tc.args, got, tc.exit, tc.want, out.String())
		}
	}
}

// Flags of exec itself are understood behind the target, too, up to the command.
func TestLabExecFlags(t *testing.T) {
	needRoot(t)
	none := named("testnone")
	for _, tc := range []struct {
		args string
		exit int
		want string
	}{
		{"node1 --name " + none, cli.ExitError, "open lab " + none + ": there is none"},
		{"node1 --name=" + none + " -- sh -c true", cli.ExitError, "open lab " + none},
		{"--name " + none + " node1 ip -4 --name other", cli.ExitError, "open lab " + none},
		{"--name " + none + " node1 -- --name other", cli.ExitError, "open lab " + none},
		{"node1 --help", cli.ExitOK, "Run a command, or a shell, on a node"},
		{"node1 --no-such -- true", cli.ExitUsage, "unknown flag: --no-such"},
		{"--name " + none + " node1 -4 ip", cli.ExitUsage, "a command that begins with - goes behind --"},
	} {
		var out bytes.Buffer
		if got := execute(t.Context(), append([]string{"lab", "exec"}, strings.Fields(tc.args)...), &out, &out); got != tc.exit || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%s: exit status %d, want %d and %q in:\n%s", tc.args, got, tc.exit, tc.want, out.String())
		}
	}
}

// checkExec runs sluice on a node, and in a pod on its network: it is the lab's own, installed or
// not, and asks that node's agent.
func checkExec(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, host := range []string{"node2", "shop-data/metrics-node2"} {
		if out := string(execOn(t, l, host, "sluice", "status")); !strings.Contains(out, "OK: the kernel has all") || !strings.Contains(out, "node2") {
			t.Errorf("sluice status on %s:\n%s", host, out)
		}
	}
}

// execOn runs a command on a host of the lab in a process of its own: `lab exec` replaces the one
// that runs it.
func execOn(t *testing.T, l *lab.Lab, host string, command ...string) []byte {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, append([]string{"lab", "exec", "--name", l.Name, host, "--"}, command...)...)
	cmd.Env = []string{"PATH=/nonexistent"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v on %s: %v\n%s", command, host, err, out)
	}
	return out
}

// checkFlows asks a service from a pod. `sluice services` on the pod's node counts a flow to each
// endpoint for each request that it has answered.
func checkFlows(t *testing.T, l *lab.Lab) {
	t.Helper()
	count := func() map[string]int {
		out := execOn(t, l, "node1", "sluice", "services", "shop/front", "-o", "json")
		var r agent.ServiceReport
		if err := json.Unmarshal(out, &r); err != nil || len(r.EndpointList) == 0 {
			t.Fatalf("%v\n%s", err, out)
		}
		flows := map[string]int{}
		for _, e := range r.EndpointList {
			flows[e.Pod.Name.String()] += *e.Flows
		}
		return flows
	}
	want := count()
	i := slices.IndexFunc(l.Cluster.Services, func(s *corev1.Service) bool { return s.Name == "front" })
	front := netip.AddrPortFrom(plan.ClusterIPs(l.Cluster.Services[i])[0], 80)
	for range 9 {
		ns, err := netns.Open(l.NodeNS("cart-1.shop"))
		if err != nil {
			t.Fatal(err)
		}
		var a echo.Answer
		err = ns.Do(func() error { a, err = echo.Ask("TCP", front, 10*time.Second); return err })
		ns.Close()
		if err != nil {
			t.Fatal(err)
		}
		want["shop/"+a.Pod]++
	}
	if diff := cmp.Diff(want, count()); diff != "" {
		t.Errorf("flows by pod after nine requests (-want +got):\n%s", diff)
	}
}

// A lab whose nodes may not get what they watch files with warns before it starts.
func TestFewWatches(t *testing.T) {
	for _, tc := range []struct {
		nodes, used, most int
		want              string
	}{
		{3, 10, 128, ""}, {3, 92, 128, ""}, {3, 93, 128, "3 nodes need up to 36 instances of inotify, and 93 of 128 are in use: containerd may not start; sysctl -w fs.inotify.max_user_instances=258"}, {3, 10, 0, ""},
	} {
		if got := fewWatches(tc.nodes, tc.used, tc.most); got != tc.want {
			t.Errorf("%d nodes, %d of %d: %q, want %q", tc.nodes, tc.used, tc.most, got, tc.want)
		}
	}
}

// A lab that has more nodes than the kernel knows neighbours warns before it starts.
func TestCrowdedLab(t *testing.T) {
	tables := []preflight.Neighbours{{IPv4: true, Most: 1024}, {Most: 4096}}
	for nodes, want := range map[int]string{30: "", 31: "", 32: "32 nodes know up to 1056 neighbours together, and the kernel has room for 1024", 80: "sysctl -w net.ipv4.neigh.default.gc_thresh3=25920"} {
		if got := crowded(nodes, tables); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%d nodes: %q", nodes, got)
		}
	}
}
