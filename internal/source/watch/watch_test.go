package watch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// running makes a watcher that runs until the test ends.
func running(t *testing.T) *Watcher {
	t.Helper()
	w, err := New()
	must(t, err)
	var running sync.WaitGroup
	running.Go(w.Run)
	t.Cleanup(func() {
		w.Close()
		running.Wait()
	})
	return w
}

// has tells whether the events taken now have one of this name and mask.
func has(w *Watcher, wd int32, name string, mask uint32) bool {
	found := false
	for _, e := range w.Take() {
		found = found || e == Event{WD: wd, Mask: mask, Name: name}
	}
	return found
}

func TestEvents(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a")
	w := running(t)
	wd, err := w.Add(dir)
	must(t, err)
	if again, err := w.Add(dir); again != wd || err != nil {
		t.Errorf("a folder that is watched already: %d, %v, want %d", again, err, wd)
	}
	f, err := os.Create(file)
	must(t, err)
	_, err = f.WriteString("half")
	must(t, err)
	if e := w.Take(); len(e) != 1 || e[0].Mask != unix.IN_CREATE {
		t.Errorf("before the file is closed: %v", e)
	}
	must(t, f.Close())
	for _, c := range []struct {
		name string
		mask uint32
		do   func() error
	}{
		{"a", unix.IN_CLOSE_WRITE, func() error { return nil }},
		{"b", unix.IN_MOVED_TO, func() error { return os.Rename(file, filepath.Join(dir, "b")) }},
		{"b", unix.IN_ATTRIB, func() error { return os.Chmod(filepath.Join(dir, "b"), 0o600) }},
		{"b", unix.IN_DELETE, func() error { return os.Remove(filepath.Join(dir, "b")) }},
		{"sub", unix.IN_CREATE | unix.IN_ISDIR, func() error { return os.Mkdir(filepath.Join(dir, "sub"), 0o755) }},
	} {
		must(t, c.do())
		if !has(w, wd, c.name, c.mask) {
			t.Errorf("no event %#x of %s", c.mask, c.name)
		}
	}
	w.Remove(wd)
	w.Remove(wd)
	w.Take()
	must(t, os.WriteFile(file, nil, 0o644))
	if e := w.Take(); len(e) != 0 {
		t.Errorf("after the watch has ended: %v", e)
	}
}

// TestReady waits for an event, as a source does.
func TestReady(t *testing.T) {
	dir := t.TempDir()
	w := running(t)
	wd, err := w.Add(dir)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o644))
	for deadline := time.After(10 * time.Second); ; {
		select {
		case <-w.Ready:
		case <-deadline:
			t.Fatal("no event after 10 s")
		}
		if has(w, wd, "a", unix.IN_CLOSE_WRITE) {
			return
		}
	}
}

func TestNoFolder(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o644))
	w := running(t)
	for name, want := range map[string]error{"none": fs.ErrNotExist, "a": unix.ENOTDIR} {
		if _, err := w.Add(filepath.Join(dir, name)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// A file that is renamed within the folder is never seen to be gone: the kernel tells of its old
// name and of its new one in two events, one after the other.
func TestRenameIsOnePiece(t *testing.T) {
	dir := t.TempDir()
	names := [2]string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	must(t, os.WriteFile(names[0], nil, 0o644))
	w, err := New()
	must(t, err)
	defer w.Close()
	_, err = w.Add(dir)
	must(t, err)
	done := make(chan error, 1)
	var renaming sync.WaitGroup
	defer renaming.Wait()
	renaming.Go(func() {
		for i := range 20_000 {
			if err := os.Rename(names[i%2], names[1-i%2]); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	})
	for ended := false; !ended; {
		select {
		case err := <-done:
			must(t, err)
			ended = true
		default:
		}
		if events := w.Take(); len(events)%2 != 0 {
			t.Fatalf("of %d events the last is %+v", len(events), events[len(events)-1])
		}
	}
	must(t, os.Rename(names[0], filepath.Join(t.TempDir(), "elsewhere")))
	if events := w.Take(); len(events) != 1 || events[0].Mask&unix.IN_MOVED_FROM == 0 {
		t.Errorf("a file that left the folder gave %+v", events)
	}
}
