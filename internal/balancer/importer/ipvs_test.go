package importer

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/balancer/config"
	"sluice.dev/sluice/internal/balancer/keys"
)

// marks are how the tests show what is lost.
var marks = map[Loss]string{Nothing: "=", Part: "", Whole: "!"}

// imported is what an importer made of a text: the document as JSON, then the notes.
func imported(t *testing.T, doc keys.Object, notes []Note, err error) string {
	t.Helper()
	if err != nil && len(notes) == 0 {
		t.Fatal(err)
	}
	if doc == nil { // nothing was understood, as the notes say
		doc = keys.Object{}
	}
	var out strings.Builder
	for _, f := range doc.Objects("farms") {
		line(&out, "farm", config.Document.List("farms").JSON(f))
	}
	for _, n := range notes {
		why, _, _ := strings.Cut(n.Why, ":")
		fmt.Fprintf(&out, "%d%s %s: %s\n", n.Line, marks[n.Loss], n.What, why)
	}
	return out.String()
}

// line writes an object on a line of its own, without what JSON needs to be read by machines.
func line(out *strings.Builder, kind string, text []byte) {
	fmt.Fprintf(out, "%s %s\n", kind, strings.NewReplacer(`"`, "", ",", " ", "{", "(", "}", ")").Replace(string(text)))
}

func compare(t *testing.T, got, want string) {
	t.Helper()
	if got = strings.TrimSpace(got); got != strings.TrimSpace(want) {
		t.Errorf("got\n%s\nwant\n%s", got, strings.TrimSpace(want))
	}
}

