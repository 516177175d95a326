package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/lab"
)

// emptyLab brings up a lab without an application from a command line.
func emptyLab(t *testing.T, name string, flags ...string) *lab.Lab {
	t.Helper()
	needRoot(t)
	t.Cleanup(func() {
		if err := lab.Down(name); err != nil {
			t.Error(err)
		}
	})
	var stdout, stderr bytes.Buffer
	args := append([]string{"lab", "up", "--empty", "--name", name}, flags...)
	if code := execute(t.Context(), args, &stdout, &stderr); code != cli.ExitOK {
		t.Fatalf("%v: exit status %d\n%s%s", args, code, stdout.String(), stderr.String())
	}
	if !strings.Contains(stdout.String(), " 0 pods, ") || !strings.Contains(stdout.String(), "it runs no application") {
		t.Errorf("%v prints:\n%s", args, stdout.String())
	}
	l, err := openLab(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLabEmpty(t *testing.T) {
	l := emptyLab(t, "testempty", "--nodes", "2")
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"lab", "status", "--name", l.Name}, &out, &out); code != cli.ExitOK || strings.Count(out.String(), "in sync") != 2 {
		t.Errorf("status: exit status %d:\n%s", code, out.String())
	}
	if entries, err := filepath.Glob("/run/sluice/lab/testempty/manifests/pod.*"); err != nil || len(entries) > 0 {
		t.Errorf("an empty lab has pods: %v %v", entries, err)
	}
}

// Manifests that a user applies to an empty lab with an API run there, and answer.
func TestLabEmptyKubernetes(t *testing.T) {
	l := emptyLab(t, "testemptykube", "--kubernetes")
	file := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(file, []byte(webApp), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := l.Apply(file); err != nil {
		t.Fatal(err)
	}
	if err := l.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(l.Warnings) > 0 || len(l.Cluster.Pods) != 5 {
		t.Errorf("%d pods, warnings: %q", len(l.Cluster.Pods), l.Warnings)
	}
	rep, err := l.Probe(t.Context(), 2, []string{"web"})
	if err != nil || rep.Failed > 0 || rep.Requests == 0 {
		t.Errorf("probe: %v: %+v", err, rep)
	}
}
