package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice.dev/sluice/internal/model"
)

// farmPrinted returns the printed attributes of a farm that a document makes.
func farmPrinted(b *bed) string {
	_, text := b.ask("GET", "/farms/web", "")
	return text
}

// TestAttributes reads a value of an attribute of a farm, and compares what is printed of it.
func TestAttributes(t *testing.T) {
	tests := []struct{ given, printed string }{
		{`"family":"inet"`, `"family": "inet"`},
		{`"family":"dual"`, `"family": "inet"`},
		{`"virtual-addr":"2001:DB8::1"`, `"family": "ipv6"`},
		{`"virtual-addr":"2001:DB8::1"`, `"virtual-addr": "2001:db8::1"`},
		{`"virtual-ports":"80,82-84"`, `"virtual-ports": "80,82-84"`},
		{`"virtual-ports":80`, `"virtual-ports": "80"`},
		{`"virtual-ports":""`, `"protocol": "all"`},
		{`"protocol":"tcp","virtual-ports":""`, `"protocol": "tcp"`},
		{`"source-addr":"192.0.2.9"`, `"source-addr": "192.0.2.9"`},
		{`"mode":"stlsdnat","scheduler":"symhash","responsettl":"7"`, `"responsettl": "7"`},
		{`"scheduler":"hash"`, `"sched-param": "srcip "`},
		{`"sched-param":"srcport srcip","scheduler":"hash"`, `"sched-param": "srcip srcport "`},
		{`"scheduler":"maglev"`, `"scheduler": "maglev"`},
		{`"persistence":"srcip . srcport"`, `"persistence": "srcip srcport "`},
		{`"log":"output input forward"`, `"log": "input forward output"`},
		{`"log":"forward"`, `"log": "forward "`},
		{`"log-rtlimit":"10/minute"`, `"log-rtlimit": "10/minute"`},
		{`"new-rtlimit":20,"new-rtlimit-burst":3`, `"new-rtlimit": "20/second"`},
		{`"rst-rtlimit":"5/hour","new-rtlimit":"5"`, `"rst-rtlimit": "5/hour"`},
		{`"new-rtlimit":""`, `"new-rtlimit": "0/second"`},
		{`"mark":"10"`, `"mark": "0x10"`},
		{`"mark":""`, `"mark": "0x0"`},
		{`"tcp-strict":true`, `"tcp-strict": "on"`},
		{`"verdict":"log"`, `"verdict": "log "`},
		{`"queue":"-1","flow-offload":"off","iface":"eth0","ether-addr":"x"`, `"queue": "-1"`},
		{`"intra-connect":"on"`, `"intra-connect": "on"`},
		{`"log-prefix":"x"`, `"log-prefix": "x"`},
		{`"state":"config_error"`, `"state": "up"`},
		{`"action":"stop"`, `"state": "down"`},
		{`"all-down":"keep","slow-start":10,"limits-full":"drop","syn-proxy":"on"`, `"syn-proxy": "on"`},
		{`"health-check":{"type":"http","status":"204","interval":1.5}`, `"status": "204-204"`},
		{`"health-check":{"type":"http","status":"204","interval":1.5}`, `"interval": "1.5"`},
		{`"health-check":{"type":"command","command":["/bin/x","a b"]}`, `"a b"`},
	}
	for _, test := range tests {
		b := start(t, Options{})
		b.do("POST", "/farms", `{"farms":[{"name":"web","virtual-addr":"192.0.2.1","virtual-ports":"80"}]}`)
		b.do("POST", "/farms", `{"farms":[{`+test.given+`,"name":"web"}]}`)
		if text := farmPrinted(b); !strings.Contains(text, test.printed) {
			t.Errorf("%s: %s is missing in %s", test.given, test.printed, text)
		}
		b.stop()
	}
}