func TestIPVS(t *testing.T) {
	for name, c := range map[string]struct{ dump, want string }{
		"masquerading, weights, draining": {`
-A -t 10.0.0.1:80 -s wrr
-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 3
-a -t 10.0.0.1:80 -r 10.1.0.2:8080 -m -w 0`, `
farm (name:10.0.0.1-80-tcp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:80 mode:dnat protocol:tcp scheduler:rr all-down:refuse backends:[(name:10.1.0.1-8080 ip-addr:10.1.0.1 port:8080 weight:3) (name:10.1.0.2-8080 ip-addr:10.1.0.2 port:8080 state:draining)])
3= NAT: becomes mode dnat`},
		"least connections, persistence by network, thresholds": {`
-A -u 10.0.0.1:53 -s lc -p 360 -M 255.255.255.0
-a -u 10.0.0.1:53 -r 10.1.0.1:53 -m -w 2 -x 100 -y 50
`, `
farm (name:10.0.0.1-53-udp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:53 mode:dnat protocol:udp scheduler:weight persistence:srcip persist-ttl:360 all-down:refuse backends:[(name:10.1.0.1-53 ip-addr:10.1.0.1 port:53 est-connlimit:100)])
2 scheduler lc: becomes scheduler weight (random, in proportion to weights)
2 netmask 255.255.255.0: left out
3= NAT: becomes mode dnat
3= weight 2: left out
3 upper threshold 100: becomes est-connlimit
3 lower threshold 50: left out`},
		"direct routing needs a scheduler that remembers nothing": {`
-A -t [2001:db8::1]:443 -s wlc -p 300
-a -t [2001:db8::1]:443 -r [2001:db8::a]:443 -g -w 1
-a -t [2001:db8::1]:443 -r [2001:db8::b]:444 -g -w 1`, `
farm (name:2001:db8::1-443-tcp family:ipv6 virtual-addr:2001:db8::1 virtual-ports:443 mode:dsr protocol:tcp scheduler:maglev sched-param:srcip persistence:srcip persist-ttl:300 all-down:refuse backends:[(name:2001:db8::a-443 ip-addr:2001:db8::a weight:1) (name:2001:db8::b-444 ip-addr:2001:db8::b weight:1)])
2 scheduler wlc: becomes maglev by srcip
2 persistence for 300 s: becomes a hash of the client's address, which has no end
4= [2001:db8::b]:444: port left out`},
		"hashing with flags": {`
-A -t 10.0.0.1:80 -s sh -b sh-fallback,sh-port
-a -t 10.0.0.1:80 -r 10.1.0.1:80 -g -w 1
-A -t 10.0.0.1:81 -s mh -b flag-1
-A -t 10.0.0.1:82 -s dh -b sh-port`, `
farm (name:10.0.0.1-80-tcp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:80 mode:dsr protocol:tcp scheduler:hash sched-param:srcip srcport all-down:refuse backends:[(name:10.1.0.1-80 ip-addr:10.1.0.1 weight:1)])
farm (name:10.0.0.1-81-tcp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:81 mode:dnat protocol:tcp scheduler:maglev sched-param:srcip all-down:refuse)
farm (name:10.0.0.1-82-tcp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:82 mode:dnat protocol:tcp scheduler:hash sched-param:dstip all-down:refuse)
5 flag sh-port: left out`},
		"failover by weight": {`
-A --sctp 10.0.0.1:5060 -s fo
-a --sctp 10.0.0.1:5060 -r 10.1.0.1:5060 -m -w 1
-a --sctp 10.0.0.1:5060 -r 10.1.0.2:5060 -m -w 9
-a --sctp 10.0.0.1:5060 -r 10.1.0.3:5060 -m -w 0`, `
farm (name:10.0.0.1-5060-sctp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:5060 mode:dnat protocol:sctp scheduler:rr all-down:refuse backends:[(name:10.1.0.1-5060 ip-addr:10.1.0.1 port:5060 priority:2) (name:10.1.0.2-5060 ip-addr:10.1.0.2 port:5060 priority:1) (name:10.1.0.3-5060 ip-addr:10.1.0.3 port:5060 priority:3 state:draining)])
2= scheduler fo: becomes priorities
3= NAT: becomes mode dnat`},
		"every port": {`
-A -t 10.0.0.1:0 -s rr -p 300
-a -t 10.0.0.1:0 -r 10.1.0.1:0 -m -w 1`, `
farm (name:10.0.0.1-tcp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:1-65535 mode:dnat protocol:tcp scheduler:rr persistence:srcip persist-ttl:300 all-down:refuse backends:[(name:10.1.0.1 ip-addr:10.1.0.1)])
3= NAT: becomes mode dnat`},
		"a threshold for every port": {`
-A -t 10.0.0.1:0 -s rr -p 300
-a -t 10.0.0.1:0 -r 10.1.0.1:0 -m -w 1 -x 9`, `
farm (name:10.0.0.1-tcp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:1-65535 mode:dnat protocol:tcp scheduler:rr persistence:srcip persist-ttl:300 all-down:refuse backends:[(name:10.1.0.1 ip-addr:10.1.0.1)])
3= NAT: becomes mode dnat
3 upper threshold 9: left out`},
		"commands that describe nothing": {`
ipvsadm -C
/sbin/ipvsadm --set 900 120 300
ipvsadm --start-daemon master --mcast-interface eth0
-E -t 10.0.0.1:80 -s rr
-A -t 10.0.0.1:80 -s rr -j
-A -t 10.0.0.1:80 -s rr
-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1`, `
farm (name:10.0.0.1-80-tcp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:80 mode:dnat protocol:tcp scheduler:rr all-down:refuse backends:[(name:10.1.0.1-80 ip-addr:10.1.0.1 port:80)])
2= -C: left out
3 --set 900 120 300: left out
4 --start-daemon master --mcast-interface eth0: left out
5! -E -t 10.0.0.1:80 -s rr: left out
6! -A -t 10.0.0.1:80 -s rr -j: left out
8= NAT: becomes mode dnat`},
		"tunnels": {`
-A -t 192.0.2.10:80 -s wrr
-a -t 192.0.2.10:80 -r 10.30.0.11:80 -i -w 1
-a -t 192.0.2.10:80 -r 10.31.0.12:80 -i -w 1`, `
farm (name:192.0.2.10-80-tcp family:ipv4 virtual-addr:192.0.2.10 virtual-ports:80 mode:dsr protocol:tcp scheduler:maglev sched-param:srcip srcport all-down:refuse backends:[(name:10.30.0.11-80 ip-addr:10.30.0.11 weight:1) (name:10.31.0.12-80 ip-addr:10.31.0.12 weight:1)])
2 scheduler wrr: becomes maglev by srcip srcport
3= TUN: becomes mode dsr`},
		"tunnels beside direct routing, and those that are not made": {`
-A -t 10.0.0.1:80 -s wrr
-a -t 10.0.0.1:80 -r 10.1.0.1:80 -g -w 1
-a -t 10.0.0.1:80 -r 10.2.0.1:80 -i -w 1 --tun-type ipip
-a -t 10.0.0.1:80 -r 10.2.0.2:80 -i -w 1 --tun-type gre
-A -t [2001:db8::1]:80 -s wrr
-a -t [2001:db8::1]:80 -r [2001:db8:2::1]:80 -i -w 1`, `
farm (name:10.0.0.1-80-tcp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:80 mode:dsr protocol:tcp scheduler:maglev sched-param:srcip srcport all-down:refuse backends:[(name:10.1.0.1-80 ip-addr:10.1.0.1 weight:1) (name:10.2.0.1-80 ip-addr:10.2.0.1 weight:1)])
2 scheduler wrr: becomes maglev by srcip srcport
4= TUN: becomes mode dsr
5! 10.2.0.2:80: left out
6! tcp [2001:db8::1]:80: left out
7! [2001:db8:2::1]:80: left out`},
		"ports that packets do not get": {`
-A -t 10.0.0.1:0 -s rr -p 300
-a -t 10.0.0.1:0 -r 10.1.0.1:8080 -m -w 1
-a -t 10.0.0.1:0 -r 10.1.0.1:8081 -m -w 1`, `
farm (name:10.0.0.1-tcp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:1-65535 mode:dnat protocol:tcp scheduler:rr persistence:srcip persist-ttl:300 all-down:refuse backends:[(name:10.1.0.1-8080 ip-addr:10.1.0.1)])
3= NAT: becomes mode dnat
3= 10.1.0.1:8080: port left out
4! 10.1.0.1:8081: left out`},
		"tunnels of GUE, marks, names, mixed methods": {`
-A -t 10.0.0.1:80 -s rr
-a -t 10.0.0.1:80 -r 10.1.0.1:80 -i -w 1 --tun-type gue --tun-port 6080
-A -f 7 -s rr
-a -f 7 -r 10.1.0.1:0 -m -w 1
-A -t www:http -s rr -o
-A -t 10.0.0.2:80 -s rr --pe sip
-a -t 10.0.0.2:80 -r 10.1.0.1:80 -g -w 1
-a -t 10.0.0.2:80 -r 10.1.0.2:80 -m -w 1
-a -t 10.0.0.2:80 -r [2001:db8::1]:80 -g -w 1
-a -t 10.0.0.9:80 -r 10.1.0.2:80 -m -w 1
--set 900 120 300`, `
farm (name:10.0.0.2-80-tcp family:ipv4 virtual-addr:10.0.0.2 virtual-ports:80 mode:dsr protocol:tcp scheduler:maglev sched-param:srcip srcport all-down:refuse backends:[(name:10.1.0.1-80 ip-addr:10.1.0.1)])
2! tcp 10.0.0.1:80: left out
3! 10.1.0.1:80: left out
4! mark 7: left out with its servers
6! tcp www:http: left out with its servers
7 --pe sip: left out
7 scheduler rr: becomes maglev by srcip srcport
9! 10.1.0.2:80: left out
10! [2001:db8::1]:80: left out
11! -r 10.1.0.2:80: left out
12 --set 900 120 300: left out`},
	} {
		t.Run(name, func(t *testing.T) {
			doc, notes, err := IPVS(strings.NewReader(c.dump), Options{})
			compare(t, imported(t, doc, notes, err), c.want)
		})
	}
}

