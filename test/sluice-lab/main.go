// Command sluice-lab is the lab and the bench: it shows and measures Sluice on one machine. `sluice
// lab` and `sluice bench` run it.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/cli"
)

func main() {
	endOnBrokenPipe()
	cli.Main(newRootCommand())
}

// endOnBrokenPipe makes a broken pipe at the output end the command as SIGTERM does, so that it
// takes down what it has started. The signal also comes for each connection that a peer has closed.
func endOnBrokenPipe() {
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	go func() {
		for range broken {
			if outputBroken() {
				_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
				return
			}
		}
	}()
}

// outputBroken reports whether nobody reads one of the outputs any more.
func outputBroken() bool {
	outputs := []unix.PollFd{{Fd: 1}, {Fd: 2}}
	_, err := unix.Poll(outputs, 0)
	return err == nil && (outputs[0].Revents|outputs[1].Revents)&unix.POLLERR != 0
}

// newRootCommand makes the root command. Its name is that of the program which the user started:
// sluice, if that started this one.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   filepath.Base(os.Args[0]),
		Short: "Run clusters in network namespaces that show what Sluice does, and measure it",
	}
	root.AddCommand(newLabCommand(), newBenchCommand(), cli.NewVersionCommand())
	return root
}

// sluiceFlag adds --sluice. If sluice has started this program, the default is that sluice.
func sluiceFlag(cmd *cobra.Command, program *string) {
	cmd.Flags().StringVar(program, "sluice", os.Getenv(cli.SluiceEnv), "the `program` sluice (default: the one beside this program, or else on the PATH)")
}

// findSluice returns the absolute path of the program that --sluice names.
func findSluice(program string) (string, error) {
	if program == "" {
		return cli.Find("sluice")
	}
	path, err := exec.LookPath(program)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("--sluice: %w", err)
	}
	return path, nil
}
