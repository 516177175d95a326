package cli

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// version and commit are set by the linker.
var version, commit string

// build is what a program was built from.
type build struct {
	Program  string `json:"program"`
	Version  string `json:"version"`          // of the release
	Commit   string `json:"commit,omitempty"` // "": not known
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// String is "sluice v1.2.3 (commit 0123456789ab, go1.26.8, linux/amd64)".
func (b build) String() string {
	commit := ""
	if b.Commit != "" {
		commit = "commit " + b.Commit + ", "
	}
	return fmt.Sprintf("%s %s (%s%s, %s)", b.Program, b.Version, commit, b.Go, b.Platform)
}

func buildOf(program string) build {
	b := build{program, version, commit, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	if version != "" {
		return b
	}
	info, ok := debug.ReadBuildInfo() // which "go install" and "go build" leave
	if !ok {
		info = &debug.BuildInfo{}
	}
	b.Version = cmp.Or(strings.Trim(info.Main.Version, "()"), "unknown") // "(devel)" of sources without their history
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Commit = s.Value + b.Commit
		case s.Key == "vcs.modified" && s.Value == "true":
			b.Commit += "-dirty"
		}
	}
	return b
}

// NewVersionCommand makes the command that prints the program's name and version.
func NewVersionCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the release, the commit, and what it was built with",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := buildOf(cmd.Root().Name())
			return Print(cmd.OutOrStdout(), format, b, func(w io.Writer) { _, _ = fmt.Fprintln(w, b) })
		},
	}
	OutputFlag(cmd, &format)
	return cmd
}

// Version returns the release that the linker was told, or else what the toolchain recorded.
func Version() string { return buildOf("").Version }
