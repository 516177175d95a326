package importer

import (
	"cmp"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/balancer/keys"
)

// Keepalived reads the virtual servers of a keepalived.conf, by keepalived.conf(5) of keepalived
// 2.3, with the files that it includes. What keepalived does beside them, VRRP above all, is not a
// balancer's and is left out.
func Keepalived(r io.Reader, o Options) (keys.Object, []Note, error) {
	p := keepalivedReader{builder: newBuilder(o), groups: map[string]*statement{}}
	file, err := readConf(r, o, &p.notes)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range file {
		if s.word(0) == "virtual_server_group" {
			p.groups[s.word(1)] = s
		}
	}
	for _, s := range file {
		p.top(s)
	}
	return p.result("a keepalived.conf with blocks virtual_server")
}

type keepalivedReader struct {
	*builder
	groups map[string]*statement
}

// top reads a statement that is in no block.
func (p *keepalivedReader) top(s *statement) {
	word := s.word(0)
	why, known := topWords[word]
	switch {
	case word == "virtual_server":
		p.virtualServer(s)
	case word == "virtual_server_group": // read with the services that name it
	case word == "global_defs":
		p.notes.note(Nothing, s.line, s.text(), "left out: it is about keepalived itself, but for what is named here")
		unheeded(&p.notes, s.block, globalWords)
	case why == ofKeepalived:
		p.notes.note(Nothing, s.line, s.text(), "left out: %s", why)
	case known:
		p.notes.add(s.line, s.text(), "left out: %s", why)
	default:
		p.notes.lost(s.line, s.text(), "left out: %s", unknownWord)
	}
}

func (p *keepalivedReader) virtualServer(vs *statement) {
	unheeded(&p.notes, vs.block, virtualServerWords, anyServerWords)
	if last(vs.block, "real_server") == nil {
		p.notes.note(Nothing, vs.line, vs.text(), "left out: it has no real_server; keepalived ignores it, too")
		return
	}
	if vs.word(1) == "fwmark" {
		p.notes.lost(vs.line, vs.text(), "left out with its servers: %s", markedBy)
		return
	}
	s := &service{line: vs.line, what: vs.text(), scheduler: "wlc", protocol: p.protocol(vs)}
	if name := last(vs.block, "snmp_name"); name != nil {
		s.name = farmName(name.word(1))
	}
	if vs.word(1) == "group" {
		s.addrs = p.group(vs)
		s.name = cmp.Or(s.name, farmName(vs.word(2)))
	} else if where, ok := confAddr(vs.words[1:]); ok {
		s.addrs = []virtualAddr{{vs.line, where}}
	}
	if len(s.addrs) == 0 {
		p.notes.lost(vs.line, vs.text(), "left out with its servers: it has no address and port; names are not looked up")
		return
	}
	p.balancing(vs, s)
	p.servers(vs, s)
	p.add(s)
}

func (p *keepalivedReader) protocol(vs *statement) string {
	s := last(vs.block, "protocol")
	if s == nil {
		p.notes.add(vs.line, vs.text(), "becomes a service of udp: that is what keepalived takes it for, as it does not say protocol")
		return "udp"
	}
	protocol := strings.ToLower(s.word(1))
	if protocol != "tcp" && protocol != "udp" && protocol != "sctp" {
		p.notes.add(s.line, s.text(), "becomes udp, as with keepalived: there is no such protocol")
		return "udp"
	}
	return protocol
}

// balancing reads the scheduler and persistence.
func (p *keepalivedReader) balancing(vs *statement, s *service) {
	if algo := last(vs.block, "lb_algo", "lvs_sched"); algo != nil {
		if _, known := schedulers[algo.word(1)]; known {
			s.scheduler = algo.word(1)
		} else {
			p.notes.add(algo.line, algo.text(), "becomes wlc, as with keepalived: IPVS has no such scheduler")
		}
	}
	for _, flag := range vs.block {
		switch word := flag.word(0); word {
		case "flag-1", "flag-2", "flag-3", "sh-port", "sh-fallback", "mh-port", "mh-fallback":
			s.flags = append(s.flags, word)
		}
	}
	p.persistence(vs, s)
}

const (
	usualPersistence   = 360               // seconds, of keepalived
	longestPersistence = 31 * 24 * 60 * 60 // seconds, of IPVS
)

// persistence reads how long clients are remembered, and by what. A service of every port has it
// always: IPVS has no other ones.
func (p *keepalivedReader) persistence(vs *statement, s *service) {
	everyPort := slices.ContainsFunc(s.addrs, func(a virtualAddr) bool { return a.Port() == 0 })
	mask := last(vs.block, "persistence_granularity")
	if everyPort || mask != nil {
		s.persist = usualPersistence
	}
	if t := last(vs.block, "persistence_timeout"); t != nil && len(t.words) == 1 {
		s.persist = usualPersistence
	} else if t != nil {
		n, ok := number(t.word(1), longestPersistence)
		switch {
		case ok && n > 0:
			s.persist = n
		case !ok || s.persist != 0:
			p.notes.add(t.line, t.text(), "left out, as with keepalived: it is no number from 1 to %d", longestPersistence)
		}
	}
	if mask != nil {
		s.netmask = wholeAddress(mask.word(1))
	}
}

