package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// The linker says the release and the commit, in a release as in what make builds; without it, the
// toolchain does.
func TestVersion(t *testing.T) {
	t.Cleanup(func() { version, commit = "", "" })
	for _, c := range []struct{ version, commit, want string }{
		{"v1.2.3", "0123456789ab", "sluice v1.2.3 (commit 0123456789ab, go"},
		{"v1.2.3", "", "sluice v1.2.3 (go"},
		{"", "", "sluice "},
	} {
		version, commit = c.version, c.commit
		for _, arg := range []string{"version", "--version"} {
			root := &cobra.Command{Use: "sluice"}
			root.AddCommand(NewVersionCommand())
			var out bytes.Buffer
			if code := Execute(t.Context(), root, []string{arg}, &out, &out); code != ExitOK || !strings.HasPrefix(out.String(), c.want) || strings.Contains(out.String(), "  ") {
				t.Errorf("%+v: %s exits with %d: %s", c, arg, code, out.String())
			}
		}
	}
	if got := Version(); got == "" {
		t.Errorf("no version without the linker")
	}
}

// What make builds, and what it would build of a tagged commit, says the chart's version.
func TestVersionOfMake(t *testing.T) {
	root := "../.."
	chart, err := os.ReadFile(filepath.Join(root, "deploy/helm/sluice/Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	release := regexp.MustCompile(`(?m)^version: (.*)$`).FindStringSubmatch(string(chart))[1]
	out, err := exec.Command("make", "-s", "-C", root, "--eval", "print-flags: ; @echo '$(LDFLAGS)'", "print-flags").CombinedOutput()
	if want := regexp.MustCompile(`cli\.version=v` + regexp.QuoteMeta(release) + `(\+[0-9a-f]{12})?(-dirty)? -X \S*cli\.commit=([0-9a-f]{12}(-dirty)?)?\n`); err != nil || !want.Match(out) {
		t.Errorf("%v: %s, want %s", err, out, want)
	}
}

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		args   []string
		err    error
		status int
		says   string
	}{
		{nil, nil, ExitOK, ""},
		{nil, errors.New("no \x1b[2Jkernel"), ExitError, "prog: no \\x1b[2Jkernel\n"},
		{nil, fmt.Errorf("check: %w", Found(errors.New("2 fail"))), ExitFound, "prog: check: 2 fail\n"},
		{nil, Usage(errors.New("not both")), ExitUsage, "prog: not both\nRun 'prog do --help' for usage.\n"},
		{[]string{"--nonsense"}, nil, ExitUsage, "prog: unknown flag: --nonsense\nRun 'prog do --help' for usage.\n"},
		{nil, Status(7), 7, ""},
	} {
		root := &cobra.Command{Use: "prog"}
		root.AddCommand(&cobra.Command{Use: "do", RunE: func(*cobra.Command, []string) error { return c.err }})
		var out bytes.Buffer
		if status := Execute(t.Context(), root, append([]string{"do"}, c.args...), &out, &out); status != c.status || out.String() != c.says {
			t.Errorf("%q, %v: exit status %d, want %d, and says %q, want %q", c.args, c.err, status, c.status, out.String(), c.says)
		}
	}
}

// A program is looked for beside this one first, and then on the PATH.
func TestFind(t *testing.T) {
	const name = "sluice-findtest"
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	beside, path := filepath.Join(filepath.Dir(self), name), t.TempDir()
	t.Setenv("PATH", path)
	if _, err := Find(name); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "make build") {
		t.Errorf("for a missing program it says %v", err)
	}
	for _, file := range []string{filepath.Join(path, name), beside} {
		if err := os.WriteFile(file, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(file) })
		if got, err := Find(name); err != nil || got != file {
			t.Errorf("found: %s, %v, want %s", got, err, file)
		}
	}
}

// A signal that comes with the first one, as timeout(1) sends it, does not end a program that
// cleans up. A later one does.
func TestSecondSignal(t *testing.T) {
	const grace = "SLUICE_TEST_TOGETHER"
	if text, is := os.LookupEnv(grace); is {
		var err error
		if together, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
		root := &cobra.Command{Use: "prog", RunE: func(cmd *cobra.Command, _ []string) error {
			_, _ = fmt.Println("runs")
			<-cmd.Context().Done()
			_, _ = fmt.Println("cleans up")
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		}}
		os.Args = os.Args[:1]
		Main(root)
	}
	for _, c := range []struct {
		together string
		killed   bool
	}{{"1h", false}, {"0s", true}} {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), grace+"="+c.together)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(out); lines.Scan(); { // until it ends
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if lines.Text() == "cleans up" && !c.killed {
				_ = in.Close()
			} else if c.killed {
				go func() { // until it is heard
					for cmd.Process.Signal(syscall.SIGTERM) == nil {
						time.Sleep(time.Millisecond)
					}
				}()
			}
		}
		err = cmd.Wait()
		if killed := err != nil && err.Error() == "signal: terminated"; killed != c.killed || !killed && err != nil {
			t.Errorf("signals within %s of the first: it ends with %v", c.together, err)
		}
		_ = in.Close()
	}
}