// TestWrong makes requests that must be refused, and change nothing.
func TestWrong(t *testing.T) {
	tests := []struct {
		given string
		code  int
		text  string
	}{
		{`{`, 400, "the structure is invalid"},
		{`{"farms":{}}`, 400, "the structure is invalid. farms is no list"},
		{`{"farms":[1]}`, 400, "the structure is invalid"},
		{`{"farms":[null]}`, 400, "farms[0] is no object"},
		{`{"farms":[]} x`, 400, "something follows"},
		{`{"bogus":[]}`, 400, "Unknown key 'bogus'"},
		{`{"farms":[{"name":"web","bogus":"1"}]}`, 400, "Unknown key 'bogus' in farms[web]"},
		{`{"farms":[{"state":"up"}]}`, 400, "farms[0]: name is missing"},
		{`{"farms":[{"name":""}]}`, 400, "farms[0].name: it is empty"},
		{`{"farms":[{"name":"a b"}]}`, 400, "can't be a name"},
		{`{"farms":[{"name":"web","mode":null}]}`, 400, "farms[web].mode: it has no value"},
		{`{"farms":[{"name":"web","mode":[]}]}`, 400, "farms[web].mode: a list is no value"},
		{`{"farms":[{"name":"web","mode":"nat"}]}`, 400, `farms[web].mode: unknown value \"nat\"; known are snat, dnat, dsr, stlsdnat, local`},
		{`{"farms":[{"name":"web","virtual-addr":"nope"}]}`, 400, `farms[web].virtual-addr: \"nope\" is no IP address`},
		{`{"farms":[{"name":"web","virtual-addr":"0.0.0.0"}]}`, 400, "farms[web].virtual-addr: 0.0.0.0 is not the address of a machine"},
		{`{"farms":[{"name":"web","health-check":{"type":"tcp"},"virtual-ports":"","backends":[{"name":"a","port":""}]}]}`, 400, "farms[web].health-check: port is missing"},
		{`{"farms":[{"name":"web","virtual-ports":"70000-70010"}]}`, 400, "farms[web].virtual-ports"},
		{`{"farms":[{"name":"web","virtual-ports":"90-80"}]}`, 400, "farms[web].virtual-ports"},
		{`{"farms":[{"name":"web","persist-ttl":"5s"}]}`, 400, "farms[web].persist-ttl"},
		{`{"farms":[{"name":"web","queue":"0"}]}`, 400, "farms[web].queue"},
		{`{"farms":[{"name":"web","flow-offload":"on"}]}`, 400, "farms[web].flow-offload"},
		{`{"farms":[{"name":"web","helper":"tftp"}]}`, 400, "farms[web].helper: tftp does not go with protocol tcp"},
		{`{"farms":[{"name":"web","mode":"dsr","persistence":"srcip","sessions":[{"client":"1.2.3.4","backend":"a"}]}]}`, 400, "farms[web].sessions: mode dsr remembers no clients"},
		{`{"farms":[{"name":"web","scheduler":"hash","sched-param":"none"}]}`, 400, "farms[web].sched-param"},
		{`{"farms":[{"name":"web","family":"ipv6"}]}`, 400, "addresses[web-addr].family: 192.0.2.1 is no address of ipv6"},
		{`{"farms":[{"name":"web","source-addr":"2001:db8::1"}]}`, 400, "farms[web].source-addr"},
		{`{"farms":[{"name":"web","policies":[{"name":"p"}]}]}`, 404, "the object to modify is unknown. farms[web].policies[p]: Unknown policy 'p'"},
		{`{"farms":[{"name":"web","backends":[{"name":"b","weight":"0"}]}]}`, 400, "farms[web].backends[b].weight"},
		{`{"farms":[{"name":"web","backends":[{"name":"b","port":"65536"}]}]}`, 400, "farms[web].backends[b].port"},
		{`{"farms":[{"name":"web","backends":[{"name":"b","ip-addr":"2001:db8::2"}]}]}`, 400, "farms[web].backends[b].ip-addr: 2001:db8::2 is of another family"},
		{`{"farms":[{"name":"web","backends":[{"name":"a","newname":"b"}]}]}`, 409, "there is a backend 'b' already"},
		{`{"farms":[{"name":"web","persistence":"srcip","sessions":[{"client":"abc","backend":"a"}]}]}`, 400, "farms[web].sessions[abc].client"},
		{`{"farms":[{"name":"web","sessions":[{"client":"1.2.3.4","backend":"c"}]}]}`, 404, "Unknown backend 'c' in farm 'web'"},
		{`{"farms":[{"name":"two","virtual-addr":"192.0.2.1","virtual-ports":"79-81"}]}`, 409, "farms[two]: tcp ports 79-81 of 192.0.2.1 already belongs to farm 'web'"},
		{`{"farms":[{"name":"s1","mode":"stlsdnat","virtual-addr":"192.0.2.8","virtual-ports":"80","backends":[{"name":"a","ip-addr":"10.0.0.8","port":"8080"}]},{"name":"s2","mode":"stlsdnat","virtual-addr":"192.0.2.9","virtual-ports":"80","backends":[{"name":"a","ip-addr":"10.0.0.8","port":"8080"}]}]}`,
			409, "farms[s2].backends: answers from tcp port 8080 of 10.0.0.8 are those of farm 's1' already"},
		// At a range of ports, packets keep theirs unless all backends have one.
		{`{"farms":[{"name":"s1","mode":"stlsdnat","virtual-addr":"192.0.2.8","virtual-ports":"80-90","backends":[{"name":"a","ip-addr":"10.0.0.8","port":"8080"},{"name":"b","ip-addr":"10.0.0.7"}]},{"name":"s2","mode":"stlsdnat","virtual-addr":"192.0.2.9","virtual-ports":"80-90","backends":[{"name":"a","ip-addr":"10.0.0.8"}]}]}`,
			409, "farms[s2].backends: answers from tcp ports 80-90 of 10.0.0.8 are those of farm 's1' already"},
		{`{"farms":[{"name":"web","backends":[{"name":"c","ip-addr":"10.0.0.2","port":"8080","weight":"5","priority":"2"}]}]}`, 409,
			"farms[web].backends[c]: port 8080 of 10.0.0.2 already belongs to backend 'b'"},
		{`{"farms":[{"name":"web","backends":[{"name":"c","ip-addr":"10.0.0.3","port":"80"},{"name":"d","ip-addr":"10.0.0.3"}]}]}`, 409,
			"farms[web].backends[c]: port 80 of 10.0.0.3 already belongs to backend 'd'"},
		{`{"farms":[{"name":"web","mode":"dsr","backends":[{"name":"c","ip-addr":"10.0.0.2","port":"81"}]}]}`, 409,
			"farms[web].backends[c]: 10.0.0.2 already belongs to backend 'b'"},
		{`{"farms":[{"name":"s1","mode":"stlsdnat","virtual-addr":"192.0.2.8","virtual-ports":"80","backends":[{"name":"a","ip-addr":"10.0.0.8","port":"8080"},{"name":"b","ip-addr":"10.0.0.8","port":"8080"}]}]}`,
			409, "farms[s1].backends[b]: port 8080 of 10.0.0.8 already belongs to backend 'a'"},
		{`{"farms":[{"name":"web","iface":"eth9:1"}]}`, 400, "farms[web].iface: this machine has no interface eth9"},
		{`{"farms":[{"name":"two","newname":"web"}]}`, 409, "there is a farm 'web' already"},
		{`{"farms":[{"name":"web","health-check":"tcp"}]}`, 400, "farms[web].health-check"},
		{`{"farms":[{"name":"web","health-check":{"type":"tcp","path":"/"}}]}`, 400, "farms[web].health-check: path"},
		{`{"farms":[{"name":"web","health-check":{"type":"tcp","x":"/"}}]}`, 400, "farms[web].health-check"},
		{`{"policies":[{"name":"p","elements":[{"data":"x.y"}]}]}`, 400, "policies[p].elements[x.y].data"},
		{`{"policies":[{"name":"p","elements":[{"data":"2001:db8::/32"}]}]}`, 400, "policies[p].elements[2001:db8::/32]"},
		{`{"policies":[{"name":"p","elements":[{"data":"1.2.3.4","time":"1"}]}]}`, 400, "policies[p].elements[1.2.3.4].time"},
		{`{"policies":[{"name":"p","feed":{"file":"x"}}]}`, 400, "policies[p].feed: file"},
		{`{"addresses":[{"name":"a","policies":[{"name":"p"}]}]}`, 404, "addresses[a].policies[p]: Unknown policy 'p'"},
		{`{"farms":[{"name":"f","backends":[{"name":"b","x":` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + `}]}]}`, 400, "in each other"},
	}
	b := start(t, Options{HasDevice: func(name string) bool { return name == "eth0" }})
	b.do("POST", "/farms", web(""))
	before := farmPrinted(b)
	_, all := b.ask("GET", "/farms", "")
	for _, test := range tests {
		// What is right beside it is not taken over either.
		body := strings.Replace(test.given, `{"farms":[{"name":"web",`, `{"farms":[{"name":"new"},{"name":"web",`, 1)
		code, text := b.ask("POST", "/farms", body)
		if code != test.code || !strings.Contains(text, test.text) {
			t.Errorf("%s: %d %s, want %d %s", test.given, code, text, test.code, test.text)
		}
	}
	if after := farmPrinted(b); after != before {
		t.Errorf("the farm was changed: %s", cmp.Diff(before, after))
	}
	if _, after := b.ask("GET", "/farms", ""); after != all {
		t.Errorf("farms were changed: %s", cmp.Diff(all, after))
	}
}

