package importer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/balancer/keys"
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
			doc, notes, err := Keepalived(bytes.NewReader(conf), Options{})
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
		"a parameter in a parameter":   {"$A=9.9 # old\n$B=${A}.0.1 ! the site's\n$A=10.0\n$P=80\nvirtual_server $B $P {" + server, farm, ""},
		"a parameter and no space":     {"$A=10.0\nvirtual_server $A.0.1 80 {" + server, "", "virtual_server $A.0.1 80: left out"},
		"a parameter that is not ours": {"virtual_server $_X 80 {" + server, "", "virtual_server $_X 80: left out"},
		"definitions of many lines":    {"$A= \\\nvirtual_server 10.0.0.1 80 { \\\nlb_algo sh\n$A" + server, strings.Replace(farm, "weight all", "hash sched-param:srcip all", 1), ""},
		"for one machine":              {"virtual_server 10.0.0.1 80 {\n@one lb_algo sh" + server, farm, "@one lb_algo sh: left out"},
		"a server for one machine":     {"virtual_server 10.0.0.1 80 {\n@one sorry_server 10.1.0.9 80" + server, farm, "2! @one sorry_server 10.1.0.9 80: left out"},
		"for one machine, of VRRP":     {"vrrp_instance A {\n@one priority 7\n@two virtual_ipaddress {\n10.0.0.1\n}\n}\nvirtual_server 10.0.0.1 80 {" + server, farm, "1 vrrp_instance A: left out"},
		"a sequence that is none":      {"virtual_server_group G {\n~SEQ(N, 1, 2, 3, 4) 10.0.0.${N} 80\n10.0.0.1 80\n}\nvirtual_server group G {" + server, strings.ReplaceAll(farm, "name:10.0.0.1-80-tcp", "name:G"), "2! ~SEQ(N, 1, 2, 3, 4) 10.0.0.${N} 80: left out"},
		"files beside standard input":  {"includer conf.d/*.conf\nvirtual_server 10.0.0.1 80 {" + server, farm, "1! includer conf.d/*.conf: left out"},
		"a parameter of keepalived's":  {"virtual_server 10.0.0.1 80 {\nvirtualhost ${_INSTANCE}" + server, farm, ""},
		"words on one line":            {"virtual_server 10.0.0.1 80 {\nlb_algo wlc lb_kind DR" + server, farm, "2 lb_algo wlc lb_kind DR: lb_kind DR is left out"},
		"an unknown block":             {"virtual_server 10.0.0.1 80 {\nreal_sever 10.1.0.2 80 {\n}" + server, farm, "2! real_sever 10.1.0.2 80: left out"},
		"methods in small letters":     {"virtual_server 10.0.0.1 80 {\nlb_kind dr" + server, farm, "2 lb_kind dr: left out, as with keepalived"},
		"no such scheduler":            {"virtual_server 10.0.0.1 80 {\nlb_algo loadbalance" + server, farm, "2 lb_algo loadbalance: becomes wlc, as with keepalived"},
		"no such protocol":             {"virtual_server 10.0.0.1 80 {" + server + "\nvirtual_server 10.0.0.1 53 {\nprotocol ANY\nreal_server 10.1.0.1 53 {\n}\n}", farm, "protocol ANY: becomes udp, as with keepalived"},
		"no persistence":               {"virtual_server 10.0.0.1 80 {\npersistence_timeout 0" + server, farm, ""},
		"no such persistence":          {"virtual_server 10.0.0.1 80 {\npersistence_timeout 2678401" + server, farm, "2 persistence_timeout 2678401: left out, as with keepalived"},
		"persistence by network":       {"virtual_server 10.0.0.1 80 {\npersistence_granularity 255.255.255.0" + server, strings.Replace(farm, "all-down", "persistence:srcip persist-ttl:360 all-down", 1), "1 netmask 255.255.255.0: left out"},
		"every port is persistent":     {"virtual_server 10.0.0.1 {" + server, "farm (name:10.0.0.1-tcp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:1-65535 mode:dnat protocol:tcp scheduler:weight persistence:srcip persist-ttl:360 all-down:refuse backends:[(name:10.1.0.1-80 ip-addr:10.1.0.1 weight:1)])", ""},
		"a weight for all":             {"virtual_server 10.0.0.1 80 {\nweight 7" + server, strings.Replace(farm, "weight:1)", "weight:7)", 1), ""},
		"no servers":                   {"virtual_server 10.0.0.2 80 {\nsorry_server 10.1.0.9 80\n}\nvirtual_server 10.0.0.1 80 {" + server, farm, "1= virtual_server 10.0.0.2 80: left out"},
		"a server on this machine":     {"virtual_server 10.0.0.1 80 {\nsorry_server 127.0.0.1 80" + server, farm, "2! sorry_server 127.0.0.1:80: left out"},
		"an unknown word":              {"virtual_server 10.0.0.1 80 {\nbogus 1" + server, farm, "bogus 1: left out"},
		"the same address twice":       {"virtual_server 10.0.0.1 80 {" + server + "\nvirtual_server 10.0.0.1 80 {" + server, farm, "10.0.0.1:80: left out"},
		"an unknown group":             {"virtual_server group G {" + server, "", "virtual_server group G: left out"},
		"a prefix with more bits":      {"virtual_server_group G {\n10.0.0.9/29 80\n10.0.0.1 80\n}\nvirtual_server group G {" + server, "", "2! 10.0.0.9/29 80: left out"},
		"a range that is too long":     {"virtual_server_group G {\n10.0.0.1-10.0.9.9 80\n10.0.0.1 80\n}\nvirtual_server group G {" + server, "", "10.0.0.1-10.0.9.9 80: left out"},
	} {
		t.Run(name, func(t *testing.T) {
			doc, notes, err := Keepalived(strings.NewReader(c.conf), Options{})
			got := imported(t, doc, notes, err)
			if c.farm != "" && !strings.Contains(got, c.farm+"\n") || !strings.Contains(got, c.notes) {
				t.Errorf("got\n%swant\n%s\n%s", got, c.farm, c.notes)
			}
		})
	}
	for conf, want := range map[string]string{
		"{": "nothing stands before",
		"virtual_server 10.0.0.1 80 {\n@one real_server 10.1.0.1 80 {\n}\n}": "line 2: @one real_server 10.1.0.1 80 {: the block cannot be read",
		"$A=${B}\n$B=${A}\n$A":                "stand for each other",
		"virtual_server 10.0.0.1 80 {\n}}":    "line 2: a block is closed",
		"a\nb {\nc {\n}":                      "line 2: the block of b",
		strings.Repeat("a {\n", 30):           "more than 20",
		"$A= \\\nb \\\n$A \\\n\n$A":           "stand for each other",
		"~SEQ(A,1,999) ~SEQ(B,1,999) $C=${A}": "more than 131072 lines",
		"":                                    "virtual_server",
		"$A=" + strings.Repeat("x", 300) + "\n$B=${A}${A}${A}${A}${A}${A}\n$C=${B}${B}${B}${B}${B}${B}\n$D=${C}${C}${C}${C}${C}${C}${C}\n$D": "longer than",
	} {
		if _, _, err := Keepalived(strings.NewReader(conf), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v; want %s", conf, err, want)
		}
	}
}

