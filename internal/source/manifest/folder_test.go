package manifest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/source/watch"
)

func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }

func (f *fixture) remove(name string) {
	f.t.Helper()
	if err := os.Remove(f.path(name)); err != nil {
		f.t.Fatal(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// folderWith makes a folder with one file for each pair of name and content.
func folderWith(t testing.TB, files ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "manifests")
	must(t, os.Mkdir(dir, 0o755))
	for i := 0; i < len(files); i += 2 {
		write(t, filepath.Join(dir, files[i]), files[i+1])
	}
	return dir
}

func TestWrites(t *testing.T) {
	f := follow(t, folderWith(t, "a.yaml", serviceYAML("a", 80)))
	f.waitNames("Service shop/a")
	f.waitSynced()
	f.write("b.yml", serviceYAML("b", 80)+"---\n"+serviceYAML("c", 80))
	f.waitNames("Service shop/a", "Service shop/b", "Service shop/c")
	f.write("b.yml", serviceYAML("c", 81))
	f.waitNames("Service shop/a", "Service shop/c")
	if got := f.sink.service("c").Ports[0].Port; got != 81 {
		t.Errorf("port of c = %d, want 81", got)
	}
	f.remove("a.yaml")
	f.waitNames("Service shop/c")
	if f.sink.early {
		t.Error("SetSynced was called more than once")
	}
}

func TestAtomicReplace(t *testing.T) {
	f := follow(t, folderWith(t, "a.yaml", serviceYAML("a", 80)))
	f.waitNames("Service shop/a")
	f.write(".a.yaml.tmp", serviceYAML("a", 81)+"---\n"+serviceYAML("b", 81))
	must(t, os.Rename(f.path(".a.yaml.tmp"), f.path("a.yaml")))
	f.waitNames("Service shop/a", "Service shop/b")
	if got := f.sink.service("a").Ports[0].Port; got != 81 {
		t.Errorf("port of a = %d, want 81", got)
	}
	must(t, os.Rename(f.path("a.yaml"), f.path("a.bak")))
	f.waitNames()
}

func TestObjectsMoveBetweenFiles(t *testing.T) {
	f := follow(t, folderWith(t, "a.yaml", serviceYAML("a", 80)))
	f.waitNames("Service shop/a")
	before := f.sink.events()
	must(t, os.Rename(f.path("a.yaml"), f.path("z.yaml")))
	f.flush()
	f.waitNames("Service shop/a")
	if n := f.sink.events() - before; n != 0 {
		t.Errorf("a renamed file gave %d events", n)
	}
}

// TestConfigMap swaps the folder behind the links, as the kubelet does.
func TestConfigMap(t *testing.T) {
	dir := folderWith(t)
	version := func(n int, content string) string {
		name := fmt.Sprintf("..v%d", n)
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		write(t, filepath.Join(dir, name, "app.yaml"), content)
		must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		return filepath.Join(dir, name)
	}
	first := version(1, serviceYAML("a", 80))
	must(t, os.Symlink("..data/app.yaml", filepath.Join(dir, "app.yaml")))
	f := follow(t, dir)
	f.waitNames("Service shop/a")
	version(2, serviceYAML("b", 80))
	f.waitNames("Service shop/b")
	must(t, os.RemoveAll(first))
	f.flush()
	f.waitNames("Service shop/b")
}

func TestLinks(t *testing.T) {
	f := follow(t, folderWith(t, "keep.txt", serviceYAML("a", 80), ".other", serviceYAML("b", 80)))
	f.waitSynced()
	must(t, os.Symlink("keep.txt", f.path("soft.yaml")))
	f.waitNames("Service shop/a")
	must(t, os.Link(f.path(".other"), f.path("hard.yaml")))
	f.waitNames("Service shop/a", "Service shop/b")
}

// TestHalfWritten writes a file in pieces: what it held before stays until the
// writer closes it, whatever makes the source look.
func TestHalfWritten(t *testing.T) {
	for _, name := range []string{"a.yaml", "a.json"} {
		t.Run(name, func(t *testing.T) {
			content := func(services ...string) string {
				var b strings.Builder
				for _, s := range services {
					b.WriteString(convert(t, name, serviceYAML(s, 80)))
				}
				return b.String()
			}
			f := follow(t, folderWith(t, name, content("a", "b")))
			f.waitNames("Service shop/a", "Service shop/b")
			before := f.sink.events()
			w, err := os.OpenFile(f.path(name), os.O_WRONLY|os.O_TRUNC, 0)
			must(t, err)
			f.flushInVain(name)
			next := content("a", "b", "c")
			for _, part := range []string{next[:40], next[40:]} {
				_, err = w.WriteString(part)
				must(t, err)
				if part == next[:40] {
					f.flushInVain(name)
				}
			}
			must(t, w.Close())
			f.waitNames("Service shop/a", "Service shop/b", "Service shop/c")
			if n := f.sink.events() - before; n != 1 {
				t.Errorf("the new object came with %d events, want 1", n)
			}
			f.waitNoIssue()
		})
	}
}

// flushInVain flushes while a file is being written.
func (f *fixture) flushInVain(name string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := f.source.Flush(ctx); err == nil || !strings.Contains(err.Error(), "still writing "+name) {
		f.t.Errorf("Flush while %s is being written: %v", name, err)
	}
}

// TestFlushWaitsForWriters closes a file while Flush waits for it.
func TestFlushWaitsForWriters(t *testing.T) {
	f := follow(t, folderWith(t, "a.yaml", serviceYAML("a", 80)))
	f.waitSynced()
	w, err := os.Create(f.path("b.yaml"))
	must(t, err)
	_, err = w.WriteString(serviceYAML("b", 80))
	must(t, err)
	f.flushInVain("b.yaml")
	done := make(chan error, 1)
	go func() { done <- f.source.Flush(t.Context()) }()
	select {
	case err := <-done:
		t.Fatalf("Flush returned while a file was being written: %v", err)
	case <-time.After(5 * time.Millisecond):
	}
	must(t, w.Close())
	must(t, <-done)
	if f.sink.service("b") == nil {
		t.Error("b is not there after Flush")
	}
}

// TestFolderIsSwapped sets the link to the folder anew, of which no event tells.
func TestFolderIsSwapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := folderWith(t, "a.yaml", serviceYAML("a", 80)), folderWith(t, "b.yaml", serviceYAML("b", 80))
		link := filepath.Join(t.TempDir(), "manifests")
		must(t, os.Symlink(one, link))
		f := untold(t, link)
		f.waitNames("Service shop/a")
		must(t, os.Symlink(two, link+".new"))
		must(t, os.Rename(link+".new", link))
		f.waitNames("Service shop/b")
		write(t, filepath.Join(two, "c.yaml"), serviceYAML("c", 80))
		f.told()
		f.waitNames("Service shop/b", "Service shop/c")
	})
}