// Each option that ipvsadm saves is taken over, or a note on its line says that it is not.
func TestIPVSOptions(t *testing.T) {
	const service, server = "-A -t 10.0.0.1:80 -s sh", "-a -t 10.0.0.1:80 -r 10.1.0.1:80"
	for _, c := range []struct{ service, server, note string }{
		{" -p", " -m -w 1", ""},
		{" -p 60", " -m -w 0", ""},
		{" -p 60 -M 255.255.255.255", " -m", ""},
		{" -p 60 -M 255.255.0.0", " -m", "1 netmask 255.255.0.0: left out"},
		{" -p 60 --pe sip", " -m", "1 --pe sip: left out"},
		{" -b sh-port,sh-fallback", " -m", ""},
		{" -b flag-1,flag-2,flag-3", " -m", "1 flag flag-3: left out"},
		{" -o", " -m", "1 -o: left out"},
		{" -6", " -m", ""},
		{"", " -g -w 1", ""},
		{"", " -i -w 1 --tun-type ipip --tun-nocsum", "2= TUN: becomes mode dsr"},
		{"", " -i -w 1 --tun-type gue --tun-port 6080 --tun-remcsum", "2! 10.1.0.1:80: left out"},
		{"", " -i -w 1 --tun-type gre --tun-csum", "2! 10.1.0.1:80: left out"},
		{"", " -m -x 9", "2 upper threshold 9: becomes est-connlimit"},
		{"", " -m -y 9", "2 lower threshold 9: left out"},
		{"", " -m -w 65536", "2! -w 65536: left out with its server"},
		{"", " -m -O", "2! -a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -O: left out"},
	} {
		doc, notes, err := IPVS(strings.NewReader(service+c.service+"\n"+server+c.server), Options{})
		got := imported(t, doc, notes, err)
		if !strings.Contains(got, c.note) || c.note == "" && strings.Contains(got, "left out") {
			t.Errorf("%s, %s:\n%s\nwant %s", c.service, c.server, got, c.note)
		}
	}
}

