package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/programs"
)

// sluice-lab gets the command lines of the lab and the bench as they were typed, with help and
// completion. If there is no sluice-lab, one line says so.
func TestLabProgram(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "sluice")
	text, err := os.ReadFile(programs.Path(t, "sluice"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errs, []string{"PATH=/nonexistent"}
		if err := cmd.Run(); cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), out.String(), errs.String()
	}
	lines := [][]string{
		{"lab", "up", "--name", "x y", "--", "-f"}, {"lab"}, {"lab", "--help"}, {"bench", "-h"}, {"bench", "--scale", "small"}, {"help", "lab", "up"},
		{"__complete", "lab", "up", "--na"}, {"__completeNoDesc", "bench", ""},
	}
	for _, args := range lines {
		_, stdout, stderr := run(args...)
		said := stderr
		if strings.HasPrefix(args[0], "__") {
			said = stdout // the shell shows it
		}
		if !strings.Contains(said, "sluice-lab is neither in "+dir+" nor on the PATH: run `make build`") {
			t.Errorf("%q without a sluice-lab: %s%s", args, stdout, stderr)
		}
	}
	if code, _, stderr := run(lines[0]...); code != cli.ExitError || strings.Count(stderr, "\n") != 1 {
		t.Errorf("without a sluice-lab it exits with %d: %s", code, stderr)
	}

	script := "#!/bin/sh\necho \"$SLUICE_PROGRAM\"\nprintf '%s\\n' \"$@\"\nexit 7\n"
	if err := os.WriteFile(filepath.Join(dir, "sluice-lab"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range lines {
		want := program + "\n" + strings.Join(args, "\n") + "\n"
		if code, stdout, stderr := run(args...); code != 7 || stdout != want || stderr != "" {
			t.Errorf("%q: exit status %d, %q%s, want 7, %q", args, code, stdout, stderr, want)
		}
	}
}
