package kube

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/model"
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
		"condition": {
			func(config Config, log *slog.Logger) *NodeChange { return NewNetworkAvailable(config, "a", log) },
			`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True"}]}}`, `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False"}]}}`,
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

// contested runs a change that somebody else undoes whenever it is made, until a contest is shown;
// it wants the pauses to double, the other to be named, and all to be well once that one has ended.
func contested(t *testing.T, n *NodeChange, due func() bool, undo func(), who string) {
	t.Helper()
	n.look, n.retry, n.lasts, n.Contests = time.Millisecond, 200*time.Millisecond, 4*time.Second, &contest.Board{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { n.Run(ctx, due) })
	defer func() { cancel(); running.Wait() }()
	begun, made := time.Now(), 0
	waitFor(t, "the contest to be shown", func() bool {
		if !due() {
			made++
			undo()
		}
		return len(n.Contests.Issues()) > 0
	})
	if least := n.retry + 2*n.retry; made < 2 || time.Since(begun) < least { // the third change shows it
		t.Errorf("shown after %d changes that were undone, %v", made, time.Since(begun))
	}
	if issue := n.Contests.Issues()[0]; issue.Object.Kind != model.NodeKind || !strings.Contains(issue.Reason, "field manager "+who+" does") {
		t.Errorf("shown: %v", issue)
	}
	waitFor(t, "the change to be made for good", func() bool { return !due() })
	waitFor(t, "the contest to be over", func() bool { return len(n.Contests.Issues()) == 0 })
}
