package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/cli"
)

// keepalived runs 'sluice balance keepalived' and returns its exit status and what it says.
func keepalived(ctx context.Context, args ...string) (int, string) {
	root := &cobra.Command{Use: "sluice"}
	root.AddCommand(newBalanceCommand())
	var out bytes.Buffer
	status := cli.Execute(ctx, root, append([]string{"balance", "keepalived"}, args...), &out, &out)
	return status, out.String()
}

func TestBalanceKeepalived(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pair")
	config := filepath.Join(t.TempDir(), "balance.json")
	farms := `{"farms": [{"name": "a", "virtual-addr": "10.0.0.100"}, {"name": "b", "virtual-addr": "10.0.0.101", "addresses": [{"name": "c", "ip-addr": "2001:db8::1"}]}]}`
	if err := os.WriteFile(config, []byte(farms), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--interface", "eth0", "--local", "10.0.0.2", "--peer", "10.0.0.3", "--address", "10.0.0.100/24", "--address", "10.1.0.1/24@eth1",
		"--config", config, "--out", dir}
	status, out := keepalived(t.Context(), args...)
	if status != cli.ExitOK || !strings.Contains(out, "ln -sf "+dir+"/keepalived.conf /etc/keepalived/keepalived.conf\n") {
		t.Fatalf("exit status %d: %s", status, out)
	}
	conf, err := os.ReadFile(filepath.Join(dir, "keepalived.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"10.0.0.100/24", "10.1.0.1/24 dev eth1", "10.0.0.101/32", "2001:db8::1/128", "10.0.0.3 min_ttl 255", " status\""} {
		if strings.Count(string(conf), line+"\n") != 1 {
			t.Errorf("not once in keepalived.conf: %s\n%s", line, conf)
		}
	}
	if status, out := keepalived(t.Context(), args...); status != cli.ExitOK {
		t.Errorf("the second time: exit status %d: %s", status, out)
	}
	mine := filepath.Join(dir, "conntrackd.conf")
	if err := os.WriteFile(mine, []byte("# mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, out := keepalived(t.Context(), args...); status != cli.ExitError || !strings.Contains(out, mine+" was not written by") {
		t.Errorf("over somebody else's file: exit status %d: %s", status, out)
	}
}

func TestBalanceKeepalivedUsage(t *testing.T) {
	good := []string{"--interface", "eth0", "--local", "10.0.0.2", "--peer", "10.0.0.3", "--address", "10.0.0.100/24", "--out", t.TempDir()}
	for want, args := range map[string][]string{
		`required flag(s) "local", "peer" not set`:           {"--interface", "eth0"},
		"there is no virtual address of the family":          {"--interface", "eth0", "--local", "10.0.0.2", "--peer", "10.0.0.3"},
		"both machines have the address 10.0.0.2":            append(good[:len(good):len(good)], "--peer", "10.0.0.2"),
		"are of two families":                                append(good[:len(good):len(good)], "--peer", "2001:db8::3"),
		"the router ID is 256":                               append(good[:len(good):len(good)], "--router-id", "256"),
		"the priority is 0":                                  append(good[:len(good):len(good)], "--priority", "0"),
		`--address: "10.0.0" is no address`:                  append(good[:len(good):len(good)], "--address", "10.0.0"),
		`--address: "" is no device`:                         append(good[:len(good):len(good)], "--address", "10.0.0.1@"),
		"conntrackd needs an address of this machine and":    append(good[:len(good):len(good)], "--sync-peer", "10.9.0.3"),
		`the interface "eth 0" is no name of a device`:       append(good[:len(good):len(good)], "--interface", "eth 0"),
		`has to be a command without`:                        append(good[:len(good):len(good)], "--check", `x "`),
		"the folder \"/tmp/a b\" has to be an absolute path": append(good[:len(good):len(good)], "--out", "/tmp/a b"),
	} {
		if status, out := keepalived(t.Context(), args...); status != cli.ExitUsage || !strings.Contains(out, want) {
			t.Errorf("%q: exit status %d, %s; want %s", args, status, out, want)
		}
	}
}
