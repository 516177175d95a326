package kube

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/internal/contest"
)

// A change that is there already, and that we have not been told of yet, is not made again, and
// nobody is said to undo it.
func TestNodeChangeBehind(t *testing.T) {
	t.Parallel()
	const key = "sluice.dev/agent-not-ready"
	for name, c := range map[string]struct {
		make          func(Config, *slog.Logger) *NodeChange
		before, after string // the Node
	}{
		"taint": {
			func(config Config, log *slog.Logger) *NodeChange { return NewUntaint(config, "a", key, log) },
			`{"spec":{"taints":[{"key":"` + key + `"}]}}`, `{"spec":{}}`,
		},
		"annotation": {
			func(config Config, log *slog.Logger) *NodeChange {
				return NewAnnotation(config, "a", "key", "value", log)
			},
			`{"metadata":{"name":"a"}}`, `{"metadata":{"name":"a","annotations":{"key":"value"}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			is, looks, patches := c.before, 0, 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if r.Method == http.MethodPatch {
					patches++
					is = c.after
					_, _ = w.Write([]byte("{}"))
					return
				}
				looks++
				_, _ = w.Write([]byte(`{"items":[` + is + `]}`))
			}))
			t.Cleanup(server.Close)
			path := filepath.Join(t.TempDir(), "kubeconfig")
			write(t, path, "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: \""+server.URL+"\"}}]\n")
			n := c.make(Config{Kubeconfig: path}, silentLog)
			n.look, n.retry, n.Contests = time.Millisecond, time.Millisecond, &contest.Board{}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { n.Run(ctx, func() bool { return true }) })
			waitFor(t, "it to be looked at again", func() bool { mu.Lock(); defer mu.Unlock(); return looks > 20 || patches > 5 })
			shown := n.Contests.Issues()
			cancel()
			running.Wait()
			if patches != 1 || len(shown) != 0 {
				t.Errorf("%d patches; shown: %v", patches, shown)
			}
		})
	}
}
