package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
)

// What is reported to an API needs one.
func TestReportsNeedAnAPI(t *testing.T) {
	for _, flag := range []string{"--events", "--conditions"} {
		if status, _, stderr := sluice(t, "run", "--manifests", t.TempDir(), flag); status != cli.ExitUsage || !strings.Contains(stderr, flag+" reports to a Kubernetes API: name one") {
			t.Errorf("%s: status %d, %s", flag, status, stderr)
		}
	}
	for _, tt := range []struct{ from, key, want string }{
		{"--manifests", "sluice.dev/agent-not-ready", "name one with --kubeconfig"},
		{"--kubeconfig", "not ready", "give the key of a taint"},
	} {
		if status, _, stderr := sluice(t, "run", tt.from, t.TempDir(), "--remove-taint", tt.key); status != cli.ExitUsage || !strings.Contains(stderr, tt.want) {
			t.Errorf("--remove-taint %s: status %d, %s", tt.key, status, stderr)
		}
	}
}

// An agent that reads an API programs the API's objects.
func TestKubeconfig(t *testing.T) {
	lists := map[string]string{
		"/api/v1/services":                         `{"metadata":{"name":"web","namespace":"shop"},"spec":{"clusterIP":"10.0.0.1","ports":[{"port":80}]}}`,
		"/apis/discovery.k8s.io/v1/endpointslices": `{"metadata":{"name":"web-1","namespace":"shop","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4","ports":[{"port":8080}],"endpoints":[{"addresses":["10.1.0.1"]}]}`,
		"/api/v1/nodes":                            `{"metadata":{"name":"node-a"}}`,
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		item, ok := lists[r.URL.Path]
		switch {
		case !ok:
			w.WriteHeader(http.StatusNotFound)
		case r.URL.Query().Has("watch"):
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			_, _ = fmt.Fprintf(w, `{"metadata":{"resourceVersion":"7"},"items":[%s]}`, item)
		}
	}))
	t.Cleanup(func() { api.CloseClientConnections(); api.Close() })
	dir := t.TempDir()
	write(t, dir, "kubeconfig", fmt.Sprintf(`{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":%q}}]}`, api.URL))
	config := filepath.Join(dir, "kubeconfig")

	k := useKernel(t)
	code, stdout, stderr := sluice(t, "plan", "--kubeconfig", config, "--node", "node-a", "--policy=false")
	if code != cli.ExitOK || stdout == "nothing to do\n" || k.len() != 0 {
		t.Errorf("plan exits with %d: %s%s", code, stdout, stderr)
	}
	socket := filepath.Join(dir, "s.sock")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, []string{"run", "--kubeconfig", config, "--node", "node-a", "--socket", socket, "--policy=false",
			"--metrics-address", "", "--healthz-address", "", "--set-sysctls=false"}, io.Discard, io.Discard)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != cli.ExitOK {
			t.Errorf("run exits with %d", code)
		}
	})
	eventually(t, "the agent answers", func() bool { return agent.Alive(socket) })
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK || k.len() != 1 {
		t.Errorf("sync exits with %d and %d frontends in the kernel: %s", code, k.len(), stderr)
	}
	if _, stdout, _ := sluice(t, "status", "--socket", socket); !strings.Contains(stdout, api.URL) {
		t.Errorf("status does not name the API:\n%s", stdout)
	}
}

func TestWhereObjectsAre(t *testing.T) {
	for _, args := range [][]string{
		{"run", "--manifests", ".", "--kubeconfig", "x"},
		{"plan", "--in-cluster", "--kubeconfig", "x"},
	} {
		if code, _, stderr := sluice(t, args...); code != cli.ExitUsage || !strings.Contains(stderr, "leave out all but one") {
			t.Errorf("%v exits with %d: %s", args, code, stderr)
		}
	}
}
