package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/test/logtest"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/programs"
	"sluice.dev/sluice/test/world"
)

// An agent that can read nothing changes nothing in the kernel, in any mode, and ends with an error
// that says what is missing: at once where that is a path, and when it is ended where it waits for
// the Kubernetes API.
func TestNothingToRead(t *testing.T) {
	t.Parallel()
	program := programs.Path(t, "sluice")
	dir := t.TempDir()
	away := filepath.Join(dir, "away.conf") // where nobody listens
	write(t, dir, "away.conf", kubeconfigOf("https://127.0.0.1:1"))
	write(t, dir, "broken.conf", "{")
	write(t, dir, "file", "")
	write(t, dir, "proxy.yaml", fmt.Sprintf("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclientConnection: {kubeconfig: %s}\n", filepath.Join(dir, "none.conf")))
	modes := map[string][]string{
		"fabric":  {"--fabric", "vxlan"},
		"ipip":    {"--fabric", "ipip", "--bgp"},
		"offload": {"--flow-offload", "--service-addresses"},
		"cni":     {"--cni", "--cni-bin-dir", filepath.Join(dir, "bin"), "--cni-conf-dir", filepath.Join(dir, "net.d")},
		"proxy":   {"--oom-score-adj=0", "--conntrack-min=200000"},
	}
	for _, m := range agentModes {
		if probe.Missing(t.Context(), findMode(m.flags[1]).requirements()) == nil {
			modes[m.name] = m.flags
		}
	}
	run := func(args ...string) []string {
		return append([]string{"run", "--node", "node-a", "--metrics-address", "", "--healthz-address", ""}, args...)
	}
	type try struct {
		name  string
		args  []string
		waits bool
		says  string
	}
	tries := []try{
		{name: "no folder", args: run("--manifests", filepath.Join(dir, "none")), says: "make the folder, or name another"},
		{name: "a file as folder", args: run("--manifests", filepath.Join(dir, "file")), says: "not a directory"},
		{name: "no kubeconfig", args: run("--kubeconfig", filepath.Join(dir, "none.conf")), says: "none.conf: no such file or directory"},
		{name: "a broken kubeconfig", args: run("--kubeconfig", filepath.Join(dir, "broken.conf")), says: "broken.conf"},
		{name: "no pod", args: run("--in-cluster"), says: "name a kubeconfig file with --kubeconfig"},
		{name: "no configuration", args: run("--config", filepath.Join(dir, "none.yaml")), says: "none.yaml: no such file"},
		{name: "the configuration's kubeconfig", args: run("--config", filepath.Join(dir, "proxy.yaml")), says: "none.conf: no such file or directory"},
		{name: "no farms", args: []string{"balance", "--config", filepath.Join(dir, "none.json")}, says: "none.json: no such file"},
		{name: "no farms for IPVS", args: []string{"balance", "--mode", "ipvs", "--config", filepath.Join(dir, "none.json")}},
	}
	for _, name := range slices.Sorted(maps.Keys(modes)) {
		tries = append(tries, try{name: name, args: append(run("--kubeconfig", away), modes[name]...), waits: true, says: "connection refused"})
	}
	for _, c := range tries {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := world.NewHost(t, "node")
			ns := h.NS
			h.Address("lo", "192.0.2.1/24")
			for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
				if err := ns.Sysctl(key, "0"); err != nil {
					t.Fatal(err)
				}
			}
			before := everything(t, ns)
			beside := t.TempDir()
			log := &logtest.Log{}
			cmd := exec.Command(program, append(slices.Clone(c.args), "--socket", filepath.Join(beside, "s.sock"))...)
			cmd.Stdout, cmd.Stderr = log, log
			if err := ns.Start(cmd); err != nil {
				t.Fatal(err)
			}
			if c.waits {
				endWaiting(t, cmd, log)
			}
			err := cmd.Wait()
			if exit, ended := errors.AsType[*exec.ExitError](err); !ended || exit.ExitCode() != cli.ExitError && exit.ExitCode() != cli.ExitUsage || !strings.Contains(log.String(), c.says) {
				t.Errorf("it ends with %v, and does not say %q:\n%s", err, c.says, log.String())
			}
			after := everything(t, ns)
			for what := range after {
				if before[what] != after[what] {
					t.Errorf("%s is changed from\n%s\nto\n%s", what, before[what], after[what])
				}
			}
			for _, path := range []string{filepath.Join(dir, "bin"), filepath.Join(dir, "net.d"), filepath.Join(beside, "*")} {
				if left, _ := filepath.Glob(path); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			}
		})
	}
}

// endWaiting ends an agent once it says that it waits for the API.
func endWaiting(t *testing.T, cmd *exec.Cmd, log *logtest.Log) {
	t.Helper()
	eventually(t, "it says what it waits for", func() bool { return strings.Contains(log.String(), "waiting for the Kubernetes API") })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// What an agent has programmed goes on while the next one waits for the API.
func TestRestartWithoutAPI(t *testing.T) {
	t.Parallel()
	n := newModeNode(t)
	dir := t.TempDir()
	write(t, dir, "away.conf", kubeconfigOf("https://127.0.0.1:1"))
	socket := filepath.Join(dir, "s.sock")
	stop := startAgent(t, n.dir, socket, n.Do, "--policy=false")
	inSync(t, socket)
	stop()
	before := nft(t, n.NS, "--stateless", "list", "table", "inet", "sluice")

	log := &logtest.Log{}
	cmd := exec.Command(programs.Path(t, "sluice"), "run", "--kubeconfig", filepath.Join(dir, "away.conf"), "--node", "node-a", "--socket", socket, "--metrics-address", "", "--healthz-address", "")
	cmd.Stdout, cmd.Stderr = log, log
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent answers", func() bool { return agent.Alive(socket) })
	if c, err := dialFrom(n.client, "tcp", webAddress); err != nil {
		t.Error(err)
	} else if err := errors.Join(say(c), c.Close()); err != nil {
		t.Error(err)
	}
	endWaiting(t, cmd, log)
	_ = cmd.Wait()
	if after := nft(t, n.NS, "--stateless", "list", "table", "inet", "sluice"); after != before {
		t.Errorf("the table is changed from\n%s\nto\n%s", before, after)
	}
}

func kubeconfigOf(server string) string {
	return fmt.Sprintf(`{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":%q}}]}`, server)
}

// everything is what agents change in a namespace: what shows it, and what that shows.
func everything(t *testing.T, ns *netns.NS) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, command := range []string{"nft list ruleset", "ip -d link", "ip addr", "ip route show table all", "ip -6 route show table all", "ip rule", "ip neigh", "ipset save",
		"cat /proc/net/ip_tables_names /proc/net/ip6_tables_names /proc/net/ip_vs"} {
		args := strings.Fields(command)
		out, err := ns.Run(args[0], args[1:]...)
		if err != nil && args[0] != "cat" && args[0] != "ipset" { // the kernel may lack those files
			t.Fatal(err)
		}
		all[command] = string(out)
	}
	err := ns.Do(func() error {
		return filepath.WalkDir("/proc/sys/net", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "nf_conntrack_count") {
				return nil
			}
			if text, err := os.ReadFile(path); err == nil {
				all[path] = string(text)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