// TestMostBackends refuses one more, and changes nothing.
func TestMostBackends(t *testing.T) {
	b := start(t, Options{})
	var text strings.Builder
	for i := range mostBackends {
		fmt.Fprintf(&text, `{"name":"b%d","ip-addr":"10.1.%d.%d"},`, i, i/250, i%250+1)
	}
	b.do("POST", "/farms", `{"farms":[{"name":"web","virtual-addr":"192.0.2.1","virtual-ports":"80","backends":[`+strings.TrimSuffix(text.String(), ",")+`]}]}`)
	code, answer := b.ask("POST", "/farms", `{"farms":[{"name":"web","backends":[{"name":"more","ip-addr":"10.2.0.1"}]}]}`)
	if code != 400 || !strings.Contains(answer, "farms[web].backends: there are 4097, and a farm has 4096 at most") {
		t.Errorf("%d %s", code, answer)
	}
	if f := farmIn(b.store, "web"); len(f.Backends) != mostBackends {
		t.Errorf("%d backends", len(f.Backends))
	}
}

// TestLenient goes on where nftlb does, with its warnings.
func TestLenient(t *testing.T) {
	b := start(t, Options{Lenient: true})
	code, text := b.ask("POST", "/farms", web(`"family":"ip4","verdict":"forward log",`))
	if want := `{"response": "success. Parsing unknown value 'ip4' in 'family', using default 'ipv4'"}`; code != 200 || text != want {
		t.Errorf("%d %s, want %s", code, text, want)
	}
	strict := start(t, Options{})
	strict.do("POST", "/farms", web(""))
	if code, text := strict.ask("POST", "/farms", `{"farms":[{"name":"web","backends":[{"name":"a","state":"available"}]}]}`); code != 200 || !strings.Contains(text, "'available'") {
		t.Errorf("what GET prints is refused: %d %s", code, text)
	}
}