// TestFlushLosesTheFolder leaves the folder unwatched behind Run's back, as a
// Flush does that finds it gone before any event tells.
func TestFlushLosesTheFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := untold(t, folderWith(t, "a.yaml", serviceYAML("a", 80)))
		f.waitSynced()
		f.source.work.Lock()
		f.source.detach()
		f.source.watcher.Take()
		f.source.work.Unlock()
		f.write("b.yaml", serviceYAML("b", 80))
		f.waitNames("Service shop/a", "Service shop/b")
	})
}

// TestChangeWithoutEvent changes a file behind a link that leads out of the folder.
func TestChangeWithoutEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outside := filepath.Join(t.TempDir(), "a.yaml")
		write(t, outside, serviceYAML("a", 80))
		dir := folderWith(t)
		must(t, os.Symlink(outside, filepath.Join(dir, "a.yaml")))
		f := untold(t, dir)
		f.waitNames("Service shop/a")
		write(t, outside, serviceYAML("b", 80))
		time.Sleep(walkInterval)
		f.waitNames("Service shop/b")
	})
}

// TestParserFails makes the parser panic: that is the one file's fault.
func TestParserFails(t *testing.T) {
	broken := parser{} // without a seed it can't make a checksum
	_, err := broken.parseSafely("a.json", []byte(convert(t, "a.json", serviceYAML("a", 80))), nil)
	if err == nil || !strings.Contains(err.Error(), "parse file") {
		t.Errorf("a parser that panics: %v", err)
	}
}

