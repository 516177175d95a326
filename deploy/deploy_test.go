package deploy_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/test/lab/control"
)

var update = flag.Bool("update", false, "write the manifests of kustomize again from the chart")

func TestMain(m *testing.M) {
	if spec := os.Getenv(containerEnv); spec != "" {
		fmt.Fprintln(os.Stderr, "start container:", contain(spec)) // it returns only on failure
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const (
	chart     = "helm/sluice"
	namespace = "kube-system"
	// placeholder is in kustomize's manifests where the user has to name the API server.
	placeholder = "set-the-api-server.invalid"
)

// helm runs Helm, without what its user may have configured, and returns its output.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool(t, "helm"), args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	return output(cmd)
}

// tool is where one of the programs is that only tests run.
func tool(t *testing.T, name string) string {
	t.Helper()
	bin, err := control.BuildTools(t.Context(), func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(bin, name)
}

func output(cmd *exec.Cmd) (string, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run %s: %w: %s", strings.Join(cmd.Args, " "), err, errs.Bytes())
	}
	return out.String(), nil
}

// render returns the chart's output for some values, given as arguments of Helm.
func render(t *testing.T, args ...string) string {
	t.Helper()
	text, err := helm(t, append([]string{"template", "sluice", chart, "--namespace", namespace}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// kustomize returns kubectl's output for a folder.
func kustomize(t *testing.T, folder string) string {
	t.Helper()
	bin, err := control.Build(t.Context(), func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	text, err := output(exec.CommandContext(t.Context(), filepath.Join(bin, "kubectl"), "kustomize", folder))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// objects returns the objects of a text with several, by kind and name.
func objects(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for document := range strings.SplitSeq(text, "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
		}
		var whole map[string]any
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatalf("parse %s: %v", document, err)
		}
		if err := yaml.Unmarshal([]byte(document), &whole); err != nil {
			t.Fatal(err)
		}
		if whole != nil {
			all[o.Kind+" "+o.Metadata.Name] = whole
		}
	}
	return all
}

// object decodes one of the objects of a text into a Kubernetes type.
func object[T any](t *testing.T, text, name string) *T {
	t.Helper()
	all := objects(t, text)
	data, err := yaml.Marshal(all[name])
	if err != nil {
		t.Fatal(err)
	}
	o := new(T)
	if err := yaml.UnmarshalStrict(data, o); err != nil || all[name] == nil {
		t.Fatalf("no good %s among %v: %v", name, slices.Sorted(maps.Keys(all)), err)
	}
	return o
}
