package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/netns"
	"sluice.dev/sluice/internal/sysctl"
	"sluice.dev/sluice/test/world"
)

// Two network namespaces have the same run directory, as the files of one machine are the same in
// all. Commands in the one leave alone what the agent of the other has in it: its socket, its record
// of kernel parameters, its key. And an agent in the one does not write over them.
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
