package lab

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// What MetalLB's tests do with a container runtime: a router on the nodes' network and one behind
// it, in a network of their own.
func TestContainerRuntime(t *testing.T) {
	t.Parallel()
	l := upWith(t, Config{Name: "routers", Nodes: 1, Objects: &plan.Objects{}})
	do := func(args ...string) string {
		t.Helper()
		var out strings.Builder
		if err := l.ContainerRuntime(t.Context(), args, &out); err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return out.String()
	}
	config := t.TempDir()
	// FRR runs as a user of its own.
	if out, err := exec.Command("sh", "-ec", `cd "$0"; chmod a+rx . ..; echo bgpd=yes >daemons; touch vtysh.conf bgpd.conf zebra.conf`, config).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	do("network", "create", "far", "--ipv6")
	run := []string{"run", "-d", "--privileged", "--rm", "--ulimit", "core=-1", "--volume", config + ":/etc/frr"}
	do(append(run, "--network", "kind", "--name", "near", "frr", "--ip", "10.10.0.101", "--ip", "fd00:10:10::101")...)
	do(append(run, "--network", "far", "--name", "behind", "frr")...)
	do("network", "connect", "far", "near")

	if got, want := do("inspect", "-f", "{{json .NetworkSettings.Networks}}", "near"), `{"far":{"IPAddress":"172.30.0.3","GlobalIPv6Address":"fc00:f853:ccd:e798::3","IPPrefixLen":16,"GlobalIPv6PrefixLen":64},`+
		`"kind":{"IPAddress":"10.10.0.101","GlobalIPv6Address":"fd00:10:10::101","IPPrefixLen":24,"GlobalIPv6PrefixLen":64}}`; strings.TrimSpace(got) != want {
		t.Errorf("networks: %s\nwant %s", got, want)
	}
	if got := do("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.GlobalIPv6Address}}{{end}}", "behind"); got != "fc00:f853:ccd:e798::2" {
		t.Errorf("address of the router behind: %s", got)
	}
	inside := func(name string, command ...string) string {
		t.Helper()
		out, err := exec.Command("nsenter", l.intoRouter(name, command...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %q: %v: %s", name, command, err, out)
		}
		return string(out)
	}
	inside("behind", "ip", "route", "add", "10.10.0.0/24", "via", "172.30.0.3")
	node, err := netns.Open(l.NodeNS("node1"))
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	if _, err := node.Run("ip", "route", "add", "172.30.0.0/16", "via", "10.10.0.101"); err != nil {
		t.Fatal(err)
	}
	inside("behind", "ping", "-c1", "-W5", l.Cluster.Nodes[0].IPs[0].String())
	if daemons := inside("behind", "vtysh", "-c", "show daemons"); !strings.Contains(daemons, "bgpd") {
		t.Errorf("daemons: %s", daemons)
	}
	for _, name := range []string{"behind", "near"} {
		do("kill", name)
		if _, err := netns.Open(l.NodeNS(name)); err == nil {
			t.Errorf("%s is there after it was killed", name)
		}
	}
	do("network", "rm", "far")
	if left, _ := filepath.Glob(l.path("*", "frr.pid")); len(left) > 0 || l.died() != nil {
		t.Errorf("left: %q, %v", left, l.died())
	}
}
