// Package cli holds what the command lines of sluice and sluice-lab share: exit statuses, output
// formats, the version, and how each finds the other.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/model"
)

// Exit statuses of every command; docs/node.md has them for users.
const (
	ExitOK      = 0
	ExitError   = 1 // it could not be done
	ExitUsage   = 2 // the command line is wrong
	ExitFound   = 3 // it was done, and what it found is not as it should be
	ExitUnknown = 4 // it was done, and what it asks cannot be told
)

// Status is the error of a command that has already printed everything: the program ends with that
// exit status and prints no more.
type Status int

// Error implements error.
func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Found marks err as what a command found that did all it was asked to do.
func Found(err error) error { return foundError{err} }

type foundError struct{ error }

func (e foundError) Unwrap() error { return e.error }

// Usage marks err as an error of the command line that was found after its syntax was accepted.
func Usage(err error) error { return usageError{err} }

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// together is how soon after the first signal another one counts as the same wish: timeout(1) sends
// its signal to the program, and again to the program's group.
var together = time.Second

// Main runs the program's command line and ends the process. The first SIGINT, SIGTERM or SIGHUP
// (unless nohup has it ignored) ends the context of the command, the next one, unless it comes with
// the first, the process.
func Main(root *cobra.Command) {
	ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	context.AfterFunc(ctx, func() { time.AfterFunc(together, stop) })
	os.Exit(Execute(ctx, root, os.Args[1:], os.Stdout, os.Stderr))
}

// Execute runs a command line and returns the exit status.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	log.SetOutput(io.Discard) // libraries' remarks, such as on attributes of ipset that they do not know
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SilenceUsage, root.SilenceErrors = true, true
	started := false
	markStart(root, &started)
	explainUsage(root)
	root.Version = Version()
	root.SetVersionTemplate(buildOf(root.Name()).String() + "\n")
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	if status, ok := errors.AsType[Status](err); ok {
		return int(status)
	}
	if errors.Is(err, syscall.EPIPE) {
		return ExitError // who reads the output has seen enough
	}
	_, _ = fmt.Fprintf(stderr, "%s: %s\n", root.Name(), model.PrintableLines(strings.ReplaceAll(err.Error(), "\n\t", "\n  ")))
	if found := (foundError{}); errors.As(err, &found) {
		return ExitFound
	}
	if usage := (usageError{}); started && !errors.As(err, &usage) {
		return ExitError
	}
	_, _ = fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
	return ExitUsage
}

// markStart records when a command's own work begins: failures before that are errors of the
// command line.
func markStart(cmd *cobra.Command, started *bool) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*started = true
			return run(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		markStart(c, started)
	}
}

// SluiceEnv is the environment variable in which sluice tells sluice-lab its own path.
const SluiceEnv = "SLUICE_PROGRAM"

// Find returns the path of another program of Sluice: beside this program, or else on the PATH.
func Find(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	dir := filepath.Dir(self)
	if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("the program %s is neither in %s nor on the PATH: run `make build` in Sluice's sources to put sluice and sluice-lab into bin", name, dir)
}
