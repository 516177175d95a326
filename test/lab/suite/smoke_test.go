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

// TestSmoke runs Kubernetes' tests of Conformance and a few others, as users run all of them, with
// the image and the manifests that users install.
func TestSmoke(t *testing.T) {
	t.Parallel()
	run(t, "smoke", "61 passed", "smoke")
}

// TestModes runs a few in each other mode that needs nothing which a kernel may lack: who reaches
// what, and what follows a change. What a mode does with services is proved by drivertest's table,
// for each driver.
func TestModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"iptables", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			focus := strings.Join([]string{
				`Services should be able to create a functioning NodePort service`,
				`Services should be able to change the type from ExternalName to ClusterIP`,
				`Services should have session affinity work for service with type clusterIP`,
				`Services should preserve source pod IP for traffic thru service cluster IP`,
				`Services should serve endpoints on same port and different protocols`,
				`DNS should provide DNS for services`,
			}, "|")
			run(t, "modes"+mode, "6 passed", "sig-network", "--nodes", "2", "--data-plane", "sluice-"+mode, "--focus", focus)
		})
	}
}

// run runs a set, with further arguments, in a lab of that name.
func run(t *testing.T, name, passed string, args ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make namespaces")
	}
	machine.ControlPlane.Take(t)
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), programs.Path(t, "sluice-lab"), append([]string{"lab", "e2e", "--name", name, "--out", dir}, args...)...)
	cmd.Env = append(os.Environ(), "SLUICE_PROGRAM="+programs.Path(t, "sluice"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), passed+", 0 failed, 0 skipped themselves") {
		log, _ := os.ReadFile(filepath.Join(dir, "output.log")) // it may not have come so far
		t.Fatalf("%v\n%s\n%s", err, out, log)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "junit.xml")); err != nil || !strings.Contains(string(text), "<testsuite") {
		t.Errorf("JUnit's report: %v", err)
	}
}
