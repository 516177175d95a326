package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/programs"
)

// TestMain lets tests start the test binary as sluice-lab, and names sluice as --sluice of all
// commands.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		endOnBrokenPipe()
		ctx, _ := signal.NotifyContext(context.Background(), unix.SIGTERM) // as main does it
		os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
	}
	folder, err := programs.Folder()
	if err == nil {
		err = os.Setenv(cli.SluiceEnv, filepath.Join(folder, "sluice"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// execute runs a command line as sluice passes it, and returns the exit status.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.Use = "sluice"
	return cli.Execute(ctx, root, args, stdout, stderr)
}

// named returns the name of a lab that is this process's alone, so that tests of several checkouts
// can run at the same time.
func named(lab string) string { return fmt.Sprintf("%s%d", lab, os.Getpid()) }

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
}

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"lab", "frob"}, "frob"},
		{[]string{"lab", "frob"}, "Run 'sluice lab --help'"},
		{[]string{"lab", "probe", "--nonsense"}, "Run 'sluice lab probe --help'"},
	} {
		var stdout, stderr bytes.Buffer
		code := execute(t.Context(), c.args, &stdout, &stderr)
		if code != cli.ExitUsage || !strings.Contains(stderr.String(), c.say) || stdout.Len() > 0 {
			t.Errorf("sluice %s exits with %d: %s%s", strings.Join(c.args, " "), code, stdout.String(), stderr.String())
		}
	}
}

// A client that goes away while it is answered ends its connection alone, not the relay.
func TestRelayOutlivesItsClients(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	broken := make(chan struct{}, 2)
	go func() {
		for conn, err := server.Accept(); err == nil; conn, err = server.Accept() {
			_, err = conn.Write([]byte{0})
			if err == nil {
				_, err = io.Copy(io.Discard, conn) // until the client has gone
			}
			for err == nil { // the relay closes what it cannot pass on
				_, err = conn.Write(make([]byte, 1<<16))
			}
			_ = conn.Close()
			broken <- struct{}{}
		}
	}()
	t.Cleanup(func() { _ = server.Close() })
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := front.Addr().String()
	socket, err := front.(*net.TCPListener).File()
	if err := errors.Join(err, front.Close()); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	relay := exec.CommandContext(t.Context(), self, "lab", "relay", "--to", server.Addr().String())
	relay.ExtraFiles = []*os.File{socket}
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = relay.Wait() }) // it ends with the test's context
	if err := socket.Close(); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		if err != nil {
			t.Fatalf("the relay has ended: %v", err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		<-broken
	}
}

func TestFindSluice(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	file := filepath.Join(dir, "mine")
	if err := os.WriteFile(file, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for _, name := range []string{file, "./mine", "mine"} {
		if got, err := findSluice(name); err != nil || got != file {
			t.Errorf("--sluice %s is %s, %v, want %s", name, got, err, file)
		}
	}
	for _, name := range []string{"", "none", "./none"} {
		if got, err := findSluice(name); err == nil || !strings.Contains(err.Error(), "sluice") {
			t.Errorf("--sluice %q is %s, %v", name, got, err)
		}
	}
}
