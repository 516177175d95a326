package importer

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// NFTLB reads a file of nftlb, or the body of a request to it. What nftlb does with a file is by
// docs/nftlb.md: what it ignores is left out, and what it accepts and carries out otherwise than it
// is written is named.
func NFTLB(r io.Reader) (*Document, []Note, error) {
	root, err := readTree(r)
	if err != nil {
		return nil, nil, fmt.Errorf("read nftlb's file: %w", err)
	}
	if root.kind != object {
		return nil, nil, fmt.Errorf("read nftlb's file: line %d: it is no object with farms, addresses or policies", root.line)
	}
	p := nftlbReader{builder: newBuilder(Options{}), policies: map[string]bool{}}
	for _, m := range root.members {
		p.section(m)
	}
	return p.result(`nftlb's JSON, {"farms": [...]}`)
}

type nftlbReader struct {
	*builder
	policies map[string]bool // those that stand before what is being read
}

// kind is a kind of object: what its keys may say, and which lists it has.
type kind struct {
	name  string // the key that names one
	keys  map[string]check
	lists map[string]*kind
}

var (
	nftlbSession = &kind{name: "client", keys: map[string]check{"client": anyText, "backend": anyText, "expiration": noEffect}}
	nftlbElement = &kind{name: "data", keys: map[string]check{"data": member, "counter-packets": noEffect, "counter-bytes": noEffect,
		"time": noEffect}}
	nftlbPolicy = &kind{name: "name", lists: map[string]*kind{"elements": nftlbElement}, keys: map[string]check{
		"name": anyText, "type": oneOf("blacklist", "whitelist"), "family": oneOf("ipv4", "ipv6"), "log-prefix": logPrefix,
		"route": noEffect, "timeout": noEffect, "priority": noEffect, "newname": verb, "used": noEffect}}
	nftlbAddress = &kind{name: "name", lists: map[string]*kind{"policies": nftlbPolicy}, keys: map[string]check{
		"name": anyText, "family": familyOf, "ip-addr": ipAddress, "ports": portList, "protocol": nftlbProtocol,
		"verdict": nftlbVerdict, "log-prefix": logPrefix, "log-rtlimit": noEffect, "iface": anyText, "iether-addr": anyText,
		"ether-addr": noEffect, "used": noEffect}}
	nftlbBackend = &kind{name: "name", keys: map[string]check{
		"name": anyText, "newname": verb, "ip-addr": ipAddress, "ether-addr": anyText, "port": backendPort, "source-addr": ipOrNone,
		"weight": count(1, 1), "priority": count(1, 1), "mark": hexadecimal, "est-connlimit": count(0, 0),
		"est-connlimit-log-prefix": logPrefix, "state": backendState, "action": verb}}
	nftlbFarm = &kind{name: "name", keys: nftlbFarmKeys, lists: map[string]*kind{
		"addresses": nftlbAddress, "backends": nftlbBackend, "policies": nftlbPolicy, "sessions": nftlbSession}}
	nftlbKinds = map[string]*kind{"farms": nftlbFarm, "addresses": nftlbAddress, "policies": nftlbPolicy}
)

var (
	nftlbProtocol = oneOf("tcp", "udp", "sctp", "all")
	nftlbVerdict  = words("log drop accept", "log", "drop", "accept")
	nftlbOnOff    = oneOf("off", "on")
)

var nftlbFarmKeys = map[string]check{
	"name": anyText, "newname": verb, "family": familyOf, "virtual-addr": ipOrNone, "virtual-ports": portList,
	"source-addr": ipOrNone, "mode": oneOf("snat", "dnat", "dsr", "stlsdnat", "local"), "protocol": nftlbProtocol,
	"responsettl": noEffect, "scheduler": oneOf("rr", "weight", "hash", "symhash"), "sched-param": flowKeys,
	"persistence": flowKeys, "persist-ttl": count(0, 60), "helper": oneOf("none", "ftp", "pptp", "sip", "snmp", "tftp"),
	"log": words("none", "input", "forward", "output"), "log-prefix": logPrefix, "log-rtlimit": rate, "mark": hexadecimal,
	"priority": priorityOfFarm, "state": oneOf("up", "down", "off"), "limits-ttl": count(0, 120),
	"new-rtlimit": rate, "new-rtlimit-burst": count(0, 0), "new-rtlimit-log-prefix": logPrefix,
	"rst-rtlimit": rate, "rst-rtlimit-burst": count(0, 0), "rst-rtlimit-log-prefix": logPrefix,
	"est-connlimit": count(0, 0), "est-connlimit-log-prefix": logPrefix,
	"tcp-strict": nftlbOnOff, "tcp-strict-log-prefix": logPrefix, "queue": count(-1, -1), "verdict": nftlbVerdict,
	"flow-offload": nftlbOnOff, "intra-connect": nftlbOnOff, "iface": anyText, "oface": anyText,
	"ether-addr": anyText, "iether-addr": anyText, "oether-addr": anyText, "action": verb,
}

