package list

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/watch"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/logtest"
)

// sink keeps what a source delivered, as a store does.
type sink struct {
	mu     sync.Mutex
	lists  map[string]*model.NetworkSet
	events int
	synced int
}

func (s *sink) Apply(events []store.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists == nil {
		s.lists = make(map[string]*model.NetworkSet)
	}
	for _, e := range events {
		if e.Kind != model.AddressList {
			panic(fmt.Sprintf("an event of kind %s", e.Kind))
		}
		s.lists[e.Name.String()] = e.Object.(*model.NetworkSet)
		s.events++
	}
}

func (s *sink) SetSynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced++
}

// nets are those of a list, "none" if it was never delivered, or why it was refused.
func (s *sink) nets(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists[name] == nil {
		return "none"
	}
	if why := s.lists[name].Refused; why != "" {
		return "refused: " + why
	}
	return join(s.lists[name].Nets, " ")
}

func (s *sink) counts() (events, synced int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events, s.synced
}

// fixture is a list called "bad", in a file of the same name, with a source that follows it.
type fixture struct {
	t      *testing.T
	path   string
	sink   *sink
	source *Source
	log    *logtest.Log
}

// follow runs a source on a file until the test ends.
func follow(t *testing.T, path string) *fixture {
	t.Helper()
	f := &fixture{t: t, path: path, sink: &sink{}, log: &logtest.Log{}}
	f.source = New(Files{{Name: "bad", Path: path}}, f.sink, slog.New(slog.NewTextHandler(f.log, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.source.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return f
}

// untold runs a source on a file within the bubble of a synctest until it ends. Nobody listens to
// the kernel there, as time would stand still: the source finds all that happens with time alone.
func untold(t *testing.T, path string) *fixture {
	t.Helper()
	f := &fixture{t: t, path: path, sink: &sink{}, log: &logtest.Log{}}
	f.source = New(Files{{Name: "bad", Path: path}}, f.sink, slog.New(slog.NewTextHandler(f.log, nil)))
	w, err := watch.New()
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { f.source.follow(ctx, w) })
	t.Cleanup(func() {
		cancel()
		following.Wait()
		w.Close()
	})
	return f
}

// wait polls until a condition holds.
func (f *fixture) wait(what string, condition func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			f.t.Fatalf("%s: still not so after 10 s; networks %s, status %+v", what, f.sink.nets("bad"), f.source.Status())
		}
		time.Sleep(time.Millisecond)
	}
}

func (f *fixture) waitNets(want string) {
	f.t.Helper()
	f.wait("networks "+want, func() bool { return f.sink.nets("bad") == want })
}

// waitIssue waits until the one issue has all parts; with no parts, until there is none.
func (f *fixture) waitIssue(parts ...string) {
	f.t.Helper()
	f.wait(fmt.Sprintf("an issue with %q", parts), func() bool {
		issues := f.source.Status().Issues
		if len(parts) == 0 || len(issues) != 1 {
			return len(parts) == 0 && len(issues) == 0
		}
		return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(issues[0].String(), p) })
	})
}

func (f *fixture) write(content string) { f.t.Helper(); write(f.t, f.path, content) }

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fileWith(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bad")
	write(t, path, content)
	return path
}

func TestFollow(t *testing.T) {
	f := follow(t, fileWith(t, "192.0.2.1\n10.0.0.0/8\n"))
	f.waitNets("10.0.0.0/8 192.0.2.1/32")
	f.wait("synced", func() bool { return f.source.Status().Synced })
	f.sink.mu.Lock()
	got := f.sink.lists["bad"]
	f.sink.mu.Unlock()
	if got.Key.String() != "AddressList bad" || got.Labels["sluice.dev/list"] != "bad" || len(got.Labels) != 1 {
		t.Errorf("key %s, labels %v", got.Key, got.Labels)
	}
	f.write("192.0.2.2\n") // in place
	f.waitNets("192.0.2.2/32")
	write(t, f.path+".new", "192.0.2.3\n")
	must(t, os.Rename(f.path+".new", f.path))
	f.waitNets("192.0.2.3/32")
	f.write("")
	f.waitNets("")
	if st := f.source.Status(); len(st.Issues)+len(st.Lacking) != 0 || st.Objects["AddressList"] != 1 || st.Where != f.path {
		t.Errorf("status %+v", st)
	}
}

