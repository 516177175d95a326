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

// self is the test binary, which TestMain has be sluice: what it does counts as tested.
var self = os.Args[0]

// TestMain lets tests start the test binary as sluice. In the tests' own agents, the kernel lets
// other programs change the tables of nftables, as where it has no table ownership.
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