// backendState knows the states that nftlb shows and takes for up.
func backendState(value string) (string, string) {
	if value == "available" || value == "config_error" {
		return "up", ""
	}
	return oneOf("up", "down", "off")(value)
}

// section reads one of the lists of the document.
func (p *nftlbReader) section(m *node) {
	k := nftlbKinds[m.key]
	if k == nil || m.kind != list {
		p.notes.lost(m.line, m.key, "left out: a document has the lists farms, addresses and policies")
		return
	}
	for _, o := range m.members {
		fields := p.object(o, k, m.key)
		if fields == nil {
			continue
		}
		switch m.key {
		case "farms":
			f := decode[Farm](fields)
			if p.farm(o, f) {
				p.doc.Farms = append(p.doc.Farms, f)
			}
		case "addresses":
			p.doc.Addresses = append(p.doc.Addresses, decode[Address](fields))
		case "policies":
			l := decode[Policy](fields)
			p.policies[l.Name] = true
			p.doc.Policies = append(p.doc.Policies, l)
		}
	}
}

// decode makes an object of what was read of it, all strings and lists of objects.
func decode[T any](fields map[string]any) *T {
	o := new(T)
	text, err := json.Marshal(fields)
	if err == nil {
		err = json.Unmarshal(text, o)
	}
	if err != nil {
		panic(fmt.Sprintf("the table of nftlb's keys does not fit %T: %v", o, err)) // a fault of this package
	}
	return o
}

// object reads an object of a kind, nil if it has no name.
func (p *nftlbReader) object(o *node, k *kind, where string) map[string]any {
	if o.kind != object {
		p.notes.lost(o.line, where, "left out: it is no object")
		return nil
	}
	fields := map[string]any{}
	for i, m := range o.members {
		if m.key == k.name && i > 0 && m.kind == text {
			p.notes.add(m.line, fmt.Sprintf("%s %q", k.name, m.text), "stands after other keys, which nftlb gives to the object before; here they belong to this one")
		}
		if inner := k.lists[m.key]; inner != nil && m.kind == list {
			fields[m.key] = p.list(m, inner)
		} else if value, ok := p.value(m, k); ok {
			fields[m.key] = value
		}
	}
	if name, _ := fields[k.name].(string); name == "" {
		p.notes.lost(o.line, where, "left out: one of them has no %s", k.name)
		return nil
	}
	return fields
}

func (p *nftlbReader) list(m *node, k *kind) []any {
	var objects []any
	for _, o := range m.members {
		if fields := p.object(o, k, m.key); fields != nil {
			objects = append(objects, fields)
		}
	}
	return objects
}

// value reads the value of a key.
func (p *nftlbReader) value(m *node, k *kind) (string, bool) {
	what := fmt.Sprintf("%s %q", m.key, m.text)
	known, ok := k.keys[m.key]
	switch {
	case !ok && p.elsewhere(m.key):
		p.notes.add(m.line, m.key, "left out: nftlb ignores it here, it belongs to other objects")
		return "", false
	case !ok:
		p.notes.add(m.line, m.key, "left out: nftlb has no such key, and refuses a file with it")
		return "", false
	case m.kind != text:
		p.notes.add(m.line, strings.TrimSpace(m.key+" "+m.text), "left out: nftlb ignores values that are not in quotes")
		return "", false
	}
	value, why := known(m.text)
	if why != "" {
		p.notes.add(m.line, what, "%s", why)
	}
	return value, why == "" || value != ""
}