func TestUnchangedContentDeliversNothing(t *testing.T) {
	f := follow(t, fileWith(t, "192.0.2.1\n10.0.0.0/8\n"))
	f.waitNets("10.0.0.0/8 192.0.2.1/32")
	f.write("# the same\n10.0.0.0/8\n192.0.2.1\n192.0.2.1\n")
	must(t, f.source.Flush(t.Context()))
	if events, synced := f.sink.counts(); events != 1 || synced != 1 {
		t.Errorf("%d events, synced %d times", events, synced)
	}
}

func TestBrokenLines(t *testing.T) {
	f := follow(t, fileWith(t, "192.0.2.1\nx\n"))
	f.waitIssue("AddressList bad", f.path+":2", `line 2: "x"`, "in force: nothing of it, and rules deny")
	f.wait("synced", func() bool { return f.source.Status().Synced })
	if got := f.sink.nets("bad"); !strings.HasPrefix(got, "refused: ") || !strings.Contains(got, `line 2: "x"`) {
		t.Errorf("got %s, want a set that is refused for line 2", got)
	}
	f.sink.mu.Lock()
	if set := f.sink.lists["bad"]; set.Labels["sluice.dev/list"] != "bad" || len(set.Nets) != 0 {
		t.Errorf("what stands in for it: %+v", set)
	}
	f.sink.mu.Unlock()
	if l := f.source.Status().Lacking; len(l) != 1 || !strings.Contains(l[0], "line 2") {
		t.Errorf("lacking %q", l)
	}
	f.write("192.0.2.1\n")
	f.waitNets("192.0.2.1/32")
	f.waitIssue()
	f.write("192.0.2.2\ny\nz\n")
	f.waitIssue(f.path+":2", `line 2: "y"`, `line 3: "z"`, "in force: its last good version")
	f.waitNets("192.0.2.1/32")
	if st := f.source.Status(); len(st.Lacking) != 0 { // its last good version is known
		t.Errorf("lacking %q", st.Lacking)
	}
}

// TestListShrinks warns of a list that loses most of its networks at once.
func TestListShrinks(t *testing.T) {
	f := follow(t, fileWith(t, "192.0.2.1\n192.0.2.3\n192.0.2.5\n192.0.2.7\n"))
	f.waitNets("192.0.2.1/32 192.0.2.3/32 192.0.2.5/32 192.0.2.7/32")
	f.write("192.0.2.1\n192.0.2.3\n") // half of it is left
	f.waitNets("192.0.2.1/32 192.0.2.3/32")
	if log := f.log.String(); strings.Contains(log, "level=WARN") {
		t.Errorf("logged: %s", log)
	}
	f.write("")
	f.waitNets("")
	if log := f.log.String(); !strings.Contains(log, "more than half") || !strings.Contains(log, "before=2 now=0") {
		t.Errorf("logged: %s", log)
	}
}

func TestFileVanishes(t *testing.T) {
	f := follow(t, fileWith(t, "192.0.2.1\n"))
	f.waitNets("192.0.2.1/32")
	must(t, os.Remove(f.path))
	f.waitIssue("no such file")
	f.waitNets("192.0.2.1/32")
	f.write("192.0.2.2\n")
	f.waitNets("192.0.2.2/32")
	f.waitIssue()
}

func TestFolderComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "later", "bad")
		f := untold(t, path)
		f.waitIssue("no such file")
		f.wait("synced and lacking", func() bool { st := f.source.Status(); return st.Synced && len(st.Lacking) == 1 })
		if got := f.sink.nets("bad"); !strings.Contains(got, "refused: open list") {
			t.Errorf("got %s, want a set that is refused", got)
		}
		must(t, os.Mkdir(filepath.Dir(path), 0o755))
		f.write("192.0.2.1\n")
		f.waitNets("192.0.2.1/32")
		f.wait("nothing lacking", func() bool { return len(f.source.Status().Lacking) == 0 })
	})
}

