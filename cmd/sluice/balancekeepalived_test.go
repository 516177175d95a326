package main

import (
	"bytes"
	"context"
	"errors"
	"maps"
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
	if status != cli.ExitOK || !strings.Contains(out, "ln -s --backup=numbered "+dir+"/keepalived.conf /etc/keepalived/keepalived.conf\n") {
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

// What is not as the command wrote it stays, and so does what a link leads to: it may be what the
// pair's configuration was made from.
func TestBalanceKeepalivedSpares(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, file string) // of what the command wrote to file before
		want string
	}{
		"edited": {func(t *testing.T, file string) { edit(t, file, "nice", "better") }, "was changed since 'sluice balance keepalived' wrote it, or is of an earlier version, and stays as it is: move it away"},
		"another's": {func(t *testing.T, file string) {
			write(t, filepath.Dir(file), "keepalived.conf", "virtual_server 10.0.0.1 80 {\n}\n")
		}, "was not written by 'sluice balance keepalived', and stays as it is: move it away"},
		"without a sum": {func(t *testing.T, file string) { edit(t, file, "# sum ", "# ") }, "was changed since"},
		"a link": {func(t *testing.T, file string) {
			if err := errors.Join(os.Rename(file, file+".there"), os.Symlink(file+".there", file)); err != nil {
				t.Fatal(err)
			}
		}, "is a link to another file, and stays as it is: move it away"},
		"a file of two names": {func(t *testing.T, file string) {
			if err := os.Link(file, file+".there"); err != nil {
				t.Fatal(err)
			}
		}, "has another name (a hard link), and stays as it is: move it away"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "keepalived.conf")
			args := []string{"--interface", "eth0", "--local", "10.0.0.2", "--peer", "10.0.0.3", "--address", "10.0.0.100/24", "--check", "/bin/nice", "--out", dir}
			if status, out := keepalived(t.Context(), args...); status != cli.ExitOK {
				t.Fatalf("exit status %d: %s", status, out)
			}
			c.make(t, file)
			before := contents(t, dir)
			status, out := keepalived(t.Context(), append(args, "--priority", "7")...)
			if status != cli.ExitError || !strings.Contains(out, file+" "+c.want) {
				t.Errorf("exit status %d: %s", status, out)
			}
			if after := contents(t, dir); !maps.Equal(before, after) {
				t.Errorf("it wrote: before\n%q\nafter\n%q", before, after)
			}
		})
	}
}

// What leads nowhere near what is written is not followed, nor is what happens to have the name of
// a file on its way there.
func TestBalanceKeepalivedOnItsWay(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(t.TempDir(), "mine")
	write(t, filepath.Dir(mine), "mine", "mine")
	if err := os.Symlink(mine, filepath.Join(dir, "keepalived.conf.new")); err != nil {
		t.Fatal(err)
	}
	status, out := keepalived(t.Context(), "--interface", "eth0", "--local", "10.0.0.2", "--peer", "10.0.0.3", "--address", "10.0.0.100/24", "--out", dir)
	if status != cli.ExitOK || contents(t, filepath.Dir(mine))["mine"] != "mine" {
		t.Errorf("exit status %d, %s: %q", status, out, contents(t, filepath.Dir(mine)))
	}
	if len(contents(t, dir)) != 5 {
		t.Errorf("more is left than what was wanted: %q", contents(t, dir))
	}
	if !strings.Contains(out, "  ln -s --backup=numbered "+dir+"/keepalived.conf /etc/keepalived/keepalived.conf\n") {
		t.Errorf("the keepalived.conf of before is lost to who does what it says:\n%s", out)
	}
}

// edit replaces a text in a file that has it.
func edit(t *testing.T, file, old, now string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), old) {
		t.Fatalf("%s has no %q: %v", file, old, err)
	}
	write(t, filepath.Dir(file), filepath.Base(file), strings.Replace(string(text), old, now, 1))
}

// contents are the files of a folder.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(text)
	}
	return all
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
