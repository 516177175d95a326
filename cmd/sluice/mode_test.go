package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/test/logtest"
	"sluice.dev/sluice/test/netns"
)

// kubeProxyRules are what kube-proxy in iptables mode has for the service web, and the rule of
// another program.
const kubeProxyRules = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-WEB - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -d 203.0.113.1/32 -j RETURN
-A KUBE-SERVICES -d 10.0.0.1/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-WEB
-A KUBE-SVC-WEB -p tcp -m comment --comment "shop/web:http" -j DNAT --to-destination 10.1.0.1:8080
COMMIT
`

// inside runs a command line in a namespace, and returns its exit status and all that it prints.
func inside(t *testing.T, ns *netns.NS, args ...string) (code int, out string) {
	t.Helper()
	var b bytes.Buffer
	if err := ns.Do(func() error { code = execute(t.Context(), args, &b, &b); return nil }); err != nil {
		t.Fatal(err)
	}
	return code, b.String()
}

// An agent in iptables mode takes a node over from kube-proxy in iptables mode, whose chains are
// beside its own. What belongs to neither stays. (That no request fails is for TestTakeover of
// internal/services/takeover, where the real kube-proxy is.)
func TestTakeoverInIPTablesMode(t *testing.T) {
	t.Parallel()
	n := newModeNode(t)
	for _, m := range agentModes[1:3] {
		t.Run(m.name, func(t *testing.T) {
			variant := m.flags[len(m.flags)-1]
			if out, err := n.Run("sh", "-c", "iptables-"+variant+"-restore <<'E'\n"+kubeProxyRules+"E"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			rules := func(text string) string { return lines(t, n.NS, []string{text}, "iptables-"+variant+"-save") }
			socket := filepath.Join(t.TempDir(), "s.sock")
			stop := startAgent(t, n.dir, socket, n.Do, append(m.flags, "--policy=false")...)
			inSync(t, socket)
			before := rules("KUBE")
			code, out := inside(t, n.NS, "takeover", "--from", "kube-proxy", "--node", "node-a", "--socket", socket, "--dry-run")
			if code != cli.ExitOK || !strings.Contains(out, "would   remove") || rules("KUBE") != before {
				t.Errorf("what would be done: %d\n%s", code, out)
			}
			code, out = inside(t, n.NS, "takeover", "--from", "kube-proxy", "--node", "node-a", "--socket", socket)
			if left := rules("KUBE"); code != cli.ExitOK || left != "" {
				t.Errorf("takeover ends with %d and leaves %s\n%s", code, left, out)
			}
			if rules("203.0.113.1") == "" || rules("SLUICE") == "" {
				t.Error("a rule of another program, or ours, went with kube-proxy's")
			}
			stop()
			if code, out := inside(t, n.NS, "cleanup", "--socket", socket); code != cli.ExitOK || rules("SLUICE") != "" || rules("203.0.113.1") == "" {
				t.Errorf("cleanup ends with %d: %s\n%s", code, out, rules(""))
			}
			if out, err := n.Run("iptables-"+variant, "-t", "nat", "-F"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		})
	}
}

// lackNFTables has the kernel lack what the mode nftables needs, until the test ends.
func lackNFTables(t *testing.T) {
	t.Helper()
	m := findMode("nftables")
	had := m.services
	m.services = []*probe.Requirement{{Name: "maps of verdicts", Since: "3.13", Modules: []string{"nf_tables"}, Check: func(context.Context) error { return unix.EOPNOTSUPP }}}
	t.Cleanup(func() { m.services = had })
}

// With --mode auto the agent chooses nftables where that works, and the next mode where it does
// not. It says why, and preflight and plan say so beforehand.
func TestModeAuto(t *testing.T) {
	n := newModeNode(t)
	try := func(t *testing.T, chosen agentMode, says string) {
		_, out := inside(t, n.NS, "preflight", "--mode", "auto", "--policy=false")
		if words := strings.Join(strings.Fields(out), " "); !strings.Contains(words, "ok mode "+chosen.name+": "+says) || !strings.Contains(words, "ok program the kernel takes our "+chosen.name+" ruleset") {
			t.Errorf("preflight does not say that it chooses %s as %s:\n%s", chosen.name, says, out)
		}
		if _, out := inside(t, n.NS, "plan", "--mode", "auto", "--policy=false", "--manifests", n.dir, "--node", "node-a"); !strings.Contains(out, "mode "+chosen.name+": "+says) {
			t.Errorf("plan does not say that %s is chosen as %s:\n%s", chosen.name, says, out)
		}
		socket := filepath.Join(t.TempDir(), "s.sock")
		log, _ := startAgentLogged(t, n.dir, socket, n.Do, "--mode", "auto", "--policy=false")
		inSync(t, socket)
		if c, err := dialFrom(n.client, "tcp", webAddress); err != nil {
			t.Error(err)
		} else if err := say(c); err != nil {
			t.Error(err)
		} else {
			_ = c.Close()
		}
		if chosen.left(t, n.NS) == "" {
			t.Error("there is nothing of the mode", chosen.name)
		}
		if text := log.String(); !strings.Contains(text, "mode chosen") || !strings.Contains(text, says) {
			t.Errorf("the log does not say %q:\n%s", says, text)
		}
	}
	t.Run("nftables", func(t *testing.T) { try(t, agentModes[0], "nftables works here") })
	t.Run("without nftables", func(t *testing.T) {
		lackNFTables(t)
		iptables := agentMode{"iptables", nil, func(t *testing.T, ns *netns.NS) string { return leftLegacy(t, ns) + leftNFT(t, ns) }}
		try(t, iptables, "nftables does not: maps of verdicts: not supported by this kernel: operation not supported (needs Linux 3.13 with nf_tables); iptables works here")
	})
}

// In kube-proxy's place too, --mode alone chooses the mode, which /proxyMode answers. Where the
// configuration of kube-proxy asks for another one, the log says so.
func TestProxyMode(t *testing.T) {
	t.Parallel()
	n := newModeNode(t)
	dial := func(_ context.Context, network, to string) (net.Conn, error) { return dialFrom(n.NS, network, to) }
	s := proxyNode{client: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
	for _, m := range append(slices.Clone(agentModes), agentMode{name: "auto", flags: []string{"--mode", "auto"}}) {
		t.Run(m.name, func(t *testing.T) {
			const address = "127.0.0.1:10249"
			socket := filepath.Join(t.TempDir(), "s.sock")
			log, _ := startAgentLogged(t, n.dir, socket, n.Do, append(m.flags, "--proxy-mode=ipvs", "--oom-score-adj=0", "--metrics-address", address)...)
			inSync(t, socket)
			serves := m.flags[1]
			if want := "mode ipvs is not followed: Sluice serves by --mode " + serves + ", and --mode ipvs chooses that one"; !strings.Contains(log.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, log)
			}
			if serves == "auto" {
				serves = "nftables"
			}
			if _, mode := s.get(address + "/proxyMode"); mode != serves {
				t.Errorf("/proxyMode answers %q", mode)
			}
		})
	}
}

// On a kernel without IPVS, --mode ipvs says what is missing and how to load it, and changes
// nothing.
func TestModeWithoutItsModule(t *testing.T) {
	t.Parallel()
	n := newModeNode(t)
	if probe.Missing(t.Context(), ipvs.Requirements) == nil {
		t.Skip("this kernel has IPVS")
	}
	for _, of := range []struct {
		ends int
		args []string
	}{
		{cli.ExitError, []string{"run", "--manifests", n.dir, "--node", "node-a", "--socket", filepath.Join(t.TempDir(), "s.sock")}},
		{cli.ExitError, []string{"plan", "--manifests", n.dir, "--node", "node-a"}},
		{cli.ExitFound, []string{"preflight"}},
	} {
		code, out := inside(t, n.NS, append(of.args, "--mode", "ipvs", "--policy=false")...)
		for _, want := range []string{"IPVS with the scheduler rr: not supported by this kernel", "needs Linux 5.9 with ip_vs, ip_vs_rr", "modprobe -a ip_vs ip_vs_rr"} {
			if code != of.ends || !strings.Contains(out, want) {
				t.Errorf("%s ends with %d and does not say %q:\n%s", of.args[0], code, want, out)
			}
		}
	}
	if left := leftAll(t, n.NS, agentMode{}); left != "" {
		t.Errorf("there is something in the kernel:\n%s", left)
	}
}

// In a container an agent has CAP_NET_ADMIN and may not enter network namespaces. Each mode serves,
// what is left of another one goes, and cleanup removes it.
func TestModesInContainers(t *testing.T) {
	t.Parallel()
	n := newModeNode(t)
	contained := func(args ...string) *exec.Cmd {
		return exec.Command("setpriv", append([]string{"--bounding-set=-sys_admin", self}, args...)...)
	}
	socket := filepath.Join(t.TempDir(), "s.sock")
	for _, m := range agentModes {
		t.Run(m.name, func(t *testing.T) {
			agent := contained(append([]string{"run", "--manifests", n.dir, "--node", "node-a", "--socket", socket, "--policy=false", "--metrics-address", "", "--healthz-address", ""}, m.flags...)...)
			ended := startProgram(t, n.NS, agent)
			eventually(t, "the agent serves", func() bool {
				code, _, _ := sluice(t, "sync", "--socket", socket)
				return code == cli.ExitOK || len(ended) > 0
			})
			if c, err := dialFrom(n.client, "tcp", webAddress); err != nil {
				t.Error(err)
			} else if err := errors.Join(say(c), c.Close()); err != nil {
				t.Error(err)
			}
			eventually(t, "nothing is left of other modes", func() bool { return leftAll(t, n.NS, m) == "" })
		})
	}
	cleanup := contained("cleanup", "--socket", socket)
	var out bytes.Buffer
	cleanup.Stdout, cleanup.Stderr = &out, &out
	if err := n.Start(cleanup); err != nil {
		t.Fatal(err)
	}
	if err := cleanup.Wait(); err != nil || leftAll(t, n.NS, agentMode{}) != "" {
		t.Errorf("cleanup: %v: %s: leaves %s", err, out.String(), leftAll(t, n.NS, agentMode{}))
	}
}

// TestModeAutoInForeignNamespace starts an agent that has CAP_NET_ADMIN in its user namespace, but
// not for the network namespace: that is the reason for all modes, and told once.
func TestModeAutoInForeignNamespace(t *testing.T) {
	t.Parallel()
	n := newModeNode(t)
	out, err := n.Run("unshare", "--user", "--map-root-user", self, "preflight", "--mode", "auto", "--policy=false")
	if err == nil || strings.Count(string(out), "not permitted") != 1 || !strings.Contains(string(out), "--mode auto: operation not permitted: this process has CAP_NET_ADMIN, but not for this network namespace") {
		t.Errorf("%v: %s", err, out)
	}
}

// startProgram starts a program in a namespace, and ends it with the test. The channel has its
// error once it has ended.
func startProgram(t *testing.T, ns *netns.NS, cmd *exec.Cmd) (ended chan error) {
	t.Helper()
	log := &logtest.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := <-ended; t.Failed() {
			t.Logf("the program ends with %v:\n%s", err, log.String())
		}
	})
	return ended
}

// nodePort makes a node port of the service web.
var nodePort = strings.NewReplacer("clusterIP: 10.0.0.1\n", "clusterIP: 10.0.0.1\n  type: NodePort\n", "port: 80,", "port: 80, nodePort: 30080,").Replace(web)

// An agent of an ordinary user, without any privilege, serves what it can listen at, and its status
// names the rest, with what would help.
func TestUserspaceUnprivileged(t *testing.T) {
	t.Parallel()
	n := newModeNode(t)
	// Another user may enter none of the test's folders.
	home, err := os.MkdirTemp("/tmp", "sluice-unprivileged-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	manifests, socket := filepath.Join(home, "manifests"), filepath.Join(home, "run", "s.sock")
	for _, dir := range []string{home, manifests, filepath.Dir(socket)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Dir(socket), nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(manifests, "web.yaml"), []byte(nodePort), 0o644); err != nil {
		t.Fatal(err)
	}
	agent := asNobody("run", "--mode", "userspace", "--manifests", manifests, "--node", "node-a", "--nodeport-addresses", "192.0.2.1/32",
		"--socket", socket, "--policy=false", "--metrics-address", "", "--healthz-address", "")
	ended := startProgram(t, n.NS, agent)
	eventually(t, "the agent has tried to serve all", func() bool {
		_, _, stderr := sluice(t, "sync", "--socket", socket)
		return strings.Contains(stderr, "is not served") || len(ended) > 0
	})
	c, err := dialFrom(n.client, "tcp", "192.0.2.1:30080")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(say(c), c.Close()); err != nil {
		t.Error(err)
	}
	_, status, _ := sluice(t, "status", "--socket", socket)
	if want := "TCP 10.0.0.1:80 is not served: this machine does not have the address, and serving others takes CAP_NET_ADMIN"; !strings.Contains(status, want) {
		t.Errorf("status does not say %q:\n%s", want, status)
	}
	// It is told beforehand.
	preflight := asNobody("preflight", "--mode", "auto", "--policy=false")
	var out bytes.Buffer
	preflight.Stdout, preflight.Stderr = &out, &out
	if err := n.Start(preflight); err != nil {
		t.Fatal(err)
	}
	_ = preflight.Wait() // it fails where the node does not forward
	words := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"ok mode userspace: CAP_NET_ADMIN is missing, and all others need it ", "warn privileges CAP_NET_ADMIN is missing: the proxy listens only at addresses of services that this machine has"} {
		if !strings.Contains(words, want) {
			t.Errorf("preflight does not say %q:\n%s", want, out.String())
		}
	}
}

// nobody is a user without rights.
const nobody = 65534

// asNobody is this program as that user's, without capabilities.
func asNobody(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}
