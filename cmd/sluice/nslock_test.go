package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/agent/nslock"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/netns"
)

// A second agent on a node, whatever its socket and addresses, only waits. It takes over when the
// first one ends.
func TestTwoAgents(t *testing.T) {
	ns := nodeNS(t)
	dir := folder(t, map[string]string{"web.yaml": web})
	first, second := filepath.Join(t.TempDir(), "1.sock"), filepath.Join(t.TempDir(), "2.sock")
	stop := startAgent(t, dir, first, ns.Do)
	if code, _, stderr := sluice(t, "sync", "--socket", first); code != cli.ExitOK {
		t.Fatal(stderr)
	}

	// An agent that has waited long enough ends and names the agent in its way.
	patient := lockNamespace
	lockNamespace = func(ctx context.Context, log *slog.Logger) (*nslock.Lock, error) {
		// The first agent has to be asked for its name meanwhile.
		return nslock.Acquire(ctx, 500*time.Millisecond, takeGroup, log)
	}
	var out bytes.Buffer
	err := ns.Do(func() error {
		if code := execute(t.Context(), []string{"run", "--manifests", dir, "--socket", second}, &out, &out); code == cli.ExitOK {
			t.Error("a second agent ends as if all were well")
		}
		return nil
	})
	lockNamespace = patient
	if err != nil || !strings.Contains(out.String(), fmt.Sprintf("process %d is at work", os.Getpid())) {
		t.Errorf("a second agent says: %s: %v", out.String(), err)
	}

	other := folder(t, map[string]string{"web.yaml": strings.ReplaceAll(web, "10.1.0.2", "10.1.0.3")})
	started := make(chan func(), 1)
	go func() { started <- startAgent(t, other, second, ns.Do) }()
	eventually(t, "the second agent waits", func() bool { return waiting(t, ns) == 1 })
	backends := func() bool { return strings.Contains(nft(t, ns, "list table inet sluice"), "10.1.0.3") }
	if backends() {
		t.Error("the second agent changed the table")
	}
	stop()
	stop = <-started
	defer stop()
	if code, _, stderr := sluice(t, "sync", "--socket", second); code != cli.ExitOK || !backends() {
		t.Errorf("the second agent has not taken over: %d %s", code, stderr)
	}
}

// waiting counts the connections to the name by which agents know of each other, except for the
// listening one.
func waiting(t *testing.T, ns *netns.NS) int {
	t.Helper()
	sockets := ""
	if err := ns.Do(func() error {
		data, err := os.ReadFile("/proc/thread-self/net/unix")
		sockets = string(data)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return strings.Count(sockets, "@sluice.dev/agent") - 1
}