// TestModel compares what is delivered of a farm with all there is.
func TestModel(t *testing.T) {
	b := start(t, Options{})
	b.do("POST", "/farms", `{
		"farms":[{"name":"web","mode":"snat","source-addr":"192.0.2.9","scheduler":"maglev","sched-param":"srcip",
			"persistence":"srcip srcport","persist-ttl":"30","mark":"0x10","helper":"ftp","log":"input",
			"new-rtlimit":"20/minute","new-rtlimit-burst":"7","est-connlimit":"9","tcp-strict":"on","limits-ttl":"5",
			"limits-full":"drop","verdict":"log accept","log-rtlimit":"3/hour","virtual-addr":"192.0.2.1","virtual-ports":"90,80-82,83",
			"addresses":[{"name":"second","ports":"443","protocol":"all","family":"inet"}],
			"backends":[
				{"name":"a","ip-addr":"10.0.0.1","port":"8080","weight":"5","mark":"0x1"},
				{"name":"none"},
				{"name":"b","ip-addr":"10.0.0.2","priority":"2","state":"off","est-connlimit":"4","source-addr":"10.0.0.9"},
				{"name":"c","ip-addr":"2001:db8::3","state":"down"}],
			"policies":[{"name":"white"},{"name":"black"}],
			"sessions":[{"client":"198.51.100.7 . 90","backend":"a"}]}],
		"policies":[{"name":"black","elements":[{"data":"198.51.100.9"},{"data":"198.51.100.8"},{"data":"203.0.113.0/24"}]},{"name":"white","type":"whitelist"}]}`)
	addr := netip.MustParseAddr
	want := &model.Farm{
		Name: "web", Mode: model.SNAT, SourceAddrs: []netip.Addr{addr("192.0.2.9")}, Refuse: true,
		Addresses: []model.FarmAddress{
			{IPv4: true, IPv6: true, Protocols: []model.Protocol{model.TCP, model.UDP, model.SCTP}, Ports: []model.PortSpan{{First: 443, Last: 443}}},
			{Addr: addr("192.0.2.1"), IPv4: true, Protocols: []model.Protocol{model.TCP}, Ports: []model.PortSpan{{First: 80, Last: 83}, {First: 90, Last: 90}}},
		},
		Backends: []model.FarmBackend{
			{Name: "a", Addr: addr("10.0.0.1"), Port: 8080, Weight: 5, Priority: 1, Mark: 1},
			{Name: "b", Addr: addr("10.0.0.2"), SourceAddr: addr("10.0.0.9"), Weight: 1, Priority: 2, State: model.BackendDraining, EstLimit: 4},
			{Name: "c", Addr: addr("2001:db8::3"), Weight: 1, Priority: 1, State: model.BackendDown},
		},
		Scheduler: model.Maglev, HashBy: model.SrcIP, Persist: model.SrcIP | model.SrcPort, PersistFor: 30 * time.Second,
		Sessions: []model.FarmSession{{Client: model.FlowValues{SrcIP: addr("198.51.100.7"), SrcPort: 90}, Backend: "a"}},
		Mark:     0x10, Helper: "ftp", Lists: []string{"white", "black"}, Log: true, LogPrefix: "IN-web ",
		Limits: model.FarmLimits{
			New: model.FarmRate{Packets: 20, Per: time.Minute, Burst: 7}, Established: 9, Strict: true, Forget: 5 * time.Second, DropWhenFull: true,
			Report: true, ReportRate: model.FarmRate{Packets: 3, Per: time.Hour}, Pass: true,
			Prefixes: map[string]string{"new": "new-rtlimit-web ", "rst": "rst-rtlimit-web ", "est": "est-connlimit-web ", "strict": "tcp-strict-web "},
		},
	}
	opts := []cmp.Option{cmpopts.EquateComparable(netip.Addr{})}
	got := farmIn(b.store, "web")
	if len(got.Addresses) == 2 && got.Addresses[0].Addr.IsValid() {
		got.Addresses[0], got.Addresses[1] = got.Addresses[1], got.Addresses[0]
	}
	if d := cmp.Diff(want, got, opts...); d != "" {
		t.Error(d)
	}
	list := &model.FarmList{
		Name: "black", Log: true, LogPrefix: "policy-BL-black-web ",
		Ranges: []model.AddressRange{{First: addr("198.51.100.8"), Last: addr("198.51.100.9")}, {First: addr("203.0.113.0"), Last: addr("203.0.113.255")}},
	}
	if d := cmp.Diff(list, listIn(b.store, "black"), opts...); d != "" {
		t.Error(d)
	}
}