// TestBusyAtFirst finds a file that is being written when it starts.
func TestBusyAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := folderWith(t, "a.yaml", serviceYAML("a", 80), "b.yaml", serviceYAML("b", 80)[:50])
		w, err := os.OpenFile(filepath.Join(dir, "b.yaml"), os.O_WRONLY|os.O_APPEND, 0)
		must(t, err)
		f := untold(t, dir)
		f.waitNames("Service shop/a")
		f.wait("patience is over", func() bool {
			f.source.work.Lock()
			defer f.source.work.Unlock()
			began := f.source.began
			if !began.IsZero() && time.Since(began) < patience/2 && f.source.Status().Synced {
				t.Fatal("synced without a file that is being written")
			}
			return time.Since(began) > patience/2
		})
		_, err = w.WriteString(serviceYAML("b", 80)[50:])
		must(t, err)
		must(t, w.Close())
		f.waitNames("Service shop/a", "Service shop/b")
		f.waitSynced()
		f.waitNoIssue()
	})
}

// convert makes JSON of a document if the file's name asks for it.
func convert(t testing.TB, name, doc string) string {
	if !isJSON(name) {
		return doc + "---\n"
	}
	data, err := yaml.YAMLToJSON([]byte(doc))
	must(t, err)
	return string(data) + "\n"
}

func TestBrokenFiles(t *testing.T) {
	f := follow(t, folderWith(t,
		"a.yaml", serviceYAML("a", 80)+"---\n"+serviceYAML("b", 80),
		"other.yaml", serviceYAML("other", 80)))
	f.waitNames("Service shop/a", "Service shop/b", "Service shop/other")

	// The second document can't be parsed, the first has changed.
	f.write("a.yaml", serviceYAML("a", 81)+"---\nkind: Service\n  spec: [\n")
	f.waitIssue("a.yaml|a.yaml:13|")
	f.waitNames("Service shop/a", "Service shop/b", "Service shop/other")
	if got := f.sink.service("a").Ports[0].Port; got != 81 {
		t.Errorf("port of a = %d, want 81", got)
	}
	// A value is of the wrong type: that object alone stays as it was.
	f.write("a.yaml", serviceYAML("a", 82)+"---\n"+strings.Replace(serviceYAML("b", 82), "port: 82", `port: "82"`, 1))
	f.waitIssue("Service shop/b|a.yaml:12|spec.ports[0].port: is a string, should be a whole number")
	if got := f.sink.service("a").Ports[0].Port; got != 82 {
		t.Errorf("port of a = %d, want 82", got)
	}
	if got := f.sink.service("b").Ports[0].Port; got != 80 {
		t.Errorf("port of b = %d, want 80 as in the last good version", got)
	}
	// A value is out of range.
	f.write("a.yaml", serviceYAML("a", 82)+"---\n"+serviceYAML("b", 70000))
	f.waitIssue("Service shop/b|", "spec.ports[0].port: 70000")
	// Mended; then deleted.
	f.write("a.yaml", serviceYAML("b", 83))
	f.waitNames("Service shop/b", "Service shop/other")
	f.waitNoIssue()
	f.write("a.yaml", "")
	f.waitNames("Service shop/other")
}

func TestBrokenObjectThatWasNeverGood(t *testing.T) {
	f := follow(t, folderWith(t, "a.yaml", strings.Replace(serviceYAML("a", 80), "  clusterIP: 10.96.0.10\n", "", 1)))
	f.waitIssue("Service shop/a|a.yaml:1|", "spec.clusterIP: the service has no address")
	f.waitSynced()
	f.waitNames()
	f.write("a.yaml", serviceYAML("a", 80))
	f.waitNames("Service shop/a")
	f.waitNoIssue()
}

func TestUnchangedObjectsGiveNoEvent(t *testing.T) {
	f := follow(t, folderWith(t, "a.yaml", serviceYAML("a", 80)+"---\n"+serviceYAML("b", 80)))
	f.waitNames("Service shop/a", "Service shop/b")
	before := f.sink.events()
	f.write("a.yaml", "# a comment\n"+serviceYAML("b", 80)+"---\n"+serviceYAML("a", 80)+"  type: ClusterIP\n")
	f.flush()
	f.write("a.yaml", serviceYAML("b", 80)+"---\n"+serviceYAML("a", 81))
	f.wait("the change of a", func() bool { return f.sink.service("a").Ports[0].Port == 81 })
	if n := f.sink.events() - before; n != 1 {
		t.Errorf("got %d events for one change", n)
	}
}

