package harness

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// TestSweep: a process and a namespace of a run that was killed are removed.
func TestSweep(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("%s%d-1-node", Marker, dead.Process.Pid)
	ns, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close(); _ = netns.Delete(name) })
	left := exec.Command("sleep", "60")
	if err := ns.Start(left); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = left.Process.Kill() })
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	if err := left.Wait(); err == nil {
		t.Error("the process that was left ended by itself")
	}
	if _, err := os.Stat(ns.Path()); !os.IsNotExist(err) {
		t.Errorf("the namespace is still there: %v", err)
	}
}

func TestCommitsAreSeen(t *testing.T) {
	h := world.NewHost(t, "commits")
	w, err := WatchCommits(h.NS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	began := time.Now()
	h.Exec("nft", "add table ip t; add set ip t s { type inet_service; }; add element ip t s { 1, 2, 3 }")
	ended := time.Now()
	c, err := w.Last(t.Context(), 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if c.Elements != 3 || c.At.Before(began) || c.At.After(ended.Add(time.Second)) {
		t.Errorf("saw %d elements at %s, want 3 between %s and %s", c.Elements, c.At, began, ended)
	}
}
