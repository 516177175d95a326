package process_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"sluice.dev/sluice/test/lab/process"
)

// What a process has left that has ended is found, and nothing of one that runs, or of others.
func TestLeft(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{
		fmt.Sprintf("mark-%d-1-a", ended.Process.Pid), fmt.Sprintf("mark-%d", ended.Process.Pid),
		fmt.Sprintf("mark-%d-1-a", os.Getpid()), fmt.Sprintf("other-%d-1-a", ended.Process.Pid), "mark-", "mark-x-1",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(dir, fmt.Sprintf("mark-%d", ended.Process.Pid)), filepath.Join(dir, fmt.Sprintf("mark-%d-1-a", ended.Process.Pid))}
	if got := process.Left(dir, "mark-"); !slices.Equal(got, want) {
		t.Errorf("left: %v, want %v", got, want)
	}
	if got := process.Left(filepath.Join(dir, "nowhere"), "mark-"); got != nil {
		t.Errorf("in no folder: %v", got)
	}
}
