package pair

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func parse(t testing.TB, texts ...string) []Address {
	t.Helper()
	var addrs []Address
	for _, text := range texts {
		a, err := ParseAddress(text)
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, a)
	}
	return addrs
}

// example has both families, and several devices.
func example(t testing.TB) Config {
	return Config{
		Name: "one", Interface: "eth0", Local: netip.MustParseAddr("10.0.0.2"), Peer: netip.MustParseAddr("10.0.0.3"),
		Addresses: parse(t, "2001:db8::100/64", "10.0.0.100/24", "10.1.0.1/24@eth1", "10.0.0.101", "fd00::1/64@eth1"),
		RouterID:  51, Priority: 100, Check: "/usr/bin/true now",
		SyncInterface: "eth1", SyncLocal: netip.MustParseAddr("10.1.0.2"), SyncPeer: netip.MustParseAddr("10.1.0.3"),
		Dir: t.TempDir(), RunDir: t.TempDir(),
	}
}

// write puts the files into Config.Dir.
func write(t testing.TB, c Config) {
	t.Helper()
	files, err := Files(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(c.Dir, f.Name), f.Text, f.Mode); err != nil {
			t.Fatal(err)
		}
	}
}

// need skips a test without a program.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s", p)
		}
	}
}

func TestHeader(t *testing.T) {
	files, err := Files(example(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if text, _ := bytes.CutPrefix(f.Text, []byte("#!/bin/sh\n")); !bytes.HasPrefix(text, []byte(Header+"\n")) {
			t.Errorf("%s begins with %.60q", f.Name, f.Text)
		}
		if !AsWritten(f.Text) || AsWritten(append(f.Text[:len(f.Text):len(f.Text)], '\n')) {
			t.Errorf("%s: its sum does not tell whether it was changed", f.Name)
		}
	}
}

// The programs themselves find no fault with the files: keepalived complains only of devices that
// are not there, nft and sh of nothing.
func TestPrograms(t *testing.T) {
	need(t, "keepalived", "nft", "sh")
	c := example(t)
	write(t, c)
	out, _ := exec.Command("keepalived", "--config-test", "--use-file", filepath.Join(c.Dir, "keepalived.conf")).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "eth") && !strings.Contains(line, "Non-existent interface") {
			t.Errorf("keepalived: %s", line)
		}
	}
	for _, args := range [][]string{{"nft", "--check", "--file", "sluice-pair.nft"}, {"sh", "-n", "sluice-pair"}} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = c.Dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

func TestVirtualAddresses(t *testing.T) {
	got, err := VirtualAddresses(strings.NewReader(`{"farms": [{"virtual-addr": "10.0.0.1", "name": "a"}, {"virtual-addr": ""},
		{"virtual-addr": "10.0.0.1", "addresses": [{"name": "x"}, {"ip-addr": "2001:db8::1"}]}], "addresses": [{"ip-addr": "10.0.0.2"}]}`))
	if want := parse(t, "10.0.0.1", "2001:db8::1", "10.0.0.2"); err != nil || len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for text, want := range map[string]string{"": "EOF", `{"farms": [{"virtual-addr": "www"}]}`: `"www" is no address`, `{"farms": 4}`: "cannot unmarshal"} {
		if _, err := VirtualAddresses(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
}

// Nothing that is accepted as an address gets more than an address into a file.
func FuzzParseAddress(f *testing.F) {
	for _, seed := range []string{"10.0.0.1", "10.0.0.1/24@eth0", "2001:db8::1/64", "10.0.0.1@x\n}", "::1%eth0", "fe80::1%a\nb/64"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAddress(text)
		if err != nil {
			return
		}
		if s := a.String(); strings.ContainsAny(s, "\n\r\"{}#!%") || len(strings.Fields(s)) > 3 {
			t.Errorf("%q becomes %q", text, s)
		}
	})
}
