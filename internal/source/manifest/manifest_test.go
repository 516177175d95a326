package manifest

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
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/watch"
	"sluice.dev/sluice/internal/store"
)

// sink keeps what a source delivered, as a store does.
type sink struct {
	mu      sync.Mutex
	objects map[model.Ref]any
	batches [][]store.Event
	synced  bool
	early   bool // something was wrong with the order of calls
}

func (s *sink) Apply(events []store.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects == nil {
		s.objects = make(map[model.Ref]any)
	}
	for _, e := range events {
		k := model.Ref{Kind: e.Kind, Name: e.Name}
		if e.Object == nil {
			delete(s.objects, k)
		} else {
			s.objects[k] = e.Object
		}
	}
	s.batches = append(s.batches, events)
}

func (s *sink) SetSynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early = s.early || s.synced
	s.synced = true
}

// names lists the objects that are there, as "Service shop/web".
func (s *sink) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := []string{}
	for k := range s.objects {
		names = append(names, k.String())
	}
	slices.Sort(names)
	return names
}

func (s *sink) service(name string) *model.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, _ := s.objects[model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: name}}].(*model.Service)
	return o
}

func (s *sink) events() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, b := range s.batches {
		n += len(b)
	}
	return n
}

// fixture is a folder with a source that follows it.
type fixture struct {
	t      testing.TB
	dir    string
	sink   *sink
	source *Source
}

// follow runs a source on a folder until the test ends.
func follow(t testing.TB, dir string) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: dir, sink: &sink{}}
	f.source = New(dir, false, f.sink, slog.New(slog.DiscardHandler))
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

// untold runs a source on a folder within the bubble of a synctest until it ends. Nobody listens to
// the kernel there, as time would stand still: what happens is found with time alone, or once the
// test says so with told.
func untold(t *testing.T, dir string) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: dir, sink: &sink{}}
	f.source = New(dir, false, f.sink, slog.New(slog.DiscardHandler))
	w, err := watch.New()
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { f.source.follow(ctx, w) })
	t.Cleanup(func() {
		cancel()
		following.Wait()
	})
	return f
}

// told has the source take what the kernel tells of the folder.
func (f *fixture) told() {
	f.source.work.Lock()
	defer f.source.work.Unlock()
	f.source.watcher.Ready.Set()
}

// wait polls until a condition holds.
func (f *fixture) wait(what string, condition func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			f.t.Fatalf("%s: still not so after 10 s; objects %v, status %+v", what, f.sink.names(), f.source.Status())
		}
		time.Sleep(time.Millisecond)
	}
}

func (f *fixture) waitSynced() {
	f.t.Helper()
	f.wait("synced", func() bool { return f.source.Status().Synced })
}

func (f *fixture) waitNames(want ...string) {
	f.t.Helper()
	f.wait(fmt.Sprintf("objects %v", want), func() bool { return slices.Equal(f.sink.names(), want) })
}

func (f *fixture) waitIssue(parts ...string) {
	f.t.Helper()
	f.wait(fmt.Sprintf("an issue with %q", parts), func() bool {
		return slices.ContainsFunc(f.source.Status().Issues, func(i model.Issue) bool {
			text := i.Object.String() + "|" + i.Source + "|" + i.Reason
			return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(text, p) })
		})
	})
}

func (f *fixture) waitNoIssue() {
	f.t.Helper()
	f.wait("no issue", func() bool { return len(f.source.Status().Issues) == 0 })
}

// write replaces a file's content in place, without renaming.
func (f *fixture) write(name, content string) {
	f.t.Helper()
	write(f.t, filepath.Join(f.dir, name), content)
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) flush() {
	f.t.Helper()
	if err := f.source.Flush(f.t.Context()); err != nil {
		f.t.Fatalf("Flush: %v", err)
	}
}

// serviceYAML is a service "shop/<name>" on port.
func serviceYAML(name string, port int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: %s
  namespace: shop
spec:
  clusterIP: 10.96.0.10
  selector: {app: %[1]s}
  ports:
  - port: %d
`, name, port)
}
