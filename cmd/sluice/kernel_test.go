package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// nodeNS makes a network namespace with another program's table in it.
func nodeNS(t *testing.T) *netns.NS {
	t.Helper()
	ns := world.NewHost(t, "node").NS
	nft(t, ns, "add table inet other")
	return ns
}

func nft(t *testing.T, ns *netns.NS, command ...string) string {
	t.Helper()
	out, err := ns.Run("nft", command...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestKernel(t *testing.T) {
	ns := nodeNS(t)
	dir := folder(t, map[string]string{"web.yaml": web})
	socket := filepath.Join(t.TempDir(), "s.sock")
	stop := startAgent(t, dir, socket, ns.Do)
	status := func() agent.Status {
		s, err := agent.NewClient(socket).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	inside := func(args ...string) (code int, out string) {
		var b bytes.Buffer
		err := ns.Do(func() error { code = execute(t.Context(), args, &b, &b); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return code, b.String()
	}

	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	if table := nft(t, ns, "list table inet sluice"); !strings.Contains(table, "10.0.0.1") || !strings.Contains(table, "10.1.0.2") {
		t.Errorf("the table has no trace of the service:\n%s", table)
	}

	nft(t, ns, "delete table inet sluice")
	deleted := time.Now()
	eventually(t, "the table is back", func() bool { return strings.Contains(nft(t, ns, "list tables"), "inet sluice") })
	away := time.Since(deleted)
	eventually(t, "the heal is counted", func() bool { return status().Heals == 1 })
	// It is noticed within a second on a machine that has time for it.
	if noticed := away - time.Duration(status().LastApply.Took); noticed > 10*time.Second {
		t.Errorf("the table was away for %s, and unnoticed for %s of it", away, noticed)
	}
	if table := nft(t, ns, "list table inet sluice"); !strings.Contains(table, "10.1.0.2") {
		t.Errorf("the table that is back has no trace of the service:\n%s", table)
	}

	stop()
	if code, out := inside("plan", "--manifests", dir, "--node", "node-a"); code != cli.ExitOK || out != "nothing to do\n" {
		t.Errorf("plan after the agent has stopped exits with %d: %s", code, out)
	}
	stop = startAgent(t, dir, socket, ns.Do)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	if s := status(); s.LastApply == nil || s.LastApply.Operations != 0 {
		t.Errorf("a restart changed something: %+v", s.LastApply)
	}

	stop()
	if code, out := inside("cleanup", "--socket", socket); code != cli.ExitOK {
		t.Errorf("cleanup exits with %d: %s", code, out)
	}
	if tables := nft(t, ns, "list tables"); tables != "table inet other\n" {
		t.Errorf("tables after cleanup:\n%s", tables)
	}
}

// While the kernel keeps what cannot be read, changes of readable objects are programmed in full.
func TestKernelKeeps(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	other := strings.NewReplacer("web", "other", "10.0.0.1", "10.0.0.7", "10.1.0.1", "10.1.0.7").Replace(web)
	dir := folder(t, map[string]string{"web.yaml": web, "other.yaml": other})
	socket := filepath.Join(t.TempDir(), "s.sock")
	sync := func(want int) {
		t.Helper()
		if code, _, stderr := sluice(t, "sync", "--socket", socket); code != want {
			t.Fatalf("sync exits with %d: %s", code, stderr)
		}
	}
	holds := func(text string, want bool) {
		t.Helper()
		if table := nft(t, ns, "list table inet sluice"); strings.Contains(table, text) != want {
			t.Errorf("the kernel has %s: %t, want %t:\n%s", text, !want, want, table)
		}
	}
	stop := startAgent(t, dir, socket, ns.Do)
	sync(cli.ExitOK)
	stop()
	write(t, dir, "other.yaml", "kind: [")
	startAgent(t, dir, socket, ns.Do)
	sync(cli.ExitError)
	holds("10.1.0.7", true)

	write(t, dir, "web.yaml", web[:strings.Index(web, "endpoints:")]+"endpoints: []\n")
	sync(cli.ExitError)
	holds("10.1.0.1", false)
	holds("10.1.0.7", true)

	write(t, dir, "web.yaml", web)
	sync(cli.ExitError)
	holds("10.1.0.1", true)
	s, err := agent.NewClient(socket).Status(t.Context())
	if err != nil || s.Kept != 1 || s.Failure != nil || s.Heals != 0 {
		t.Errorf("status: %+v, %v", s, err)
	}

	write(t, dir, "other.yaml", other)
	sync(cli.ExitOK)
	holds("10.1.0.7", true)
}