// TestAddressAlone delivers an address with policies as a farm of its own while no farm uses it.
func TestAddressAlone(t *testing.T) {
	b := start(t, Options{})
	b.do("POST", "/addresses", `{"policies":[{"name":"p","elements":[{"data":"192.0.2.0/24"}]}],
		"addresses":[{"name":"ssh","ip-addr":"198.51.100.1","ports":"22","policies":[{"name":"p"}]}]}`)
	f := farmIn(b.store, "address ssh")
	if f == nil || f.Mode != model.Local || len(f.Lists) != 1 {
		t.Fatalf("the address is not delivered: %+v", f)
	}
	b.do("POST", "/farms", `{"farms":[{"name":"web","addresses":[{"name":"ssh"}]}]}`)
	if farmIn(b.store, "address ssh") != nil || farmIn(b.store, "web") == nil {
		t.Error("an address that a farm uses is delivered by itself")
	}
	b.do("DELETE", "/farms/web", "")
	if _, text := b.ask("GET", "/addresses", ""); strings.Contains(text, "ssh") {
		t.Error("an address that the last farm has left is still there")
	}
}

// TestStateless says how a stateless farm chooses where nftlb's way would move flows.
func TestStateless(t *testing.T) {
	b := start(t, Options{})
	code, text := b.ask("POST", "/farms", strings.Replace(web(""), `"dnat"`, `"dsr"`, 1))
	if code != 200 || !strings.Contains(text, "success. Farm 'web' in mode 'dsr' chooses by a hash") {
		t.Errorf("%d %s", code, text)
	}
	f := farmIn(b.store, "web")
	if f.HashBy != model.SrcIP|model.SrcPort || f.Backends[0].Port != 0 {
		t.Errorf("hash by %v, port %d", f.HashBy, f.Backends[0].Port)
	}
	b.do("POST", "/farms", `{"farms":[{"name":"web","state":"up"}]}`) // the warning is not repeated
}

// TestDSRTracks has farms of mode dsr remember clients where the kernel does.
func TestDSRTracks(t *testing.T) {
	b := start(t, Options{DSRTracks: true})
	b.do("POST", "/farms", strings.Replace(web(`"persistence":"srcip",`), `"dnat"`, `"dsr"`, 1)) // without a warning
	if f := farmIn(b.store, "web"); f.Scheduler != model.RoundRobin || f.Persist != model.SrcIP || f.Backends[0].Port != 0 {
		t.Errorf("%+v", f)
	}
}