// TestHalfWritten writes a file in pieces: what it held before stays until the
// writer closes it, whatever makes the source look.
func TestHalfWritten(t *testing.T) {
	f := follow(t, fileWith(t, "192.0.2.1\n"))
	f.waitNets("192.0.2.1/32")
	w, err := os.OpenFile(f.path, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	for _, part := range []string{"", "10.0.0.1", "28\n"} {
		_, err = w.WriteString(part)
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if err := f.source.Flush(ctx); err == nil || !strings.Contains(err.Error(), "still writing "+f.path) {
			t.Errorf("Flush while the file is being written: %v", err)
		}
		cancel()
		f.waitNets("192.0.2.1/32")
	}
	must(t, w.Close())
	must(t, f.source.Flush(t.Context()))
	f.waitNets("10.0.0.128/32")
}

// TestBusyAtTheStart has a list that somebody is writing when the source
// begins: it is waited for, but not for long.
func TestBusyAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := fileWith(t, "")
		w, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		f := untold(t, path)
		f.wait("synced and lacking", func() bool {
			st := f.source.Status()
			return st.Synced && len(st.Lacking) == 1 && strings.Contains(st.Lacking[0], "somebody is writing it")
		})
		if got := f.sink.nets("bad"); got != "refused: somebody is writing it" {
			t.Errorf("got %s, want a set that is refused", got)
		}
		_, err = w.WriteString("192.0.2.1\n")
		must(t, err)
		must(t, w.Close())
		f.waitNets("192.0.2.1/32")
	})
}

// TestConfigMap swaps the folder behind the links, as the kubelet does.
func TestConfigMap(t *testing.T) {
	dir := t.TempDir()
	version := func(n int, content string) {
		name := fmt.Sprintf("..v%d", n)
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		write(t, filepath.Join(dir, name, "bad"), content)
		must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version(1, "192.0.2.1\n")
	must(t, os.Symlink("..data/bad", filepath.Join(dir, "bad")))
	f := follow(t, filepath.Join(dir, "bad"))
	f.waitNets("192.0.2.1/32")
	version(2, "192.0.2.2\n")
	f.waitNets("192.0.2.2/32")
}

// TestChangeWithoutEvent changes a file behind a link that leads out of the folder.
func TestChangeWithoutEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := fileWith(t, "192.0.2.1\n")
		link := filepath.Join(t.TempDir(), "bad")
		must(t, os.Symlink(far, link))
		f := untold(t, link)
		f.waitNets("192.0.2.1/32")
		write(t, far, "192.0.2.2\n")
		f.waitNets("192.0.2.2/32")
		write(t, far, "192.0.2.33\n")
		must(t, f.source.Flush(t.Context()))
		if got := f.sink.nets("bad"); got != "192.0.2.33/32" {
			t.Errorf("after Flush: %s", got)
		}
	})
}

func TestNoRegularFile(t *testing.T) {
	f := follow(t, t.TempDir())
	f.waitIssue("no regular file")
	big := filepath.Join(t.TempDir(), "bad")
	write(t, big, "")
	must(t, os.Truncate(big, maxFile+1)) // without taking any room
	follow(t, big).waitIssue("split it")
}

func TestFilesAreAFlag(t *testing.T) {
	var files Files
	for _, c := range []struct{ value, fault string }{
		{"bad=/lists/bad.txt", ""},
		{"other-1.x=/lists/../x=y", ""},
		{"bad=/again", "two lists called bad"},
		{"bad", "not NAME=FILE"},
		{"bad=", "not NAME=FILE"},
		{"=x", "1 to 63 characters"},
		{"Bad=x", "no name of a list"},
		{"-bad=x", "no name of a list"},
		{strings.Repeat("x", 64) + "=x", "1 to 63 characters"},
	} {
		err := files.Set(c.value)
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q: %v, want %q", c.value, err, c.fault)
		}
	}
	if got, want := files.String(), "bad=/lists/bad.txt,other-1.x=/x=y"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