func TestOneObjectInTwoFiles(t *testing.T) {
	f := follow(t, folderWith(t, "m.yaml", serviceYAML("a", 80)))
	f.waitNames("Service shop/a")
	port := func() uint16 {
		if s := f.sink.service("a"); s != nil {
			return s.Ports[0].Port
		}
		return 0
	}
	f.write("z.yaml", serviceYAML("a", 90))
	f.waitIssue("Service shop/a|z.yaml|is declared in m.yaml as well")
	if port() != 80 {
		t.Errorf("port = %d, want 80 from m.yaml", port())
	}
	f.write("b.yaml", serviceYAML("a", 70))
	f.wait("b.yaml counts", func() bool { return port() == 70 })
	f.waitIssue("Service shop/a|m.yaml|is declared in b.yaml as well")
	f.remove("b.yaml")
	f.wait("m.yaml counts again", func() bool { return port() == 80 })
	f.remove("m.yaml")
	f.wait("z.yaml counts", func() bool { return port() == 90 })
	f.waitNoIssue()
	f.write("z.yaml", serviceYAML("a", 91)+"---\n"+serviceYAML("a", 92))
	f.wait("the first counts", func() bool { return port() == 91 })
	f.waitIssue("Service shop/a|z.yaml:12|is declared twice in this file; the one on line 1 counts")
}

func TestFolderVanishes(t *testing.T) {
	f := follow(t, folderWith(t, "a.yaml", serviceYAML("a", 80)))
	f.waitNames("Service shop/a")
	f.waitSynced()
	must(t, os.Rename(f.dir, f.dir+".away"))
	f.waitIssue(f.dir, "manifest folder")
	f.waitNames("Service shop/a")
	if err := f.source.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), f.dir) {
		t.Errorf("Flush without the folder: %v", err)
	}
	// Another folder takes its place.
	must(t, os.Mkdir(f.dir+".new", 0o755))
	write(t, f.dir+".new/b.yaml", serviceYAML("b", 80))
	must(t, os.Rename(f.dir+".new", f.dir))
	f.waitNames("Service shop/b")
	f.waitNoIssue()
	f.write("c.yaml", serviceYAML("c", 80))
	f.waitNames("Service shop/b", "Service shop/c")
	f.remove("b.yaml")
	f.remove("c.yaml")
	f.waitNames()
	f.remove(".")
	f.waitIssue(f.dir)
}

func TestFolderIsMissingAtFirst(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	f := follow(t, dir)
	f.waitIssue(dir, "no such file or directory")
	if st := f.source.Status(); st.Synced || f.sink.synced {
		t.Error("a folder that was never read counts as synced")
	}
	must(t, os.Mkdir(dir, 0o755))
	f.waitSynced()
	f.waitNoIssue()
	f.wait("the sink is told", func() bool { f.sink.mu.Lock(); defer f.sink.mu.Unlock(); return f.sink.synced })
	if n := f.sink.events(); n != 0 {
		t.Errorf("an empty folder gave %d events", n)
	}
}

func TestFoldersBelow(t *testing.T) {
	dir := folderWith(t, "a.yaml", serviceYAML("a", 80))
	must(t, os.MkdirAll(filepath.Join(dir, "x/y"), 0o755))
	must(t, os.Mkdir(filepath.Join(dir, ".git"), 0o755))
	write(t, filepath.Join(dir, "x/y/b.yaml"), serviceYAML("b", 80))
	write(t, filepath.Join(dir, ".git/c.yaml"), serviceYAML("c", 80))
	f := follow(t, dir)
	f.waitNames("Service shop/a", "Service shop/b")
	f.write("x/y/b.yaml", serviceYAML("bb", 80))
	f.waitNames("Service shop/a", "Service shop/bb")
	must(t, os.Mkdir(f.path("new"), 0o755))
	f.write("new/n.yaml", serviceYAML("new", 80))
	f.waitNames("Service shop/a", "Service shop/bb", "Service shop/new")
	must(t, os.Rename(f.path("x/y"), f.path("z")))
	f.write("z/b.yaml", serviceYAML("moved", 80))
	f.waitNames("Service shop/a", "Service shop/moved", "Service shop/new")
	must(t, os.RemoveAll(f.path("z")))
	f.waitNames("Service shop/a", "Service shop/new")
	f.wait("just the folders that are there are watched", func() bool {
		f.source.work.Lock()
		defer f.source.work.Unlock()
		return len(f.source.folder.paths) == 3
	})
}

