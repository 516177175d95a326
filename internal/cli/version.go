package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version string

// NewVersionCommand makes the command that prints the program's name and version.
func NewVersionCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Program  string `json:"program"`
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{cmd.Root().Name(), Version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return Print(cmd.OutOrStdout(), format, v, func(w io.Writer) {
				_, _ = fmt.Fprintf(w, "%s %s (%s, %s)\n", v.Program, v.Version, v.Go, v.Platform)
			})
		},
	}
	OutputFlag(cmd, &format)
	return cmd
}

// Version returns what the linker set, or else what the toolchain recorded of the build.
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return info.Main.Version
}
