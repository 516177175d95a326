package importer

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"path"
	"strings"

	"sluice.dev/sluice/internal/balancer/keys"
)

// IPVS reads the output of `ipvsadm -Sn`, which is also what ipvsadm-restore reads.
func IPVS(r io.Reader, o Options) (keys.Object, []Note, error) {
	p := ipvsReader{builder: newBuilder(o), services: map[string]*service{}}
	lines := bufio.NewScanner(r)
	for line := 1; lines.Scan(); line++ {
		words := strings.Fields(lines.Text())
		if len(words) > 0 && path.Base(words[0]) == "ipvsadm" {
			words = words[1:]
		}
		if len(words) > 0 && !strings.HasPrefix(words[0], "#") {
			p.command(line, words)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, nil, fmt.Errorf("read the ipvsadm dump: %w", err)
	}
	for _, s := range p.order {
		p.add(s)
	}
	return p.result("the output of `ipvsadm -Sn`")
}

type ipvsReader struct {
	*builder
	services map[string]*service // by protocol and address, as written
	order    []*service
}

// ipvsOptions are those of ipvsadm(8) that describe a service or a server, by their short names or
// else by the only one. The value tells whether an argument follows: "1" always, "?" perhaps.
var ipvsOptions = map[string]string{
	"-A": "", "-a": "", "-t": "1", "-u": "1", "--sctp": "1", "-f": "1", "-s": "1", "-p": "?", "-M": "1", "--pe": "1", "-b": "1", "-r": "1",
	"-g": "", "-i": "", "-m": "", "-w": "1", "-x": "1", "-y": "1", "-o": "", "-6": "",
	"--tun-type": "1", "--tun-port": "1", "--tun-nocsum": "", "--tun-csum": "", "--tun-remcsum": "",
}

// shortNames are those of commands and options that have a long one, too.
var shortNames = map[string]string{
	"--clear": "-C", "--zero": "-Z",
	"--add-service": "-A", "--add-server": "-a",
	"--tcp-service": "-t", "--udp-service": "-u", "--sctp-service": "--sctp", "--fwmark-service": "-f",
	"--scheduler": "-s", "--persistent": "-p", "--netmask": "-M", "--sched-flags": "-b", "--real-server": "-r",
	"--gatewaying": "-g", "--ipip": "-i", "--masquerading": "-m",
	"--weight": "-w", "--u-threshold": "-x", "--l-threshold": "-y",
	"--ops": "-o", "--ipv6": "-6",
}

// command reads one line.
func (p *ipvsReader) command(line int, words []string) {
	text := strings.Join(words, " ")
	if c, known := ipvsCommands[cmp.Or(shortNames[words[0]], words[0])]; known {
		p.notes.note(c.loss, line, text, "%s", c.why)
		return
	}
	options, err := ipvsWords(words)
	_, adds := options["-A"]
	_, serves := options["-a"]
	switch {
	case err != nil:
		p.notes.lost(line, text, "left out: %v", err)
	case adds:
		p.service(line, options)
	case serves:
		p.server(line, options)
	default:
		p.notes.lost(line, text, "left out: only -A and -a describe services")
	}
}

// ipvsCommands are those that a script of ipvsadm may have, and that are about no service.
var ipvsCommands = map[string]struct {
	loss Loss
	why  string
}{
	"-C": {Nothing, "left out: a configuration begins empty"}, "-Z": {Nothing, "left out: a configuration has no counters"},
	"--set":          {Part, "left out: " + globalWords["lvs_timeouts"]},
	"--start-daemon": {Part, "left out: " + globalWords["lvs_sync_daemon"]},
	"--stop-daemon":  {Nothing, "left out: no connections are synchronised by IPVS"},
}

// ipvsWords reads the options of a line, by their short names.
func ipvsWords(words []string) (map[string]string, error) {
	options := map[string]string{}
	for i := 0; i < len(words); i++ {
		word, value, hasValue := strings.Cut(words[i], "=")
		word = cmp.Or(shortNames[word], word)
		arg, known := ipvsOptions[word]
		if !known {
			return nil, fmt.Errorf("ipvsadm has no option %s that describes a service", words[i])
		}
		next := i+1 < len(words) && !strings.HasPrefix(words[i+1], "-")
		switch {
		case arg == "" && hasValue, arg == "1" && !hasValue && !next:
			return nil, fmt.Errorf("%s is not as ipvsadm writes it", words[i])
		case arg != "" && !hasValue && next:
			i++
			value = words[i]
		}
		options[word] = value
	}
	return options, nil
}

// ipvsProtocols are the options that name a service.
var ipvsProtocols = []struct{ option, protocol string }{{"-t", "tcp"}, {"-u", "udp"}, {"--sctp", "sctp"}, {"-f", "mark"}}

// ipvsName returns how a service is called, such as "tcp 10.0.0.1:80".
func ipvsName(options map[string]string) (protocol, at string) {
	for _, p := range ipvsProtocols {
		if at, ok := options[p.option]; ok {
			return p.protocol, at
		}
	}
	return "", ""
}

func (p *ipvsReader) service(line int, options map[string]string) {
	protocol, at := ipvsName(options)
	what := protocol + " " + at
	s := &service{line: line, what: what, protocol: protocol, scheduler: "wlc", netmask: options["-M"]}
	if p.services[what] != nil {
		p.notes.lost(line, what, "left out: there is such a service already")
		return
	}
	p.services[what] = s
	if protocol == "mark" {
		p.notes.lost(line, what, "left out with its servers: %s", markedBy)
		return
	}
	where, ok := ipvsAddress(at)
	if !ok {
		p.notes.lost(line, what, "left out with its servers: it is no address and port; make the dump with -n")
		return
	}
	s.addrs = []virtualAddr{{line, where}}
	p.options(s, options)
	p.order = append(p.order, s)
}

// options heeds the options of a service except for its name.
func (p *ipvsReader) options(s *service, options map[string]string) {
	if scheduler := options["-s"]; scheduler != "" {
		s.scheduler = scheduler
	}
	if flags := options["-b"]; flags != "" {
		s.flags = strings.Split(flags, ",")
	}
	if value, ok := options["-p"]; ok {
		s.persist, ok = number(value, longestPersistence)
		if !ok || s.persist == 0 {
			s.persist = 300 // ipvsadm's default
		}
	}
	s.netmask = wholeAddress(s.netmask)
	if _, ok := options["-o"]; ok {
		p.notes.add(s.line, "-o", "left out: %s", onePacket)
	}
	if engine, ok := options["--pe"]; ok {
		p.notes.add(s.line, "--pe "+engine, "left out: %s", byContent)
	}
}

func (p *ipvsReader) server(line int, options map[string]string) {
	protocol, at := ipvsName(options)
	s := p.services[protocol+" "+at]
	if s == nil {
		p.notes.lost(line, "-r "+options["-r"], "left out: there is no service %s %s before it", protocol, at)
		return
	}
	if len(s.addrs) == 0 {
		return // it was left out with its servers
	}
	where, ok := ipvsAddress(options["-r"])
	if !ok {
		p.notes.lost(line, "-r "+options["-r"], "left out: it is no address and port; make the dump with -n")
		return
	}
	r := server{line: line, AddrPort: where, method: direct, weight: 1}
	if _, ok := options["-m"]; ok {
		r.method = masquerade
	} else if _, ok := options["-i"]; ok {
		r.method = method(cmp.Or(options["--tun-type"], string(tunnel)))
	}
	for _, n := range []struct {
		option string
		into   *int
		most   int
	}{{"-w", &r.weight, 65535}, {"-x", &r.upper, 1<<31 - 1}, {"-y", &r.lower, 1<<31 - 1}} {
		value, ok := options[n.option]
		if !ok {
			continue
		}
		if *n.into, ok = number(value, n.most); !ok {
			p.notes.lost(line, n.option+" "+value, "left out with its server: it is no number up to %d", n.most)
			return
		}
	}
	s.servers = append(s.servers, r)
}

// ipvsAddress reads 10.0.0.1:80, [2001:db8::1]:80, and either without a port.
func ipvsAddress(s string) (netip.AddrPort, bool) {
	host, port, n := s, "", 0
	if i := strings.LastIndexByte(s, ':'); i >= 0 && strings.Count(s, ":") == 1 || strings.Contains(s, "]:") {
		host, port = s[:i], s[i+1:]
	}
	a, ok := address(host)
	if ok && port != "" {
		n, ok = number(port, 65535)
	}
	return netip.AddrPortFrom(a, uint16(n)), ok
}