// servers reads the real servers, the sorry server, and how they are checked.
func (p *keepalivedReader) servers(vs *statement, s *service) {
	usual := p.method(last(vs.block, "lb_kind", "lvs_method"), masquerade)
	checks := checkReader{notes: &p.notes, service: s}
	weight := 1
	p.number(vs, "weight", &weight, mostWeight)
	for _, rs := range vs.block {
		if rs.word(0) != "real_server" {
			continue
		}
		unheeded(&p.notes, rs.block, realServerWords, anyServerWords, checkWords)
		where, ok := confAddr(rs.words[1:])
		if !ok {
			p.notes.lost(rs.line, rs.text(), "left out: it has no address and port; names are not looked up")
			continue
		}
		r := server{line: rs.line, AddrPort: where, weight: weight}
		r.method = p.method(last(rs.block, "lvs_method"), usual)
		p.number(rs, "weight", &r.weight, mostWeight)
		p.number(rs, "uthreshold", &r.upper, 1<<31-1)
		p.number(rs, "lthreshold", &r.lower, 1<<31-1)
		s.servers = append(s.servers, r)
		checks.server(vs, rs, r)
	}
	sorry := last(vs.block, "sorry_server")
	if sorry == nil {
		return
	}
	if where, ok := confAddr(sorry.words[1:]); ok {
		s.sorry = &server{line: sorry.line, AddrPort: where, weight: 1, method: p.method(last(vs.block, "sorry_server_lvs_method"), usual)}
	} else {
		p.notes.lost(sorry.line, sorry.text(), "left out: it has no address and port; names are not looked up")
	}
}

// number reads the number of a word in a block, if it is there.
func (p *keepalivedReader) number(in *statement, word string, into *int, most int) {
	s := last(in.block, word)
	if s == nil {
		return
	}
	if n, ok := number(s.word(1), most); ok {
		*into = n
	} else {
		p.notes.add(s.line, s.text(), "left out: it is no number up to %d", most)
	}
}

func (p *keepalivedReader) method(s *statement, usual method) method {
	if s == nil {
		return usual
	}
	switch s.word(1) {
	case "NAT":
		return masquerade
	case "DR":
		return direct
	case "TUN":
		if len(s.words) > 3 && s.word(2) == "type" {
			return method(strings.ToLower(s.word(3)))
		}
		return tunnel
	}
	p.notes.add(s.line, s.text(), "left out, as with keepalived: it is none of NAT, DR and TUN, in capitals")
	return usual
}

// confAddr reads an address and perhaps a port.
func confAddr(words []string) (netip.AddrPort, bool) {
	if len(words) == 0 {
		return netip.AddrPort{}, false
	}
	a, ok := address(words[0])
	port := 0
	if ok && len(words) > 1 {
		port, ok = number(words[1], 65535)
	}
	return netip.AddrPortFrom(a, uint16(port)), ok
}

// group returns the addresses of the group that a virtual server names.
func (p *keepalivedReader) group(vs *statement) []virtualAddr {
	var all []virtualAddr
	g := p.groups[vs.word(2)]
	if g == nil {
		return nil
	}
	for _, s := range g.block {
		if s.word(0) == "fwmark" {
			p.notes.lost(s.line, s.text(), "left out: %s", markedBy)
			continue
		}
		port, ok := 0, true
		if len(s.words) > 1 {
			port, ok = number(s.word(1), 65535)
		}
		addrs, isSpan := span(s.word(0))
		if !ok || !isSpan {
			p.notes.lost(s.line, s.text(), "left out: it is no address and port, nor a range of at most %d addresses", mostOfRange)
			continue
		}
		for _, a := range addrs {
			all = append(all, virtualAddr{s.line, netip.AddrPortFrom(a, uint16(port))})
		}
	}
	return all
}

// mostWeight is the highest weight of a server.
const mostWeight = 65535

// mostOfRange is the most addresses that a range of a group may have.
const mostOfRange = 256

// span reads an address, a prefix, or a range: 10.0.0.1-10.0.0.9 or 10.0.0.1-9.
func span(s string) ([]netip.Addr, bool) {
	from, to, ranged := strings.Cut(s, "-")
	first, ok := address(from)
	end := first
	if prefix, err := netip.ParsePrefix(s); err == nil {
		first, ok = address(prefix.Addr().String())
		ok = ok && prefix == prefix.Masked() // keepalived skips others
		var addrs []netip.Addr
		for a := first; ok && prefix.Contains(a) && len(addrs) <= mostOfRange; a = a.Next() {
			addrs = append(addrs, a)
		}
		return addrs, ok && len(addrs) <= mostOfRange
	} else if ranged {
		if i := strings.LastIndexAny(from, ".:"); !strings.ContainsAny(to, ".:") {
			to = from[:i+1] + to
		}
		end, _ = address(to)
	}
	if !ok || !end.IsValid() || end.Less(first) || end.Is4() != first.Is4() {
		return nil, false
	}
	addrs := []netip.Addr{first}
	for a := first; a != end && len(addrs) <= mostOfRange; addrs = append(addrs, a) {
		a = a.Next()
	}
	return addrs, len(addrs) <= mostOfRange
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}$`)

// farmName returns a name if a farm can have it, else "".
func farmName(s string) string {
	if plainName.MatchString(s) {
		return s
	}
	return ""
}
