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
		"definitions of many lines":    {"$A= \\\nx \\\ny\nvirtual_server 10.0.0.1 80 {" + server, farm, "1 $A: left out"},
		"with servers in them":         {"$A= \\\nreal_server 10.1.0.7 80 { \\\n}\nvirtual_server 10.0.0.1 80 {" + server, farm, "1! $A: left out"},
		"for one machine":              {"virtual_server 10.0.0.1 80 {\n@one lb_algo sh" + server, farm, "@one lb_algo sh: left out"},
		"a server for one machine":     {"virtual_server 10.0.0.1 80 {\n@one sorry_server 10.1.0.9 80" + server, farm, "2! @one sorry_server 10.1.0.9 80: left out"},
		"for one machine, of VRRP":     {"vrrp_instance A {\n@one priority 7\n@two virtual_ipaddress {\n10.0.0.1\n}\n}\nvirtual_server 10.0.0.1 80 {" + server, farm, "1 vrrp_instance A: left out"},
		"a sequence":                   {"virtual_server_group G {\n~SEQ(N, 1, 9) 10.0.0.${N} 80\n10.0.0.1 80\n}\nvirtual_server group G {" + server, strings.ReplaceAll(farm, "name:10.0.0.1-80-tcp", "name:G"), "2! ~SEQ(N, 1, 9) 10.0.0.${N} 80: left out"},
		"files that are read in":       {"includer conf.d/*.conf\nvirtual_server 10.0.0.1 80 {" + server, farm, "1! includer conf.d/*.conf: left out"},
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
		"$A=${B}\n$B=${A}\n$A":             "stand for each other",
		"virtual_server 10.0.0.1 80 {\n}}": "line 2: a block is closed",
		"a\nb {\nc {\n}":                   "line 2: the block of b",
		strings.Repeat("a {\n", 30):        "more than 20",
		"":                                 "virtual_server",
		"$A=" + strings.Repeat("x", 300) + "\n$B=${A}${A}${A}${A}${A}${A}\n$C=${B}${B}${B}${B}${B}${B}\n$D=${C}${C}${C}${C}${C}${C}${C}\n$D": "longer than",
	} {
		if _, _, err := Keepalived(strings.NewReader(conf), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v; want %s", conf, err, want)
		}
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
	f.Add("virtual_server 10.0.0.1 80 {\nprotocol TCP\nreal_server 10.1.0.1 {\nUDP_CHECK {\npayload 0a\n}\nMISC_CHECK {\nmisc_path \"a \\\"b c\\\"\"\n}\n}\n}")
	f.Fuzz(func(t *testing.T, text string) {
		for _, o := range []Options{{}, {IPVS: true}} {
			sound(t, text, func() (*Document, []Note, error) { return Keepalived(strings.NewReader(text), o) })
		}
	})
}
