package importer

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// testdata/web.conf has most of what keepalived.conf(5) knows, the others are of the field; each
// NAME.want says what becomes of NAME.conf.
func TestKeepalived(t *testing.T) {
	for _, file := range confs(t) {
		t.Run(file, func(t *testing.T) {
			conf, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(strings.TrimSuffix(file, "conf") + "want")
			if err != nil {
				t.Fatal(err)
			}
			doc, notes, err := Keepalived(bytes.NewReader(conf))
			compare(t, imported(t, doc, notes, err), string(want))
		})
	}
}

func confs(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.conf")
	if err != nil || len(files) < 4 {
		t.Fatalf("files of keepalived: %v, %v", files, err)
	}
	return files
}

// What the tests read is what keepalived reads: it complains of nothing that matters here.
func TestKeepalivedReadsIt(t *testing.T) {
	if _, err := exec.LookPath("keepalived"); err != nil {
		t.Skip("needs Debian's keepalived")
	}
	for _, file := range confs(t) {
		out, _ := exec.Command("keepalived", "--config-test", "--use-file", file).CombinedOutput()
		for _, wrong := range []string{"nknown keyword", "missing '}'", "nvalid"} {
			if strings.Contains(string(out), wrong) {
				t.Errorf("keepalived says of %s:\n%s", file, out)
				break
			}
		}
	}
}

func TestKeepalivedSyntax(t *testing.T) {
	const server = "\nprotocol TCP\nreal_server 10.1.0.1 80 {\n}\n}"
	const farm = "farm (name:10.0.0.1-80-tcp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:80 mode:dnat protocol:tcp scheduler:weight all-down:refuse backends:[(name:10.1.0.1-80 ip-addr:10.1.0.1 port:80 weight:1)])"
	for name, c := range map[string]struct{ conf, farm, notes string }{
		"a brace on its own line":      {"virtual_server 10.0.0.1 80\n{" + server, farm, ""},
		"a brace that touches a word":  {"virtual_server 10.0.0.1 80{" + server, farm, ""},
		"a comment that touches":       {"virtual_server 10.0.0.1 80 {!c" + server + "# }", farm, ""},
		"quotes and escapes":           {`virtual_server "10.0.0".1 '8'\0 {` + server, farm, ""},
		"a parameter in a parameter":   {"$A=10.0\n$B=$A.0.1\n$A=1\nvirtual_server ${B} 80 {" + server, farm, ""},
		"a parameter that is not ours": {"virtual_server $_X 80 {" + server, "", "virtual_server $_X 80: left out"},
		"definitions of many lines":    {"$A= \\\nx \\\ny\nvirtual_server 10.0.0.1 80 {" + server, farm, "$A: left out"},
		"for one machine":              {"virtual_server 10.0.0.1 80 {\n@one lb_algo sh" + server, farm, "@one lb_algo sh: left out"},
		"an unknown word":              {"virtual_server 10.0.0.1 80 {\nbogus 1" + server, farm, "bogus 1: left out"},
		"the same address twice":       {"virtual_server 10.0.0.1 80 {" + server + "\nvirtual_server 10.0.0.1 80 {" + server, farm, "10.0.0.1:80: left out"},
		"a check of one address":       {"virtual_server 10.0.0.1 80 {\nprotocol TCP\nreal_server 10.1.0.1 80 {\nMISC_CHECK {\nmisc_path \"/bin/check 10.1.0.1\"\n}\n}\n}", "", "misc_path /bin/check 10.1.0.1: is run for every server with the address of the first"},
		"an unknown group":             {"virtual_server group G {" + server, "", "virtual_server group G: left out"},
		"a range that is too long":     {"virtual_server_group G {\n10.0.0.1-10.0.9.9 80\n10.0.0.1 80\n}\nvirtual_server group G {" + server, "", "10.0.0.1-10.0.9.9 80: left out"},
	} {
		t.Run(name, func(t *testing.T) {
			doc, notes, err := Keepalived(strings.NewReader(c.conf))
			got := imported(t, doc, notes, err)
			if c.farm != "" && !strings.Contains(got, c.farm+"\n") || !strings.Contains(got, c.notes) {
				t.Errorf("got\n%swant\n%s\n%s", got, c.farm, c.notes)
			}
		})
	}
	for conf, want := range map[string]string{
		"{":                                "nothing stands before",
		"virtual_server 10.0.0.1 80 {\n}}": "line 2: a block is closed",
		"a\nb {\nc {\n}":                   "line 2: the block of b",
		strings.Repeat("a {\n", 30):        "more than 20",
		"":                                 "virtual_server",
		"$A=" + strings.Repeat("x", 300) + strings.Repeat("\n$A=$A$A", 40): "longer than",
	} {
		if _, _, err := Keepalived(strings.NewReader(conf)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v; want %s", conf, err, want)
		}
	}
}

func FuzzKeepalived(f *testing.F) {
	conf, err := os.ReadFile("testdata/web.conf")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(conf))
	f.Add("$A=x\nvirtual_server_group G {\n2001:db8::1-ff 80\n::ffff:10.0.0.0/120\n}\nvirtual_server group G {\nprotocol SCTP\nlb_algo fo\n}")
	f.Add("virtual_server 10.0.0.1 80 {\nprotocol TCP\nreal_server 10.1.0.1 {\nUDP_CHECK {\npayload 0a\n}\nMISC_CHECK {\nmisc_path \"a \\\"b c\\\"\"\n}\n}\n}")
	f.Fuzz(func(t *testing.T, text string) {
		sound(t, text, func() (*Document, []Note, error) { return Keepalived(strings.NewReader(text)) })
	})
}
