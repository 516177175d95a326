package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/creack/pty"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/programs"
)

// A person who runs it at a terminal is told what it is for.
func TestTerminal(t *testing.T) {
	program := programs.Path(t, "sluice-bgp")
	cmd := exec.CommandContext(t.Context(), program)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	terminal, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = terminal.Close(), tty.Close() }()
	cmd.Stdin = tty
	if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != cli.ExitUsage {
		t.Errorf("it ends with %v", err)
	}
	for _, text := range []string{"Sluice's agent runs this program", "'sluice bgp'", "not from a terminal"} {
		if !strings.Contains(said.String(), text) {
			t.Errorf("it does not say %q: %s", text, said.String())
		}
	}

	// Without orders, there is nothing to do.
	if out, err := exec.CommandContext(t.Context(), program).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("without orders: %v: %s", err, out)
	}
}
