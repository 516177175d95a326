package lock

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// One has it, and whoever is next has it at once, also while programs are started.
func TestTake(t *testing.T) {
	t.Parallel()
	name := fmt.Sprint("sluice-lock-test-", os.Getpid())
	release, err := Take(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Take(name); !errors.Is(err, ErrHeld) {
		t.Errorf("taken twice: %v", err)
	}
	release()
	var over atomic.Bool
	var starting sync.WaitGroup
	for range 4 {
		starting.Go(func() {
			for !over.Load() {
				if err := exec.CommandContext(t.Context(), "true").Run(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	defer starting.Wait()
	defer over.Store(true)
	for i := range 1_000 {
		release, err := Take(name)
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		release()
	}
}

// A file's lock has one holder, too, and the next has it once it is given back.
func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	release, err := File(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := File(path); !errors.Is(err, ErrHeld) {
		t.Errorf("taken twice: %v", err)
	}
	release()
	if release, err = File(path); err != nil {
		t.Fatal(err)
	}
	release()
	if left, _ := filepath.Glob(filepath.Dir(path) + "/*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if _, err := File(filepath.Join(path, "below")); err == nil || errors.Is(err, ErrHeld) {
		t.Errorf("in no folder: %v", err)
	}
}
