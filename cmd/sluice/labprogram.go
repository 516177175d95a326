package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/cli"
)

// newLabProgramCommand makes a command that runs sluice-lab, with its help and completion. A node
// needs neither the lab nor the bench, so that sluice does not link them.
func newLabProgramCommand(name, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use:                name,
		Short:              short,
		DisableFlagParsing: true, // all that follows is for sluice-lab
		RunE:               func(*cobra.Command, []string) error { return execLabProgram() },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return cobra.AppendActiveHelp(nil, execLabProgram().Error()), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) { cmd.PrintErrln(execLabProgram()) })
	return cmd
}

// execLabProgram replaces this process by sluice-lab with the same command line. It returns only on
// failure.
func execLabProgram() error {
	path, err := cli.Find("sluice-lab")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err == nil {
		err = os.Setenv(cli.SluiceEnv, self)
	}
	if err != nil {
		return fmt.Errorf("name this program to sluice-lab: %w", err)
	}
	return fmt.Errorf("run %s: %w", path, unix.Exec(path, os.Args, os.Environ()))
}