// These are the examples of keepalived.conf(5) for conditions, parameters, sequences and lists, and
// what it says that they produce.
func TestKeepalivedExamples(t *testing.T) {
	const machines = "@main    unicast_src_ip 1.2.3.4\n@backup  unicast_src_ip 1.2.3.5\n@^main    1.2.3.4\n@^backup  1.2.3.5\n@^backup2 1.2.3.6"
	const twice = "$RS= \\\nreal_server 192.168.${VS_NUM}.${RS_NUM} 80 { \\\nweight 1 \\\n} \\\n\n$VS= \\\nvirtual_server 10.0.${VS_NUM}.4 80 { \\\n$RS_NUM=1 \\\n$RS \\\n$RS_NUM=2 \\\n$RS \\\n}\n$VS_NUM=0\n$VS\n$VS_NUM=1\n$VS"
	for conf, want := range map[string]string{
		machines: "unicast_src_ip 1.2.3.4|1.2.3.5|1.2.3.6",
		"@main $PRIORITY=240\n@backup $PRIORITY=200\npriority $PRIORITY":                                                                    "priority 240",
		"$IF_MAIN=@main\n$IF_MAIN priority 240\n$IF_B=@b\n$IF_B x":                                                                          "priority 240",
		"$ADDRESS_BASE=10.2.${ADDRESS_BASE_SUB}\n$ADDRESS_BASE_SUB=0\n${ADDRESS_BASE}.100/32\n$ADDRESS_BASE_SUB=10\n${ADDRESS_BASE}.100/32": "10.2.0.100/32|10.2.10.100/32",
		twice: "virtual_server 10.0.0.4 80|(real_server 192.168.0.1 80|(weight 1)|real_server 192.168.0.2 80|(weight 1))|" +
			"virtual_server 10.0.1.4 80|(real_server 192.168.1.1 80|(weight 1)|real_server 192.168.1.2 80|(weight 1))",
		"~SEQ(SUBNET, 0, 3) ip_address 10.0.${SUBNET}.1":                              "ip_address 10.0.0.1|ip_address 10.0.1.1|ip_address 10.0.2.1|ip_address 10.0.3.1",
		"~SEQx(SUBNET, 144, 16, 192) fe80::20:${SUBNET}:1":                            "fe80::20:90:1|fe80::20:a0:1|fe80::20:b0:1|fe80::20:c0:1",
		"~SEQx(SUBNET, 0x90, 0x10, 0xc0) fe80::20:${SUBNET}:1":                        "fe80::20:90:1|fe80::20:a0:1|fe80::20:b0:1|fe80::20:c0:1",
		"~SEQx(AD2, 0x90, 0x10, 0xa0) ~SEQx(AD1, 0x12, -1, 0x11) fe81::${AD2}:${AD1}": "fe81::90:12|fe81::90:11|fe81::a0:12|fe81::a0:11",
		"$VI4= \\\ninst ${IF}.${ID} { \\\nprio 1 \\\n}\n~SEQ(IF,0,1) ~SEQ(ID,2) $VI4": "inst 0.1|(prio 1)|inst 0.2|(prio 1)|inst 1.1|(prio 1)|inst 1.2|(prio 1)",
		"~LST({IP, IP1}, {10,1},{20,4},{5,6},{12,8}) 192.168.${IP}.${IP1}":            "192.168.10.1|192.168.20.4|192.168.5.6|192.168.12.8",
		"~LST(IP, 1, 2) ~LST(IP1, 5,6,7) 192.169.${IP}.${IP1}":                        "192.169.1.5|192.169.1.6|192.169.1.7|192.169.2.5|192.169.2.6|192.169.2.7",
		"~LST({IP, IP1}, {10,1},{20,4}) ~SEQ(IP2,168,2,172) 192.${IP2}.${IP}.${IP1}":  "192.168.10.1|192.170.10.1|192.172.10.1|192.168.20.4|192.170.20.4|192.172.20.4",
		"~SEQ(N, -2) a${N}\n~SEQ(M, 2, 0) b${M}\nc ${_HASH}1":                         "a-1|a-2|b2|b1|b0|c #1",
	} {
		n := &notes{}
		block, err := readConf(strings.NewReader(conf), Options{ConfigID: "main"}, n)
		if got := strings.Join(flat(block), "|"); err != nil || got != want || len(n.list) > 0 {
			t.Errorf("%s\ngot  %s, %v, %v\nwant %s", conf, got, n.list, err, want)
		}
	}
}

