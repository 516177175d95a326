package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nftlb "sluice.dev/sluice/internal/balancer/config"
	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/cli"
)

func TestImport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ipvs.rules")
	dump := "-A -t 10.0.0.1:80 -s wlc\n-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 2\n"
	if err := os.WriteFile(file, []byte(dump), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, notes bytes.Buffer
	if status := execute(t.Context(), []string{"import", "ipvs", file}, &out, &notes); status != cli.ExitOK {
		t.Fatalf("exit status %d: %s", status, notes.String())
	}
	var doc struct{ Farms []struct{ Name string } }
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil || len(doc.Farms) != 1 || doc.Farms[0].Name != "10.0.0.1-80-tcp" {
		t.Errorf("%s, %v", out.String(), err)
	}
	want := "line 1  scheduler wlc  becomes scheduler weight"
	if !strings.HasPrefix(notes.String(), want) || !strings.Contains(notes.String(), "\nline 2  NAT            becomes mode dnat") {
		t.Errorf("it says\n%s", notes.String())
	}
}

// The exit status tells what is lost, and the last line counts it.
func TestImportStatus(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const service = "-A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1\n"
	kept := write("kept", service)
	changed := write("changed", service+"-A -t 10.0.0.2:80 -s wlc\n-a -t 10.0.0.2:80 -r 10.1.0.1:80 -m -w 2\n")
	gone := write("gone", service+"-A -f 7 -s rr\n-a -f 7 -r 10.1.0.1:0 -m -w 1\n")
	for _, c := range []struct {
		args   []string
		status int
		last   string // line of standard error
	}{
		{[]string{"ipvs", kept}, cli.ExitOK, "becomes mode dnat"},
		{[]string{"ipvs", kept, "--strict"}, cli.ExitOK, "becomes mode dnat"},
		{[]string{"ipvs", changed}, cli.ExitOK, "becomes scheduler weight"},
		{[]string{"ipvs", changed, "--strict"}, 3, "\nother things left out or changed: 1\n"},
		{[]string{"ipvs", changed, "--strict", "--mode", "ipvs"}, cli.ExitOK, "becomes mode dnat"},
		{[]string{"ipvs", gone}, 3, "were not taken over: 1\n"},
	} {
		var out, says bytes.Buffer
		status := execute(t.Context(), append([]string{"import"}, c.args...), &out, &says)
		if status != c.status || !strings.Contains(says.String(), c.last) || out.Len() == 0 {
			t.Errorf("%q: exit status %d, %s; want %d, %s", c.args, status, says.String(), c.status, c.last)
		}
	}
}

