package importer

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"sluice.dev/sluice/internal/balancer/keys"
)

// NFTLB reads a file of nftlb, or the body of a request to it. What nftlb does with a file is by
// docs/nftlb.md: what it ignores is left out, and what it accepts and carries out otherwise than it
// is written is named. The document's keys are those of kind.
func NFTLB(r io.Reader, kind *keys.Kind) (keys.Object, []Note, error) {
	root, err := readTree(r)
	if err != nil {
		return nil, nil, fmt.Errorf("read nftlb's file: %w", err)
	}
	if root.kind != object {
		return nil, nil, fmt.Errorf("read nftlb's file: line %d: it is no object with farms, addresses or policies", root.line)
	}
	p := nftlbReader{builder: newBuilder(Options{}), kind: kind, policies: map[string]bool{}}
	for _, m := range root.members {
		p.section(m)
	}
	return p.result(`nftlb's JSON, {"farms": [...]}`)
}

type nftlbReader struct {
	*builder
	kind     *keys.Kind      // of the document
	policies map[string]bool // those that stand before what is being read
}

// section reads one of the lists of the document.
func (p *nftlbReader) section(m *node) {
	k := p.kind.List(m.key)
	if k == nil || m.kind != list {
		p.notes.lost(m.line, m.key, "left out: a document has the lists farms, addresses and policies")
		return
	}
	for _, o := range m.members {
		one := p.object(o, k, m.key)
		if one == nil || m.key == "farms" && !p.farm(o, one) {
			continue
		}
		if m.key == "policies" {
			p.policies[one.Text("name")] = true
		}
		p.doc.Add(m.key, one)
	}
}

// object reads an object of a kind, nil if it has no name.
func (p *nftlbReader) object(o *node, k *keys.Kind, where string) keys.Object {
	if o.kind != object {
		p.notes.lost(o.line, where, "left out: it is no object")
		return nil
	}
	one := keys.Object{}
	for i, m := range o.members {
		if m.key == k.Key && i > 0 && m.kind == text {
			p.notes.add(m.line, fmt.Sprintf("%s %q", m.key, m.text), "stands after other keys, which nftlb gives to the object before; here they belong to this one")
		}
		if of := k.List(m.key); of != nil && m.kind == list {
			delete(one, m.key)
			for _, o := range m.members {
				if inner := p.object(o, of, m.key); inner != nil {
					one.Add(m.key, inner)
				}
			}
		} else if value, ok := p.value(m, k); ok {
			one[m.key] = value
		}
	}
	if one.Text(k.Key) == "" {
		p.notes.lost(o.line, where, "left out: one of them has no %s", k.Key)
		return nil
	}
	return one
}

// value reads the value of a key.
func (p *nftlbReader) value(m *node, k *keys.Kind) (string, bool) {
	what := fmt.Sprintf("%s %q", m.key, m.text)
	known := k.Nftlb[m.key]
	switch {
	case known == nil && p.kind.Anywhere(m.key):
		p.notes.add(m.line, m.key, "left out: nftlb ignores it here, it belongs to other objects")
		return "", false
	case known == nil:
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

// readable are the names that nft takes for those of chains and sets.
var readable = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:/-]*$`)

// farm names what nftlb accepts in a farm and does not do, and reports whether the farm remains.
func (p *nftlbReader) farm(o *node, f keys.Object) bool {
	name := f.Text("name")
	what := "farm " + name
	say := func(why string, args ...any) { p.notes.add(o.line, what, why, args...) }
	if !readable.MatchString(name) {
		say("nftlb accepts this name, which nft cannot read, and installs nothing of the farm")
	}
	if p.names[name] {
		say("stands there twice: the later one changes the earlier one, as with nftlb")
	} else if at := nftlbAddr(f); at != "" && p.taken[at] {
		p.notes.lost(o.line, what, "left out: another farm has its address, ports and protocol; nftlb installs the first alone, and shows both as up")
		return false
	} else if at != "" {
		p.taken[at] = true
	}
	p.names[name] = true
	p.nftlbScheduler(f, say)
	p.nftlbBackends(o, f, what, say)
	for _, l := range f.Objects("policies") {
		if !p.policies[l.Text("name")] {
			say("names the policy %s, which does not stand before it: nftlb refuses the file; here the order does not matter, but it must exist", l.Text("name"))
		}
	}
	if verdict := f.Text("verdict"); verdict != "" && len(f.Objects("policies")) == 0 && verdict != "log drop accept" {
		say("has a verdict and no policies: nftlb installs nothing of it; here it works")
	}
	return true
}

// nftlbAddr is where clients find a farm, "" without an address.
func nftlbAddr(f keys.Object) string {
	if f.Text("virtual-addr") == "" {
		return ""
	}
	return strings.Join([]string{f.Text("virtual-addr"), f.Text("virtual-ports"), f.Text("protocol")}, " ")
}

func (p *nftlbReader) nftlbScheduler(f keys.Object, say func(string, ...any)) {
	mode, scheduler := f.Text("mode"), f.Text("scheduler")
	stateless := mode == "dsr" || mode == "stlsdnat"
	switch {
	case scheduler == "hash" && f.Text("sched-param") == "none":
		say("hashes nothing: nftlb installs nothing of it; becomes sched-param srcip")
		f["sched-param"] = "srcip"
	case stateless && scheduler != "hash" && scheduler != "symhash":
		say("becomes scheduler maglev by srcip srcport: in mode %s, nftlb chooses a backend anew for every packet with rr and weight", mode)
		f["scheduler"], f["sched-param"] = "maglev", "srcip srcport"
	case mode == "stlsdnat":
		say("is balanced in mode stlsdnat, which nftlb does not get to work if clients and backends are on different devices")
	}
}

func (p *nftlbReader) nftlbBackends(o *node, f keys.Object, what string, say func(string, ...any)) {
	ports := map[bool]bool{} // whether some have one, and some have none
	owners := map[string]string{}
	backends, family := f.Objects("backends"), f.Text("family")
	delete(f, "backends")
	for _, k := range backends {
		name, addr, port := k.Text("name"), k.Text("ip-addr"), k.Text("port")
		if addr != "" && family != "inet" && strings.Contains(addr, ":") != (family == "ipv6") {
			p.notes.lost(o.line, what, "backend %s is left out: it is of another family; nftlb installs nothing of the farm, without a word", name)
			continue
		}
		if addr != "" {
			at := addr + " " + port
			if owner, taken := owners[at]; taken && owner != name {
				p.notes.lost(o.line, what, "backend %s is left out: backend %s has its address and port; nftlb cannot tell their connections apart", name, owner)
				continue
			}
			owners[at] = name
		}
		ports[port != ""] = true
		if k.Text("state") == "" {
			say("backend %s says no state: nftlb does not use it until something else of the farm changes; here it is up", name)
		}
		f.Add("backends", k)
	}
	if len(ports) == 2 {
		say("has backends with and without port: nftlb then translates the port for none; here for those that have one")
	}
}
