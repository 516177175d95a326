package main

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/cli"
)

// TestMain lets tests start the test binary as sluice.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(execute(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// execute runs a command line and returns the exit status.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return cli.Execute(ctx, newRootCommand(), args, stdout, stderr)
}