// flat is what a block has, with that of each of its blocks in brackets.
func flat(block []*statement) (all []string) {
	for _, s := range block {
		all = append(all, s.text())
		if s.braced {
			all = append(all, "("+strings.Join(flat(s.block), "|")+")")
		}
	}
	return all
}

// Files are read in where they are included, from the folder of the file that includes them; notes
// say where a line stands.
func TestKeepalivedIncludes(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"keepalived.conf":      "$WEB=10.0.0.1\ninclude conf.d/*.conf\ninclude nothing.d/*\nincludea missing.conf\nincludem conf.d/{x/{one,two},{three}}.cnf\n$WEB",
		"conf.d/b.conf":        "virtual_server $WEB 80 {\n lb_algo rr\n protocol TCP\n include \"x/servers.inc\" # of the site\n bogus 2\n}",
		"conf.d/a.conf":        "bogus 1",
		"conf.d/.c.conf":       "bogus 3",
		"conf.d/d.conf/e":      "bogus 4",
		"conf.d/x/servers.inc": "real_server 10.1.0.1 80 {\n include ../y.inc\n}",
		"conf.d/x/one.cnf":     "bogus one",
		"conf.d/x/two.cnf":     "bogus two",
		"conf.d/three.cnf":     "bogus three",
		"conf.d/y.inc":         "MISC_CHECK {\n misc_path ${_PWD}/check\n delay_before_retry 60\n}",
		"own.conf":             "include sub/own.conf",
		"sub/own.conf":         "\ninclude ../own.conf",
		"open.conf":            "include sub/open.conf\n",
		"sub/open.conf":        "a {",
	} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) (keys.Object, []Note, error) {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		return Keepalived(f, Options{File: f.Name()})
	}
	doc, notes, err := read("keepalived.conf")
	if err != nil || len(doc.Objects("farms")) != 1 || len(doc.Objects("farms")[0].Objects("backends")) != 1 ||
		!reflect.DeepEqual(doc.Objects("farms")[0]["health-check"].(keys.Object)["command"], []string{dir + "/conf.d/check"}) {
		t.Fatalf("%s, %v", imported(t, doc, notes, err), err)
	}
	var got []string
	for _, n := range notes {
		if what := n.What; strings.Contains(what, "bogus") || strings.Contains(what, "include") {
			got = append(got, fmt.Sprintf("%s:%d%s %s", strings.TrimPrefix(n.File, dir+"/"), n.Line, marks[n.Loss], what))
		}
	}
	want := []string{"conf.d/a.conf:1! bogus 1", "conf.d/b.conf:5 bogus 2", ":3= include nothing.d/*", ":4! includea missing.conf",
		"conf.d/x/one.cnf:1! bogus one", "conf.d/x/two.cnf:1! bogus two", "conf.d/three.cnf:1! bogus three"}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for name, want := range map[string]string{
		"own.conf":  "read " + dir + "/sub/own.conf: line 2: " + dir + "/own.conf includes itself",
		"open.conf": "read " + dir + "/sub/open.conf: line 1: the block of a is not closed",
	} {
		if _, _, err := read(name); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// The lines that keepalived reads of a file with inclusions, conditions, sequences, lists and
// definitions are those that are read here, as words that it does not know show.
func TestKeepalivedReadsTheSameLines(t *testing.T) {
	if _, err := exec.LookPath("keepalived"); err != nil {
		t.Skip("needs Debian's keepalived")
	}
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"keepalived.conf": "include conf.d/*.conf\ninclude conf.d/{x/{one,two},y}.cnf\n$M= \\\nx${N} 1 \\\nmore 2\n$N=5\n$M\n$L= \\\nlast 1 \\\n\nafter 1\n$L\n" +
			"@main here\n@^main elsewhere\n@other elsewhere\n@^other there\n$IF=@main\n$IF conditional 1\n~SEQ(A,1,3,8) seq${A}\n~SEQx(B,10,-1,9) ~LST({C,D},{1,2},{3,4}) lst${B}${C}${D}\n~SEQ(E,-2) $M",
		"conf.d/a.conf":      "a 1",
		"conf.d/b.conf":      "b 1\n\ninclude x/one.cnf",
		"conf.d/.c.conf":     "c 1",
		"conf.d/x.conf/file": "d 1",
		"conf.d/x/one.cnf":   "e 1\ninclude ../y.cnf",
		"conf.d/y.cnf":       "f 1",
		"conf.d/run.conf":    "g 1",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod("conf.d/run.conf", 0o700); err != nil {
		t.Fatal(err)
	}
	out, _ := exec.Command("keepalived", "--config-test", "--config-id", "main", "--use-file", "./keepalived.conf").CombinedOutput()
	theirs := map[string]bool{}
	for _, m := range regexp.MustCompile(`\((\S*): Line (\d+)\) Unknown keyword '(.*)'`).FindAllStringSubmatch(string(out), -1) {
		theirs[filepath.Base(m[1])+" "+m[2]+" "+m[3]] = true
	}
	f, err := os.Open("keepalived.conf")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	_, notes, _ := Keepalived(f, Options{File: f.Name(), ConfigID: "main"})
	ours := map[string]bool{}
	for _, n := range notes {
		if word, _, _ := strings.Cut(n.What, " "); word != "include" {
			ours[fmt.Sprint(filepath.Base(cmp.Or(n.File, f.Name())), " ", n.Line, " ", word)] = true
		}
	}
	if len(ours) < 20 || !maps.Equal(ours, theirs) {
		t.Errorf("read here\n%s\nkeepalived reads\n%s\n%s", slices.Sorted(maps.Keys(ours)), slices.Sorted(maps.Keys(theirs)), out)
	}
}

// A farm has one check for all its servers, and no check that has them down which keepalived has
// up.
func TestKeepalivedChecks(t *testing.T) {
	const tcp = "TCP_CHECK {\ndelay_before_retry 60\n}"
	for name, c := range map[string]struct{ first, second, check, notes string }{
		"as usual":                   {tcp, tcp, "(type:tcp interval:60 timeout:5 rise:1 fall:2)", ""},
		"retried at once":            {"TCP_CHECK {\n}", "TCP_CHECK {\n}", "(type:tcp interval:60 timeout:5 rise:1 fall:2)", "5 TCP_CHECK: is repeated after its interval"},
		"no retries of a server":     {"retry 0\n" + tcp, "", "(type:tcp interval:60 timeout:5 rise:1 fall:2)", "5 retry 0: left out"},
		"no retries of a check":      {"TCP_CHECK {\nretry 0\n}", "", "(type:tcp interval:60 timeout:5 rise:1 fall:1)", ""},
		"once in two hours":          {"delay_loop 7200\nTCP_CHECK {\nretry 0\n}", "", "(type:tcp interval:7200 timeout:5 rise:1 fall:1)", ""},
		"silence":                    {"UDP_CHECK {\npayload 61\n}", "", "", "5 UDP_CHECK: left out"},
		"any answer":                 {"UDP_CHECK {\ndelay_before_retry 60\nrequire_reply\n}", "UDP_CHECK {\ndelay_before_retry 60\nrequire_reply\n}", "(type:udp interval:60 timeout:5 rise:1 fall:2)", ""},
		"what is no text":            {"UDP_CHECK {\ndelay_before_retry 60\npayload 00\nrequire_reply\n}", "", "", "5 UDP_CHECK: left out"},
		"an answer that is no text":  {"UDP_CHECK {\ndelay_before_retry 60\npayload 6 12 6\nrequire_reply 6X\n}", "", "", "5 UDP_CHECK: left out"},
		"digits that stand alone":    {"UDP_CHECK {\ndelay_before_retry 60\npayload 61626\nrequire_reply 61\n}", "", "", "5 UDP_CHECK: left out"},
		"a status below 200":         {"HTTP_GET {\ndelay_before_retry 60\nurl {\npath /\nstatus_code 101 200-204\n}\n}", "", "(type:http interval:60 timeout:5 rise:1 fall:2 path:/ method:GET status:200-204)", "101 is left out"},
		"a path with a space":        {"HTTP_GET {\ndelay_before_retry 60\nurl {\npath \"/a b\"\n}\n}", "", "(type:http interval:60 timeout:5 rise:1 fall:2 path:/ method:GET status:200-299)", "7 path /a b: becomes /"},
		"a host that is none":        {"HTTP_GET {\ndelay_before_retry 60\nvirtualhost a/b\nurl {\n}\n}", "", "(type:http interval:60 timeout:5 rise:1 fall:2 path:/ method:GET status:200-299)", "7 virtualhost a/b: left out"},
		"no command":                 {"MISC_CHECK {\n}", "", "", "5 MISC_CHECK: left out"},
		"a command for each":         {"MISC_CHECK {\nmisc_path \"/bin/check -H 10.1.0.1 -p 80 'two words'\"\n}", "MISC_CHECK {\nmisc_path \"/bin/check -H 10.1.0.2 -p 80 'two words'\"\n}", `(type:command interval:60 timeout:60 rise:1 fall:1 command:[/bin/sh -c exec /bin/check -H \$SLUICE_ADDRESS\ -p \$SLUICE_PORT\ 'two words'])`, "6= misc_path"},
		"a command with a URL":       {"MISC_CHECK {\nmisc_path \"/bin/check http://10.1.0.1:80/x\"\n}", "MISC_CHECK {\nmisc_path \"/bin/check http://10.1.0.2:80/x\"\n}", `(type:command interval:60 timeout:60 rise:1 fall:1 command:[/bin/sh -c exec /bin/check http://\$SLUICE_ADDRESS\:\$SLUICE_PORT\/x])`, "6= misc_path"},
		"a command without address":  {"MISC_CHECK {\nmisc_path \"/bin/check 110.1.0.1 10.1.0.12\"\n}", "MISC_CHECK {\nmisc_path \"/bin/check 110.1.0.1 10.1.0.12\"\n}", "(type:command interval:60 timeout:60 rise:1 fall:1 command:[/bin/check 110.1.0.1 10.1.0.12])", ""},
		"a command that weighs":      {"MISC_CHECK {\nmisc_path \"/bin/check 'a b'\"\nmisc_dynamic\n}", "", `(type:command interval:60 timeout:60 rise:1 fall:1 command:[/bin/sh -c /bin/check 'a b'; test $? != 1])`, "7 misc_dynamic: left out"},
		"a command that weighs each": {"MISC_CHECK {\nmisc_path \"/bin/check 10.1.0.1\"\nmisc_dynamic\n}", "MISC_CHECK {\nmisc_path \"/bin/check 10.1.0.2\"\nmisc_dynamic\n}", `(type:command interval:60 timeout:60 rise:1 fall:1 command:[/bin/sh -c /bin/check \$SLUICE_ADDRESS\; test $? != 1])`, "7 misc_dynamic: left out"},
		"words of an old SMTP_CHECK": {"SMTP_CHECK {\ndelay_before_retry 60\nhost {\nconnect_ip 10.1.0.9\nconnect_port 587\n}\n}", "", "(type:tcp interval:60 timeout:5 rise:1 fall:2 port:587)", "8 connect_ip 10.1.0.9: left out"},
	} {
		t.Run(name, func(t *testing.T) {
			conf := "virtual_server 10.0.0.1 80 {\nlb_algo rr\nprotocol TCP\nreal_server 10.1.0.1 80 {\n" + c.first + "\n}"
			if c.second != "" {
				conf += "\nreal_server 10.1.0.2 80 {\n" + c.second + "\n}"
			}
			doc, notes, err := Keepalived(strings.NewReader(conf+"\n}"), Options{})
			got := imported(t, doc, notes, err)
			if has := strings.Contains(got, "health-check:"); has != (c.check != "") || !strings.Contains(got, c.check) || !strings.Contains(got, c.notes) {
				t.Errorf("got\n%swant\n%s\n%s", got, c.check, c.notes)
			}
			if strings.Contains(got, "is checked like the first") {
				t.Errorf("the second server is checked otherwise:\n%s", got)
			}
		})
	}
}

func FuzzKeepalived(f *testing.F) {
	conf, err := os.ReadFile("testdata/web.conf")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(conf))
	f.Add("$A=x\nvirtual_server_group G {\n2001:db8::1-ff 80\n::ffff:10.0.0.0/120\n}\nvirtual_server group G {\nprotocol SCTP\nlb_algo fo\n}")
	f.Add("$A= \\\nlb_algo ${X} \\\n\n@a virtual_server 10.0.0.1 80 {\n~SEQ(X,-1,1) ~LST({Y,Z},{1,2},{3,4}) $A\n}")
	f.Add("virtual_server 10.0.0.1 80 {\nprotocol TCP\nreal_server 10.1.0.1 {\nUDP_CHECK {\npayload 0a\n}\nMISC_CHECK {\nmisc_path \"a \\\"b c\\\"\"\n}\n}\n}")
	f.Fuzz(func(t *testing.T, text string) {
		for _, o := range []Options{{}, {IPVS: true, ConfigID: "a"}} {
			sound(t, text, func() (keys.Object, []Note, error) { return Keepalived(strings.NewReader(text), o) })
		}
	})
}
