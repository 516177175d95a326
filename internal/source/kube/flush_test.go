package kube

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

// Flush returns when everything that existed at its call has been delivered, whatever the watches
// do.
func TestFlush(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(*fakeAPI)
	}{
		{"in order", func(*fakeAPI) {}},
		{"without watches", func(f *fakeAPI) { f.answers["watch "+services] = http.StatusInternalServerError }},
		{"watches hang", func(f *fakeAPI) { f.hanging["watch "+services] = true }},
		{"another kind is denied", func(f *fakeAPI) { f.answers[policies] = http.StatusForbidden }},
	} {
		t.Run(c.name, func(t *testing.T) {
			api := newFakeAPI(t)
			everything(api)
			c.spoil(api)
			f := follow(t, api, func(t *timing) { t.refused, t.last = time.Hour, time.Hour }) // Flush does not wait for those
			f.waitSynced()
			for port := 81; port < 90; port++ {
				api.put(services, service("web", port))
				f.flush()
				if got := f.port("web"); got != uint16(port) {
					t.Fatalf("port %d after Flush, want %d", got, port)
				}
			}
			api.put(cluster, clusterPolicy("a", 1))
			f.flush()
			if f.sink.object("ClusterNetworkPolicy a") == nil {
				t.Error("a kind that has just come was not flushed")
			}
		})
	}
}

// The garbage of each complete list is given back to the kernel.
func TestGarbageOfListsIsGivenBack(t *testing.T) {
	freed := func() uint32 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NumForcedGC
	}
	api := newFakeAPI(t)
	everything(api)
	before := freed()
	f := follow(t, api)
	f.waitSynced()
	waitFor(t, "the garbage of the start is given back", func() bool { return freed() > before })
	before = freed()
	f.flush()
	waitFor(t, "the garbage of a flush is given back", func() bool { return freed() > before })
}

// Several callers may flush at the same time.
func TestFlushes(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	everything(api)
	f := follow(t, api)
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			for range 5 {
				if err := f.source.Flush(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
}

func TestFlushInVain(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	everything(api)
	f := follow(t, api)
	f.waitSynced()
	api.set(func() { api.hanging[services] = true })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.source.Flush(ctx); err == nil || !strings.Contains(err.Error(), "read all of Service") {
		t.Errorf("flush of an API that hangs: %v", err)
	}
	api.set(func() { clear(api.hanging) })
	f.end()
	if err := f.source.Flush(t.Context()); err == nil {
		t.Error("flush after the end")
	}
}

// Unchanged objects of a list are not decoded again; faulty ones are.
func TestFlushDecodesWhatIsNew(t *testing.T) {
	t.Parallel()
	for _, binary := range []bool{false, true} {
		api := newFakeAPI(t)
		api.binary = binary
		everything(api)
		api.put(services, service("bad", 70000))
		var times timing
		quickTiming(&times)
		var decoded atomic.Int32
		f := newFixture(t, func(s *sink) *Source {
			source := newSource(Config{Kubeconfig: api.kubeconfig(""), Policies: true}, times, s, slog.New(slog.DiscardHandler))
			for _, x := range source.followers {
				counted, decode := *x.kind, x.kind.Decode
				counted.Decode = func(t kinds.Text) (model.Object, error) { decoded.Add(1); return decode(t) }
				x.kind = &counted
			}
			return source
		})
		f.waitSynced()
		decoded.Store(0)
		f.flush()
		if n := decoded.Load(); n != 1 {
			t.Errorf("protobuf=%v: %d objects were decoded that had not changed, and not just the one at fault", binary, n)
		}
		f.waitIssue("Service shop/bad", "70000")
		api.set(func() { api.answers["watch "+services] = http.StatusInternalServerError })
		api.put(services, service("web", 81))
		f.flush()
		if f.port("web") != 81 {
			t.Errorf("protobuf=%v: a change was passed over", binary)
		}
	}
}
