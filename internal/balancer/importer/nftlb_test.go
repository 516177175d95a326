package importer

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/balancer/config"
	"sluice.dev/sluice/internal/balancer/keys"
)

// A sound file of nftlb comes out as it is, except for the order of its keys.
func TestNFTLBSound(t *testing.T) {
	const file = `{
  "farms": [
    {
      "name": "web",
      "family": "ipv4",
      "virtual-addr": "10.0.0.1",
      "virtual-ports": "80,443,8000-8010",
      "source-addr": "10.0.0.2",
      "mode": "snat",
      "protocol": "tcp",
      "scheduler": "weight",
      "sched-param": "none",
      "persistence": "srcip srcport",
      "persist-ttl": "60",
      "log": "input forward",
      "log-prefix": "WEB ",
      "log-rtlimit": "10/minute",
      "mark": "0x10",
      "state": "up",
      "limits-ttl": "120",
      "new-rtlimit": "50/second",
      "new-rtlimit-burst": "10",
      "rst-rtlimit": "5/second",
      "est-connlimit": "100",
      "tcp-strict": "on",
      "verdict": "log drop",
      "intra-connect": "on",
      "iface": "eth0",
      "addresses": [
        {
          "name": "web6",
          "family": "ipv6",
          "ip-addr": "2001:db8::1",
          "ports": "",
          "protocol": "all"
        }
      ],
      "backends": [
        {
          "name": "b0",
          "ip-addr": "10.1.0.1",
          "port": "8080",
          "weight": "5",
          "priority": "1",
          "mark": "0x1",
          "est-connlimit": "7",
          "state": "up"
        },
        {
          "name": "b1",
          "ip-addr": "10.1.0.2",
          "port": "8080",
          "weight": "5",
          "priority": "2",
          "state": "off"
        }
      ],
      "policies": [
        {
          "name": "bad"
        }
      ],
      "sessions": [
        {
          "client": "10.9.9.9 . 4711",
          "backend": "b0"
        }
      ]
    },
    {
      "name": "everything",
      "virtual-addr": "",
      "virtual-ports": "",
      "mode": "local"
    }
  ]
}`
	const list = `{"policies": [{"name": "bad", "type": "blacklist", "elements": [{"data": "10.9.0.0/16"}, {"data": "10.8.0.1-10.8.0.9"}]}]`
	doc, notes, err := NFTLB(strings.NewReader(list+","+file[1:]), config.Document)
	if err != nil || len(notes) > 0 {
		t.Fatalf("notes %+v, %v", notes, err)
	}
	if got, want := len(doc.Objects("policies")[0].Objects("elements")), 2; got != want {
		t.Errorf("%d elements, want %d", got, want)
	}
	delete(doc, "policies")
	var got bytes.Buffer
	if err := json.Indent(&got, config.Document.JSON(doc), "", "  "); err != nil || got.String() != file {
		t.Errorf("it becomes %s, %v", got.String(), err)
	}
}

