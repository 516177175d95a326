package kubeproxy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// A ConfigMap's file is a link to one in a folder that is replaced as a whole.
func TestWatch(t *testing.T) { synctest.Test(t, testWatch) }

func testWatch(t *testing.T) {
	dir := t.TempDir()
	write := func(folder, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, folder, "config.conf"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(folder string) {
		t.Helper()
		next := filepath.Join(dir, "next")
		if err := os.Symlink(folder, next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(dir, "data")); err != nil {
			t.Fatal(err)
		}
	}
	write("one", "a")
	write("two", "a")
	write("three", "b")
	link("one")
	path := filepath.Join(dir, "data", "config.conf")
	ended := make(chan error, 1)
	go func() { ended <- Watch(t.Context(), path, []byte("a")) }()
	unchanged := func() {
		t.Helper()
		time.Sleep(pollInterval)
		synctest.Wait()
		if len(ended) > 0 {
			t.Fatal(<-ended)
		}
	}
	unchanged()
	link("two") // another file that holds the same
	unchanged()
	if err := os.Remove(filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	unchanged()
	link("three")
	if err := <-ended; !errors.Is(err, ErrChanged) {
		t.Error(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Watch(ctx, path, []byte("b")); err != nil {
		t.Errorf("at the end: %v", err)
	}
}
