package suite_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/test/machine"
	"sluice.dev/sluice/test/programs"
)

// TestSmoke runs a few of Kubernetes' own tests, as users run all of them, with the image and the
// manifests that users install.
func TestSmoke(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make namespaces")
	}
	machine.ControlPlane.Take(t)
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), programs.Path(t, "sluice-lab"), "lab", "e2e", "smoke", "--name", "smoke", "--out", dir, "--procs", "3")
	cmd.Env = append(os.Environ(), "SLUICE_PROGRAM="+programs.Path(t, "sluice"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "15 passed, 0 failed, 0 skipped themselves") {
		log, _ := os.ReadFile(filepath.Join(dir, "output.log")) // it may not have come so far
		t.Fatalf("%v\n%s\n%s", err, out, log)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "junit.xml")); err != nil || !strings.Contains(string(text), "<testsuite") {
		t.Errorf("JUnit's report: %v", err)
	}
}