// With --mode ipvs, the farms are the virtual servers of IPVS as they were: what counts connections
// is least, and persistence is IPVS' own.
func TestIPVSForIPVS(t *testing.T) {
	const dump = `
-A -t 10.0.0.1:80 -s wlc -p 300
-a -t 10.0.0.1:80 -r 10.1.0.1:80 -g -w 2
-A -t 10.0.0.2:80 -s wrr
-a -t 10.0.0.2:80 -r 10.1.0.1:80 -i -w 2
-A -t 10.0.0.3:80 -s lc
-a -t 10.0.0.3:80 -r 10.1.0.1:8080 -m -w 2 -x 100
-A -u 10.0.0.4:53 -s sed -o
-a -u 10.0.0.4:53 -r 10.1.0.1:53 -m -w 1
-A -t 10.0.0.5:80 -s lblcr
-a -t 10.0.0.5:80 -r 10.1.0.1:80 -m -w 1
-A -t 10.0.0.6:80 -s dh
-a -t 10.0.0.6:80 -r 10.1.0.1:80 -m -w 1
-A -t 10.0.0.7:0 -s wlc -p 300
-a -t 10.0.0.7:0 -r 10.1.0.1:0 -m -w 1`
	doc, notes, err := IPVS(strings.NewReader(dump), Options{IPVS: true})
	compare(t, imported(t, doc, notes, err), `
farm (name:10.0.0.1-80-tcp family:ipv4 virtual-addr:10.0.0.1 virtual-ports:80 mode:dsr protocol:tcp scheduler:least persistence:srcip persist-ttl:300 all-down:refuse backends:[(name:10.1.0.1-80 ip-addr:10.1.0.1 weight:2)])
farm (name:10.0.0.2-80-tcp family:ipv4 virtual-addr:10.0.0.2 virtual-ports:80 mode:dsr protocol:tcp scheduler:rr all-down:refuse backends:[(name:10.1.0.1-80 ip-addr:10.1.0.1 weight:2)])
farm (name:10.0.0.3-80-tcp family:ipv4 virtual-addr:10.0.0.3 virtual-ports:80 mode:dnat protocol:tcp scheduler:least all-down:refuse backends:[(name:10.1.0.1-8080 ip-addr:10.1.0.1 port:8080)])
farm (name:10.0.0.4-53-udp family:ipv4 virtual-addr:10.0.0.4 virtual-ports:53 mode:dnat protocol:udp scheduler:least all-down:refuse backends:[(name:10.1.0.1-53 ip-addr:10.1.0.1 port:53 weight:1)])
farm (name:10.0.0.5-80-tcp family:ipv4 virtual-addr:10.0.0.5 virtual-ports:80 mode:dnat protocol:tcp scheduler:least all-down:refuse backends:[(name:10.1.0.1-80 ip-addr:10.1.0.1 port:80 weight:1)])
farm (name:10.0.0.6-80-tcp family:ipv4 virtual-addr:10.0.0.6 virtual-ports:80 mode:dnat protocol:tcp scheduler:hash sched-param:srcip all-down:refuse backends:[(name:10.1.0.1-80 ip-addr:10.1.0.1 port:80)])
5= TUN: becomes mode dsr
7= NAT: becomes mode dnat
7= weight 2: left out
7 upper threshold 100: left out
8 -o: left out
8 scheduler sed: becomes least
10 scheduler lblcr: becomes least
12 scheduler dh: becomes scheduler hash by srcip
14! 10.0.0.7:0: left out
14! tcp 10.0.0.7:0: left out`)
}

