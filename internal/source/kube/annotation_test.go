package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/test/logtest"
)

// An annotation is written when it is not there, again when somebody changes it, and taken away; a
// refusal is logged once.
func TestAnnotation(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	now, refusals, denied, patches := map[string]string{"kept": "x"}, 0, true, 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if denied {
			refusals++
			fail(w, http.StatusForbidden, "no rule allows it")
			return
		}
		if r.Method == http.MethodGet {
			text, _ := json.Marshal(now)
			_, _ = fmt.Fprintf(w, `{"items":[{"metadata":{"name":"a","annotations":%s,"managedFields":[{"manager":"calico-node","fieldsV1":{"f:metadata":{"f:annotations":{"f:key":{}}}}}]}}]}`, text)
			return
		}
		patches++
		var p struct {
			Metadata struct{ Annotations map[string]*string }
		}
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil || r.Method != http.MethodPatch || r.URL.Path != "/api/v1/nodes/a" || r.Header.Get("Content-Type") != mediaMergePatch {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		for name, value := range p.Metadata.Annotations {
			if value == nil {
				delete(now, name)
			} else {
				now[name] = *value
			}
		}
		_, _ = w.Write([]byte("{}"))
	}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: %q}}]\n", server.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log logtest.Log
	board := &contest.Board{}
	// run keeps the annotation until what it returns is called.
	run := func(value string) (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		a := NewAnnotation(Config{Kubeconfig: path}, "a", "key", value, slog.New(slog.NewTextHandler(&log, nil)))
		a.look, a.retry, a.lasts, a.Contests = time.Millisecond, 50*time.Millisecond, time.Second, board
		var running sync.WaitGroup
		running.Go(func() {
			a.Run(ctx, func() bool { mu.Lock(); defer mu.Unlock(); return now["key"] != value })
		})
		end = func() { cancel(); running.Wait() }
		t.Cleanup(end)
		return end
	}
	eventually := func(what string, is func() bool) {
		t.Helper()
		for begin := time.Now(); ; time.Sleep(time.Millisecond) {
			mu.Lock()
			done := is()
			mu.Unlock()
			if done {
				return
			}
			if time.Since(begin) > time.Minute {
				t.Fatalf("waited for %s: %v", what, now)
			}
		}
	}
	end := run("secret")
	eventually("refusals", func() bool { return refusals > 3 })
	mu.Lock()
	denied = false
	mu.Unlock()
	eventually("the annotation", func() bool { return now["key"] == "secret" })
	mu.Lock()
	now["key"] = "other"
	mu.Unlock()
	eventually("it to be put right", func() bool { return now["key"] == "secret" })
	if n := strings.Count(log.String(), "cannot be written"); n != 1 {
		t.Errorf("a refusal was logged %d times", n)
	}
	// Somebody who goes on is named, and answered ever more rarely: at once, and after 50, 150,
	// 350, 750 and 1550 ms.
	mu.Lock()
	before, begun := patches, time.Now()
	mu.Unlock()
	for time.Since(begun) < 3*time.Second {
		mu.Lock()
		now["key"] = "other"
		mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	const reason = "somebody writes over the annotation key: field manager calico-node does, each time, so the pauses between tries double; end one of the two"
	if list := board.Issues(); len(list) != 1 || list[0].Reason != reason || list[0].Object.String() != "Node a" {
		t.Errorf("shown: %v", list)
	}
	mu.Lock()
	if n := patches - before; n < 3 || n > 15 {
		t.Errorf("%d patches within 3 s", n)
	}
	mu.Unlock()
	eventually("it to be put right again", func() bool { return now["key"] == "secret" })
	eventually("nothing to be shown any more", func() bool { return len(board.Issues()) == 0 })
	end()
	run("")
	eventually("it to be taken away", func() bool { _, is := now["key"]; return !is })
	mu.Lock()
	defer mu.Unlock()
	if now["kept"] != "x" {
		t.Errorf("annotations: %v", now)
	}
}
