package archtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSlowest shows what hack/slowest says of the times of packages, and that lint fails for one
// that takes too long, also for those that may take longer than the others.
func TestSlowest(t *testing.T) {
	for _, test := range []struct{ name, log, says string }{
		{"short", "ok  \tsluice.dev/sluice/internal/model\t119.9s\n?   \tsluice.dev/sluice/x\t[no test files]\n", ""},
		{"long", "ok  \tsluice.dev/sluice/internal/model\t121.0s\n", "internal/model took 121 s in the last make test: its limit is 120 s"},
		{"that failed", "--- FAIL: TestX (1.00s)\nFAIL\tsluice.dev/sluice/internal/model\t300.0s\n", "internal/model took 300 s"},
		{"one that may take longer", "ok  \tsluice.dev/sluice/test/sluice-lab\t380.0s\tcoverage: 70.0% of statements\n", ""},
		{"but not as long", "ok  \tsluice.dev/sluice/test/sluice-lab\t900.0s\n", "test/sluice-lab took 900 s"},
		{"nothing was run", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "test.log")
			if err := os.WriteFile(log, []byte(test.log), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("../../hack/slowest", "--check", log).CombinedOutput()
			if (err != nil) != (test.says != "") || !strings.Contains(string(out), test.says) {
				t.Errorf("%v, %q; want %q", err, out, test.says)
			}
		})
	}
	log := filepath.Join(t.TempDir(), "test.log")
	if err := os.WriteFile(log, []byte("ok  \ta/b\t1.5s\nok  \ta/c\t(cached)\nok  \ta/d\t12.25s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("../../hack/slowest", log).Output()
	if want := "   12.2 s  a/d\n    1.5 s  a/b\n"; string(out) != want || err != nil {
		t.Errorf("%v, %q; want %q", err, out, want)
	}
}
