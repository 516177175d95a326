package main

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
)

// TestMain lets a user who may read no other folder start the test binary as sluice. The tests' own
// agents let other programs change the tables of nftables, as on kernels without table ownership.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(execute(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	openNFTables = func(o driver.Options) (driver.Driver, error) {
		return nftables.Open(nftables.Options{Options: o, Shared: true})
	}
	os.Exit(m.Run())
}

// execute runs a command line and returns the exit status.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return cli.Execute(ctx, newRootCommand(), args, stdout, stderr)
}