// A group that IPVS remembers clients of at each address becomes a farm for each.
func TestGroupForIPVS(t *testing.T) {
	const conf = "virtual_server_group G {\n10.0.0.1-2 80\n}\nvirtual_server group G {\nprotocol TCP\nlb_algo rr\npersistence_timeout 9\nreal_server 10.1.0.1 80 {\n}\n}"
	doc, notes, err := Keepalived(strings.NewReader(conf), Options{IPVS: true})
	compare(t, imported(t, doc, notes, err), `
farm (name:G family:ipv4 virtual-addr:10.0.0.1 virtual-ports:80 mode:dnat protocol:tcp scheduler:rr persistence:srcip persist-ttl:9 all-down:refuse backends:[(name:10.1.0.1-80 ip-addr:10.1.0.1 port:80)])
farm (name:G-2 family:ipv4 virtual-addr:10.0.0.2 virtual-ports:80 mode:dnat protocol:tcp scheduler:rr persistence:srcip persist-ttl:9 all-down:refuse backends:[(name:10.1.0.1-80 ip-addr:10.1.0.1 port:80)])
8= NAT: becomes mode dnat`)
}

// Long options say the same as short ones, as ipvsadm-restore reads both.
func TestIPVSLongOptions(t *testing.T) {
	short, _, err := IPVS(strings.NewReader("-A -t 10.0.0.1:80 -s wrr -p 60\n-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 2\n"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	long, _, err := IPVS(strings.NewReader("# saved\nipvsadm --add-service --tcp-service=10.0.0.1:80 --scheduler wrr --persistent=60\n"+
		"--add-server --tcp-service 10.0.0.1:80 --real-server 10.1.0.1:80 --masquerading --weight 2\n"), Options{})
	if err != nil || !reflect.DeepEqual(short, long) {
		t.Errorf("long options make %+v, %v", long, err)
	}
}

func TestNothingToImport(t *testing.T) {
	if _, _, err := IPVS(strings.NewReader("\n# nothing\n"), Options{}); err == nil || !strings.Contains(err.Error(), "ipvsadm -Sn") {
		t.Errorf("an empty dump: %v", err)
	}
}

func FuzzIPVS(f *testing.F) {
	f.Add("-A -t 10.0.0.1:80 -s wrr -p 300 -M 255.255.255.0\n-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1 -x 3 -y 2")
	f.Add("-A -u [2001:db8::1]:53 -s mh -b mh-port\n-a -u [2001:db8::1]:53 -r [2001:db8::2]:53 -g -w 0")
	f.Add("-A -f 1 -s fo -6 -o --pe sip\n--tun-type=gue -p")
	f.Fuzz(func(t *testing.T, text string) {
		for _, o := range []Options{{}, {IPVS: true}} {
			sound(t, text, func() (keys.Object, []Note, error) { return IPVS(strings.NewReader(text), o) })
		}
	})
}

// sound tells whether what was imported holds together, and comes out the same again.
func sound(t *testing.T, text string, read func() (keys.Object, []Note, error)) {
	doc, notes, err := read()
	again, notesAgain, errAgain := read()
	if !reflect.DeepEqual(doc, again) || !reflect.DeepEqual(notes, notesAgain) || (err == nil) != (errAgain == nil) {
		t.Fatal("read twice, it is not the same")
	}
	if err != nil {
		return
	}
	lines := strings.Count(text, "\n") + 1
	for _, n := range notes {
		if n.Line < 1 || n.Line > lines || n.Why == "" {
			t.Errorf("of %d lines: %+v", lines, n)
		}
	}
	if text := config.Document.JSON(doc); !json.Valid(text) {
		t.Errorf("it becomes %s", text)
	}
}
