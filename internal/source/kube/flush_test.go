package kube

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Flush returns when all that was there at its call is delivered, however the
// watches are doing.
func TestFlush(t *testing.T) {
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

// Several may flush at once.
func TestFlushes(t *testing.T) {
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