func TestNFTLBFaults(t *testing.T) {
	const farm = `"name": "f", "virtual-addr": "10.0.0.1", "virtual-ports": "80"`
	const backend = `"name": "b", "ip-addr": "10.1.0.1", "port": "80", "state": "up"`
	for name, c := range map[string]struct{ file, want string }{
		"a number":            {`{"farms":[{` + farm + `, "mark": 4, "mode": null}]}`, "mark 4: left out: nftlb ignores values"},
		"an unknown key":      {`{"farms":[{` + farm + `, "masquerade": "true"}]}`, "masquerade: left out: nftlb has no such key"},
		"a key of another":    {`{"farms":[{` + farm + `, "backends": [{` + backend + `, "protocol": "udp"}]}]}`, "protocol: left out: nftlb ignores it here"},
		"an unknown section":  {`{"farm":[{` + farm + `}]}`, "farm: left out"},
		"an unknown word":     {`{"farms":[{` + farm + `, "mode": "nat"}]}`, `mode "nat": becomes snat`},
		"the documented dual": {`{"farms":[{` + farm + `, "family": "dual"}]}`, `family "dual": becomes ipv4`},
		"both families":       {`{"farms":[{` + farm + `, "family": "inet"}]}`, `family "inet": nftlb installs the IPv4 half`},
		"a number with unit":  {`{"farms":[{` + farm + `, "persist-ttl": "5s"}]}`, `persist-ttl "5s": becomes 5`},
		"a bad address":       {`{"farms":[{"name": "f", "virtual-addr": "www"}]}`, `virtual-addr "www": left out`},
		"a bad port":          {`{"farms":[{"name": "f", "virtual-ports": "http"}]}`, `virtual-ports "http": left out: nftlb accepts it and then`},
		"ports backwards":     {`{"farms":[{"name": "f", "virtual-ports": "90-80"}]}`, `virtual-ports "90-80": left out`},
		"a hash of nothing":   {`{"farms":[{` + farm + `, "scheduler": "hash", "sched-param": "foo"}]}`, "farm f: hashes nothing"},
		"dsr by turns":        {`{"farms":[{` + farm + `, "mode": "dsr"}]}`, "farm f: becomes scheduler maglev"},
		"a name without end":  {`{"farms":[{"name": "a b"}]}`, "farm a b: nftlb accepts this name"},
		"no name":             {`{"farms":[{"mode": "dsr"}]}`, "farms: left out: one of them has no name"},
		"the name at the end": {`{"farms":[{"mode": "dnat", "name": "f"}]}`, `name "f": stands after other keys`},
		"an address twice":    {`{"farms":[{` + farm + `}, {` + strings.Replace(farm, `"f"`, `"g"`, 1) + `}]}`, "farm g: left out: another farm"},
		"a farm twice":        {`{"farms":[{` + farm + `}, {"name": "f"}]}`, "farm f: stands there twice"},
		"another family":      {`{"farms":[{` + farm + `, "backends": [{"name": "b", "ip-addr": "2001:db8::1", "state": "up"}]}]}`, "farm f: backend b is left out"},
		"a place twice":       {`{"farms":[{` + farm + `, "backends": [{` + backend + `}, {` + strings.Replace(backend, `"b"`, `"c"`, 1) + `}]}]}`, "farm f: backend c is left out: backend b has its address and port"},
		"no state":            {`{"farms":[{` + farm + `, "backends": [{"name": "b", "ip-addr": "10.1.0.1"}]}]}`, "farm f: backend b says no state"},
		"one without port":    {`{"farms":[{` + farm + `, "backends": [{` + backend + `}, {"name": "c", "ip-addr": "10.1.0.2", "state": "up"}]}]}`, "farm f: has backends with and without port"},
		"a policy too late":   {`{"farms":[{` + farm + `, "policies": [{"name": "p"}]}], "policies": [{"name": "p"}]}`, "farm f: names the policy p"},
		"a lonely verdict":    {`{"farms":[{` + farm + `, "verdict": "log"}]}`, "farm f: has a verdict and no policies"},
		"a bad element":       {`{"policies":[{"name": "p", "elements": [{"data": "x.y"}]}]}`, `data "x.y": left out: it is no address, prefix`},
		"something to do":     {`{"farms":[{` + farm + `, "action": "stop"}]}`, `action "stop": left out: it is something to do`},
		"no effect":           {`{"farms":[{` + farm + `, "responsettl": "5"}]}`, `responsettl "5": left out: nftlb accepts it`},
	} {
		t.Run(name, func(t *testing.T) {
			_, notes, err := NFTLB(strings.NewReader(c.file), config.Document)
			if err != nil && len(notes) == 0 {
				t.Fatal(err)
			}
			for _, n := range notes {
				if n.Line == 1 && strings.HasPrefix(n.What+": "+n.Why, c.want) {
					return
				}
			}
			t.Errorf("no note says %s: %+v", c.want, notes)
		})
	}
}

func TestNFTLBLines(t *testing.T) {
	_, notes, err := NFTLB(strings.NewReader("{\n\"farms\": [\n{\"name\": \"f\",\n\"bogus\":\n\"1\"}]}"), config.Document)
	if err != nil || len(notes) != 1 || notes[0].Line != 5 {
		t.Errorf("%+v, %v; want one note of line 5", notes, err)
	}
	for file, want := range map[string]string{
		"":                         "unexpected EOF",
		"[]":                       "no object",
		"{\n\"farms\": [\n}":       "line 3",
		"{} {}":                    "something follows",
		strings.Repeat("[", 10000): "deeper than",
		"{}":                       "farms",
	} {
		if _, _, err := NFTLB(strings.NewReader(file), config.Document); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v; want %s", file, err, want)
		}
	}
}

func FuzzNFTLB(f *testing.F) {
	f.Add(`{"farms":[{"name":"f","virtual-addr":"10.0.0.1","virtual-ports":"80","mark":"0x10","mode":"dsr","backends":[{"name":"b","port":"x"}]}]}`)
	f.Add(`{"policies":[{"name":"p","elements":[{"data":"10.0.0.0/8"},{"data":"1-2"}]}],"farms":[{"policies":[{"name":"p"}],"name":"g"}]}`)
	f.Add("{\n\"addresses\": [{\"name\": \"a\", \"ip-addr\": \"::1\", \"policies\": [4, \"x\"]}]}")
	f.Fuzz(func(t *testing.T, text string) {
		sound(t, text, func() (keys.Object, []Note, error) { return NFTLB(strings.NewReader(text), config.Document) })
	})
}
