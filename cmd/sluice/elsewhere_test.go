package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/test/logtest"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// Two network namespaces have the same run directory, as the files of one machine are the same in
// all. Commands in the one leave alone what the agent of the other has in it: its socket, its
// record of kernel parameters, its key. And an agent in the one does not write over them.
func TestAnotherNamespacesFiles(t *testing.T) {
	t.Parallel()
	one, other := nodeNS(t), world.NewHost(t, "other").NS
	dir := folder(t, map[string]string{"web.yaml": web})
	socket := filepath.Join(t.TempDir(), "s.sock")
	forwarding := func(ns *netns.NS, want string) {
		t.Helper()
		eventually(t, "forwarding is "+want, func() (is bool) {
			_ = ns.Do(func() error {
				now, err := sysctl.Read(sysctl.Forward4)
				is = now == want
				return err
			})
			return is
		})
	}
	key := func(ns *netns.NS) (key [32]byte) {
		t.Helper()
		if err := ns.Do(func() (err error) { key, err = nodeKey(keyPath(socket)); return err }); err != nil {
			t.Fatal(err)
		}
		return key
	}
	cleanup := func(ns *netns.NS) string {
		t.Helper()
		code, out := inside(t, ns, "cleanup", "--socket", socket)
		if code != cli.ExitOK {
			t.Errorf("cleanup ends with %d: %s", code, out)
		}
		return out
	}

	for _, ns := range []*netns.NS{one, other} {
		if err := ns.Sysctl(sysctl.Forward4, "0"); err != nil {
			t.Fatal(err)
		}
	}
	stop := startAgent(t, dir, socket, one.Do, "--set-sysctls")
	forwarding(one, "1")
	ours := key(one)
	if theirs := key(other); theirs == ours {
		t.Error("two nodes have the same key")
	}
	if code, out := inside(t, one, "cleanup", "--socket", socket); code == cli.ExitOK || !strings.Contains(out, "stop it first") {
		t.Errorf("cleanup under an agent ends with %d: %s", code, out)
	}
	cleanup(other)
	if !agent.Alive(socket) {
		t.Error("the agent is not reached any more")
	}
	for _, way := range []string{"--from", "--to"} {
		if code, out := inside(t, other, "takeover", way, "kube-proxy", "--dry-run", "--socket", socket); code == cli.ExitOK || !strings.Contains(out, "another network namespace") {
			t.Errorf("takeover %s by an agent of another namespace ends with %d: %s", way, code, out)
		}
	}
	stop()

	stop = startAgent(t, dir, socket, other.Do, "--set-sysctls")
	forwarding(other, "1")
	stop()
	if out := cleanup(other); !strings.Contains(out, "restored: "+sysctl.Forward4) {
		t.Errorf("cleanup restores nothing: %s", out)
	}
	forwarding(other, "0")
	forwarding(one, "1")
	if key(one) != ours {
		t.Error("the node has another key")
	}
	if out := cleanup(one); !strings.Contains(out, "restored: "+sysctl.Forward4) {
		t.Errorf("cleanup restores nothing: %s", out)
	}
	forwarding(one, "0")
	left, err := os.ReadDir(filepath.Dir(socket))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Commands that ask an agent of another network namespace say so, and only those.
func TestAnotherNamespacesAnswers(t *testing.T) {
	t.Parallel()
	one, other := nodeNS(t), world.NewHost(t, "other").NS
	dir, socket := folder(t, map[string]string{"web.yaml": web}), filepath.Join(t.TempDir(), "s.sock")
	ended := startProgram(t, one, exec.Command(self, "run", "--manifests", dir, "--node", "node-a", "--socket", socket, "--metrics-address", "", "--healthz-address", "", "--set-sysctls=false"))
	eventually(t, "the agent answers", func() bool {
		code, _ := inside(t, one, "sync", "--socket", socket)
		return code == cli.ExitOK || len(ended) > 0
	})
	for _, command := range []string{"status", "services", "policies", "sync", "plan", "why 10.0.0.1 10.0.0.2:80", "drops --for 1ms"} {
		for _, ns := range []*netns.NS{one, other} {
			_, out := inside(t, ns, append(strings.Fields(command), "--socket", socket)...)
			if strings.Contains(out, "answers, an agent of another network namespace than this one\n") != (ns == other) {
				t.Errorf("%s in %s: %s", command, ns.Name, out)
			}
		}
	}
}

// Two balancers do not have the same state file: each would write over what the other was told.
func TestAnotherBalancersState(t *testing.T) {
	t.Parallel()
	one, other := world.NewHost(t, "one").NS, world.NewHost(t, "other").NS
	dir := t.TempDir()
	balance := func(ns *netns.NS, socket string, out io.Writer) (stop func() int) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan int, 1)
		go func() {
			err := ns.Do(func() error {
				ended <- execute(ctx, []string{"balance", "--state", filepath.Join(dir, "state.json"), "--api", "127.0.0.1:5555", "--key", "k",
					"--set-sysctls=false", "--socket", filepath.Join(dir, socket), "--metrics-address", "", "--healthz-address", ""}, out, out)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}()
		return func() int { cancel(); return <-ended }
	}
	var first, second logtest.Log
	stop := balance(one, "1.sock", &first)
	defer func() {
		if t.Failed() {
			t.Logf("the first:\n%s\nthe second:\n%s", first.String(), second.String())
		}
	}()
	eventually(t, "the first serves", func() bool { return agent.Alive(filepath.Join(dir, "1.sock")) })
	ended := balance(other, "2.sock", &second)
	eventually(t, "the second says what is in its way", func() bool { return strings.Contains(second.String(), "another balancer has the state file") })
	if code := ended(); code != cli.ExitError {
		t.Errorf("the second ends with %d", code)
	}
	if code := stop(); code != cli.ExitOK {
		t.Errorf("the first ends with %d", code)
	}
	ended = balance(other, "2.sock", &second)
	eventually(t, "the second serves", func() bool { return agent.Alive(filepath.Join(dir, "2.sock")) })
	if code := ended(); code != cli.ExitOK {
		t.Errorf("the second ends with %d, although the first has ended", code)
	}
}