func TestOtherFilesArePassedOver(t *testing.T) {
	dir := folderWith(t, "a.yaml", serviceYAML("a", 80), "b.txt", serviceYAML("b", 80), ".c.yaml", serviceYAML("c", 80),
		"d.yaml", "apiVersion: apps/v1\nkind: Deployment\n---\napiVersion: apps/v1\nkind: Deployment\n---\napiVersion: serving.knative.dev/v1\nkind: Service\n")
	must(t, os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")))
	f := follow(t, dir)
	f.waitNames("Service shop/a")
	f.waitSynced()
	st := f.source.Status()
	if got := fmt.Sprint(st.Skipped); got != "map[Deployment:2 serving.knative.dev/v1 Service:1]" {
		t.Errorf("skipped = %s", got)
	}
	if got := fmt.Sprint(st.Objects); got != "map[Service:1]" {
		t.Errorf("objects = %s", got)
	}
	if len(st.Issues) != 0 || st.Where != dir || st.Name != "manifests" {
		t.Errorf("status = %+v", st)
	}
}

func TestUnreadableFile(t *testing.T) {
	f := follow(t, folderWith(t, "a.json", convert(t, "a.json", serviceYAML("a", 80))))
	f.waitNames("Service shop/a")
	// Too large to be read, without taking any room.
	must(t, os.Truncate(f.path("a.json"), maxFile+1))
	f.flush()
	f.waitIssue("a.json|a.json|", "split it")
	f.waitNames("Service shop/a")
	f.write("a.json", convert(t, "a.json", serviceYAML("b", 80)))
	f.waitNames("Service shop/b")
	f.waitNoIssue()
}

// TestOverflow loses events and finds the changes all the same.
func TestOverflow(t *testing.T) {
	f := follow(t, folderWith(t, "a.yaml", serviceYAML("a", 80), "gone.yaml", serviceYAML("gone", 80)))
	f.waitNames("Service shop/a", "Service shop/gone")
	f.source.work.Lock()
	f.write("b.yaml", serviceYAML("b", 80))
	f.write("a.yaml", serviceYAML("a", 8080))
	f.remove("gone.yaml")
	f.source.watcher.Take()
	overflow := []watch.Event{{WD: -1, Mask: unix.IN_Q_OVERFLOW}}
	f.source.reread = f.source.folder.interpret(overflow, f.source.isUnreadable).all
	f.source.work.Unlock()
	f.source.step(false)
	f.waitNames("Service shop/a", "Service shop/b")
	if got := f.sink.service("a").Ports[0].Port; got != 8080 {
		t.Errorf("port of a = %d, want 8080", got)
	}
}

func TestFlushDeliversAtOnce(t *testing.T) {
	f := follow(t, folderWith(t))
	f.flush()
	for i := range 50 {
		name := fmt.Sprintf("s%02d", i)
		f.write(name+".yaml", serviceYAML(name, 80))
		f.flush()
		if f.sink.service(name) == nil {
			t.Fatalf("%s is not there after Flush", name)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := New(f.dir, false, &sink{}, slog.New(slog.DiscardHandler)).Flush(ctx); err == nil {
		t.Error("Flush of a source that isn't running succeeded")
	}
}

// TestManyAtOnce changes many files and wants their events in few batches.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const n = 300
	f := follow(t, folderWith(t))
	f.waitSynced()
	f.source.work.Lock() // let the events gather
	for i := range n {
		name := fmt.Sprintf("s%03d", i)
		f.write(name+".yaml", serviceYAML(name, 80))
	}
	f.source.work.Unlock()
	f.wait("all objects", func() bool { return len(f.sink.names()) == n })
	f.sink.mu.Lock()
	defer f.sink.mu.Unlock()
	if got := len(f.sink.batches); got > 3 {
		t.Errorf("%d batches for changes that were there at once", got)
	}
}
