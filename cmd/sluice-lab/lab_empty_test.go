package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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
	checkListed(t, l, "up", "running")
	restartAgent(t, l, "node2")
	if err := l.KillProxy("node2"); err != nil {
		t.Fatal(err)
	}
	checkListed(t, l, "dead", "1 of 2 running")
	restartAgent(t, l, "node2")
	checkListed(t, l, "up", "running")
	if entries, err := filepath.Glob("/run/sluice/lab/testempty/manifests/pod.*"); err != nil || len(entries) > 0 {
		t.Errorf("an empty lab has pods: %v %v", entries, err)
	}
}

// checkListed checks a lab's line in the list of all labs.
func checkListed(t *testing.T, l *lab.Lab, state, agents string) {
	t.Helper()
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"lab", "list"}, &out, &out); code != cli.ExitOK {
		t.Errorf("list: exit status %d:\n%s", code, out.String())
	}
	plane := "none"
	if l.Kubernetes != nil {
		plane = "Kubernetes"
	}
	since := l.Cluster.Created.Local().Format(time.DateTime)
	line := fmt.Sprintf(`(?m)^%s +%s +%d +%d +%s +%s +%s$`, l.Name, state, len(l.Cluster.Nodes), len(l.Cluster.Pods), since, agents, plane)
	if !regexp.MustCompile(line).MatchString(out.String()) {
		t.Errorf("no line like %q:\n%s", line, out.String())
	}
	out.Reset()
	execute(t.Context(), []string{"lab", "list", "-o", "json"}, &out, &out)
	var labs lab.Labs
	if err := json.Unmarshal(out.Bytes(), &labs); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(labs, func(s lab.Summary) bool { return s.Name == l.Name && s.State == state && s.Agents == agents }) {
		t.Errorf("%s is not %q, %q in %s", l.Name, state, agents, out.String())
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
	checkListed(t, l, "up", "running")
	rep, err := l.Probe(t.Context(), 2, []string{"web"})
	if err != nil || rep.Failed > 0 || rep.Requests == 0 {
		t.Errorf("probe: %v: %+v", err, rep)
	}
}