func TestImportFails(t *testing.T) {
	dir := t.TempDir()
	odd := filepath.Join(dir, "odd.json")
	if err := os.WriteFile(odd, []byte(`{"farm": [{"name": "web"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"ipvs"}, cli.ExitUsage, "import needs ipvs|keepalived|nftlb FILE, and was given ipvs; for example"},
		{[]string{"haproxy", os.DevNull}, cli.ExitUsage, "import haproxy: choose ipvs, keepalived or nftlb"},
		{[]string{"ipvs", os.DevNull, "--mode", "userspace"}, cli.ExitUsage, "--mode userspace: choose nftables or ipvs"},
		{[]string{"nftlb", os.DevNull, "--mode", "ipvs"}, cli.ExitUsage, "--mode ipvs: what nftlb has is for --mode nftables"},
		{[]string{"ipvs", filepath.Join(dir, "none")}, cli.ExitError, "no such file"},
		{[]string{"ipvs", os.DevNull}, cli.ExitError, "give the output of `ipvsadm -Sn`"},
		{[]string{"nftlb", os.DevNull}, cli.ExitError, "line 1: unexpected EOF"},
		{[]string{"nftlb", odd}, cli.ExitError, "line 1  farm  left out: a document has the lists farms"},
		{[]string{"nftlb", odd}, cli.ExitError, "nothing of this file could be taken over"},
	} {
		var out, says bytes.Buffer
		status := execute(t.Context(), append([]string{"import"}, c.args...), &out, &says)
		if status != c.status || !strings.Contains(says.String(), c.says) || out.Len() > 0 {
			t.Errorf("%q: exit status %d, %s%s; want %d, %s", c.args, status, says.String(), out.String(), c.status, c.says)
		}
	}
}

// What is imported is a configuration that the balancer takes. (TestImportedFarms of
// internal/driver/ipvs is the same for --mode ipvs.)
func TestImportedIsTaken(t *testing.T) {
	dumps := map[string]string{
		"ipvs": "-A -t 10.0.0.1:80 -s mh -b mh-port\n-a -t 10.0.0.1:80 -r 10.1.0.1:80 -g -w 2\n-a -t 10.0.0.1:80 -r 10.1.0.2:80 -g -w 0\n" +
			"-A -u [2001:db8::1]:0 -s lc -p 300\n-a -u [2001:db8::1]:0 -r [2001:db8::a]:0 -m -x 9\n" +
			"-A --sctp 10.0.0.1:7 -s fo\n-a --sctp 10.0.0.1:7 -r 10.1.0.1:8 -m -w 2\n-a --sctp 10.0.0.1:7 -r 10.1.0.2:8 -m -w 3\n" +
			"-A -t 10.0.0.9:80 -s wrr\n-a -t 10.0.0.9:80 -r 10.1.0.1:80 -g -w 2",
		"nftlb": `{"policies": [{"name": "p", "elements": [{"data": "10.9.0.0/16"}]}], "farms": [{"name": "f", "virtual-addr": "10.0.0.1",
			"virtual-ports": "80,90-95", "mode": "stlsdnat", "verdict": "log", "persistence": "none", "policies": [{"name": "p"}], "backends": [{"name": "b", "ip-addr": "10.1.0.1"}]},
			{"name": "g", "virtual-addr": "", "virtual-ports": "", "mode": "local", "log": "input forward", "new-rtlimit": "5/minute"}]}`,
	}
	files, err := filepath.Glob("../../internal/balancer/importer/testdata/*.conf")
	if err != nil || len(files) == 0 {
		t.Fatalf("files of keepalived: %v, %v", files, err)
	}
	for _, file := range files {
		conf, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dumps["keepalived "+file] = string(conf)
	}
	for name, dump := range dumps {
		format, _, _ := strings.Cut(name, " ")
		dir := t.TempDir()
		in, config := filepath.Join(dir, "in"), filepath.Join(dir, "balance.json")
		if err := os.WriteFile(in, []byte(dump), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, notes bytes.Buffer
		if status := execute(t.Context(), []string{"import", format, in}, &out, &notes); status != cli.ExitOK && status != cli.ExitFound {
			t.Errorf("%s: exit status %d: %s", name, status, notes.String())
		}
		if err := os.WriteFile(config, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := nftlb.New(nil, nftlb.Options{Check: new(farms.Driver).Check}).Load(t.Context(), config); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
}

// Files of keepalived are read beside the one that includes them, and a note says in which one it
// is.
func TestImportIncludes(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "keepalived.conf", "include web.conf\n")
	write(t, dir, "web.conf", "@a virtual_server 10.0.0.1 80 {\n@b virtual_server 10.0.0.2 80 {\nprotocol TCP\nreal_server 10.1.0.1 80 {\n}\n}\n")
	code, stdout, stderr := sluice(t, "import", "keepalived", filepath.Join(dir, "keepalived.conf"), "--config-id", "b")
	if code != cli.ExitOK || !strings.Contains(stdout, "10.0.0.2") || strings.Contains(stdout, "10.0.0.1") || !strings.Contains(stderr, filepath.Join(dir, "web.conf")+" line 4  NAT") {
		t.Errorf("exit status %d: %s%s", code, stdout, stderr)
	}
}