// elsewhere reports whether some object has the key.
func (p *nftlbReader) elsewhere(key string) bool {
	for _, k := range []*kind{nftlbFarm, nftlbAddress, nftlbBackend, nftlbPolicy, nftlbElement, nftlbSession} {
		if k.keys[key] != nil || k.lists[key] != nil {
			return true
		}
	}
	return nftlbKinds[key] != nil
}

// readable are the names that nft takes for those of chains and sets.
var readable = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:/-]*$`)

// farm names what nftlb accepts in a farm and does not do, and reports whether the farm remains.
func (p *nftlbReader) farm(o *node, f *Farm) bool {
	what := "farm " + f.Name
	say := func(why string, args ...any) { p.notes.add(o.line, what, why, args...) }
	if !readable.MatchString(f.Name) {
		say("nftlb accepts this name, which nft cannot read, and installs nothing of the farm")
	}
	if p.names[f.Name] {
		say("stands there twice: the later one changes the earlier one, as with nftlb")
	} else if at := nftlbPlace(f); at != "" && p.places[at] {
		p.notes.lost(o.line, what, "left out: another farm has its address, ports and protocol; nftlb installs the first alone, and shows both as up")
		return false
	} else if at != "" {
		p.places[at] = true
	}
	p.names[f.Name] = true
	p.nftlbScheduler(f, say)
	p.nftlbBackends(o, f, what, say)
	for _, l := range f.Policies {
		if !p.policies[l.Name] {
			say("names the policy %s, which does not stand before it: nftlb refuses the file; here the order does not matter, but it must exist", l.Name)
		}
	}
	if f.Verdict != "" && len(f.Policies) == 0 && f.Verdict != "log drop accept" {
		say("has a verdict and no policies: nftlb installs nothing of it; here it works")
	}
	return true
}

// nftlbPlace is where clients find a farm, "" without an address.
func nftlbPlace(f *Farm) string {
	if f.VirtualAddr == nil || *f.VirtualAddr == "" {
		return ""
	}
	ports := ""
	if f.VirtualPorts != nil {
		ports = *f.VirtualPorts
	}
	return strings.Join([]string{*f.VirtualAddr, ports, f.Protocol}, " ")
}

func (p *nftlbReader) nftlbScheduler(f *Farm, say func(string, ...any)) {
	stateless := f.Mode == "dsr" || f.Mode == "stlsdnat"
	switch {
	case f.Scheduler == "hash" && f.SchedParam == "none":
		say("hashes nothing: nftlb installs nothing of it; becomes sched-param srcip")
		f.SchedParam = "srcip"
	case stateless && f.Scheduler != "hash" && f.Scheduler != "symhash":
		say("becomes scheduler maglev by srcip srcport: in mode %s, nftlb chooses a backend anew for every packet with rr and weight", f.Mode)
		f.Scheduler, f.SchedParam = "maglev", "srcip srcport"
	case f.Mode == "stlsdnat":
		say("is balanced in mode stlsdnat, which nftlb does not get to work if clients and backends are on different devices")
	}
}

func (p *nftlbReader) nftlbBackends(o *node, f *Farm, what string, say func(string, ...any)) {
	ports := map[bool]bool{} // whether some have one, and some have none
	places := map[string]string{}
	f.Backends = slices.DeleteFunc(f.Backends, func(k *Backend) bool {
		other := k.IP != "" && f.Family != "inet" && strings.Contains(k.IP, ":") != (f.Family == "ipv6")
		if other {
			p.notes.lost(o.line, what, "backend %s is left out: it is of another family; nftlb installs nothing of the farm, without a word", k.Name)
			return true
		}
		if k.IP != "" {
			place := k.IP + " " + k.Port
			if owner, taken := places[place]; taken && owner != k.Name {
				p.notes.lost(o.line, what, "backend %s is left out: backend %s has its address and port; nftlb cannot tell their connections apart", k.Name, owner)
				return true
			}
			places[place] = k.Name
		}
		ports[k.Port != ""] = true
		if k.State == "" {
			say("backend %s says no state: nftlb does not use it until something else of the farm changes; here it is up", k.Name)
		}
		return false
	})
	if len(ports) == 2 {
		say("has backends with and without port: nftlb then translates the port for none; here for those that have one")
	}
}
