package foreign

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Legacy is what iptables-legacy (not nftables) holds.
type Legacy struct {
	Tables  []string // families and tables in use, "IPv4 filter"
	Chains  []Chain
	ReadErr error // why Chains is not complete
}

// Empty reports whether the tables in use have been read and do nothing: no rules, and no chain
// whose policy is to drop.
func (l Legacy) Empty() bool {
	return l.ReadErr == nil && !slices.ContainsFunc(l.Chains, func(c Chain) bool {
		rules, err := c.rules(c.Name)
		return err != nil || len(rules) > 0 || c.PolicyDrop
	})
}

// ReadLegacy reads the rules of iptables-legacy in the calling thread's network namespace. The
// kernel says which tables are in use; their rules are only available in its old binary form, so
// the program that reads the form has to be installed.
func ReadLegacy(ctx context.Context) Legacy {
	families, err := LegacyFamilies()
	l := Legacy{ReadErr: err}
	for _, f := range families {
		for _, t := range f.Tables {
			l.Tables = append(l.Tables, f.Name+" "+t)
		}
		out, err := save(ctx, f.Program+"-legacy-save")
		if err != nil {
			l.ReadErr = errors.Join(l.ReadErr, err)
			continue
		}
		l.Chains = append(l.Chains, ParseSave(f.Family, out)...)
	}
	return l
}

// LegacyFamily is an address family with tables of iptables-legacy in use.
type LegacyFamily struct {
	Name    string // "IPv4" or "IPv6"
	Family  string // "ip" or "ip6"
	Program string // "iptables" or "ip6tables"
	Tables  []string
}

// LegacyFamilies returns the families with tables in use in the calling thread's network namespace.
// The programs of others are not to be called in vain: they would bring tables into use.
func LegacyFamilies() (used []LegacyFamily, err error) {
	for _, f := range []LegacyFamily{{Name: "IPv4", Family: "ip", Program: "iptables"}, {Name: "IPv6", Family: "ip6", Program: "ip6tables"}} {
		b, readErr := os.ReadFile("/proc/thread-self/net/" + f.Family + "_tables_names")
		if f.Tables = strings.Fields(string(b)); len(f.Tables) > 0 {
			used = append(used, f)
		}
		if !errors.Is(readErr, os.ErrNotExist) { // the kernel has no such tables
			err = errors.Join(err, readErr)
		}
	}
	return used, err
}

func save(ctx context.Context, program string) (string, error) {
	path, err := FindProgram(program)
	if err != nil {
		return "", ErrNoSave
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path).Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w", program, err)
	}
	return string(out), nil
}

// ErrNoSave says that the rules of iptables-legacy cannot be read.
var ErrNoSave = errors.New("there is no iptables-legacy-save to read them with")

// ParseSave reads what iptables-legacy-save prints, of the family "ip" or "ip6".
func ParseSave(family, text string) []Chain {
	var chains []Chain
	var table string
	rules := map[string][]rule{} // of the table's chains
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "*"):
			table, rules = line[1:], map[string][]rule{}
		case strings.HasPrefix(line, ":"):
			fields := strings.Fields(line[1:])
			if len(fields) < 2 {
				continue
			}
			of := rules
			c := Chain{Family: family, Table: table, Name: fields[0], Legacy: true, rules: func(chain string) ([]rule, error) { return of[chain], nil }}
			if fields[1] != "-" { // only chains that packets enter by themselves have a policy
				c.Hook = strings.ToLower(fields[0])
				c.Priority = priorities[table]
				c.policy = strings.ToLower(fields[1])
			}
			chains = append(chains, c)
		case strings.HasPrefix(line, "-A "):
			name, rest, _ := strings.Cut(line[3:], " ")
			rules[name] = append(rules[name], parseRule(rest))
		}
	}
	for i := range chains {
		if chains[i].Hook != "" {
			_ = chains[i].ends() // which fails only where rules cannot be read
		}
	}
	return chains
}

// priorities are those of the tables' chains (NF_IP_PRI_*), but for nat's later ones, which drop
// nothing.
var priorities = map[string]int{"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}

// saved is a rule of iptables-legacy.
type saved struct {
	conditions []func(*packet) answer
	action
	marks bool
	note  string
}

func (s *saved) at(number int) place { return place{number: number, comment: s.note} }

func (s *saved) apply(p *packet) ([]action, error) {
	matches := yes
	for _, c := range s.conditions {
		if matches = matches.and(c(p)); matches == no {
			return nil, nil
		}
	}
	p.marked = p.marked || s.marks
	if s.does == "" && s.alters == "" {
		return nil, nil
	}
	return []action{s.where(matches)}, nil
}

// word is one of a saved rule, in quotes where it has blanks.
var word = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\S+`)

// parseRule reads one rule, without its "-A CHAIN".
func parseRule(text string) *saved {
	r := &saved{}
	words := word.FindAllString(text, -1)
	for i := 0; i < len(words); {
		not := words[i] == "!"
		if not {
			i++
		}
		option := ""
		if i < len(words) {
			option = words[i]
			i++
		}
		var args []string // up to the next option
		for ; i < len(words) && words[i] != "!" && !strings.HasPrefix(words[i], "-"); i++ {
			args = append(args, words[i])
		}
		arg := ""
		if len(args) > 0 {
			arg = args[0]
		}
		switch option {
		case "-j", "-g":
			r.target(option, arg)
			if arg == "CT" && slices.Contains(words, "--notrack") {
				r.action = untracking
			}
			return r // what follows are its options
		case "--comment":
			r.note = strings.Trim(arg, `"`)
		case "-m":
			if !modules[arg] {
				r.conditions = append(r.conditions, func(*packet) answer { return maybe })
			}
		default:
			c := condition(option, args)
			r.conditions = append(r.conditions, func(p *packet) answer { return invert(c(p), not) })
		}
	}
	return r
}

// modules are those whose every condition is an option of its own.
var modules = map[string]bool{"comment": true, "tcp": true, "udp": true, "sctp": true, "icmp": true, "icmp6": true, "multiport": true, "conntrack": true, "state": true, "mark": true}

// target reads what a rule does.
func (s *saved) target(option, name string) {
	s.marks = name == "MARK" || name == "CONNMARK"
	switch name {
	case "ACCEPT":
		s.action = action{matches: yes, does: accept}
	case "DROP":
		s.action = action{matches: yes, does: drop}
	case "RETURN":
		s.action = action{matches: yes, does: back}
	default:
		ends, is := terminal[name]
		switch {
		case is:
			s.action = ends
		case s.marks || !chainName(name):
		case option == "-g":
			s.action = action{matches: yes, does: goTo, chain: name}
		default:
			s.action = action{matches: yes, does: jump, chain: name}
		}
	}
}

// continuing are the targets of iptables that leave a packet to the next rule.
var continuing = []string{"AUDIT", "CHECKSUM", "CLASSIFY", "CONNSECMARK", "CT", "DSCP", "ECN", "HL", "HMARK", "IDLETIMER", "LED", "LOG", "NFLOG", "RATEEST", "SECMARK", "SET", "SYNPROXY", "TCPMSS", "TCPOPTSTRIP", "TEE", "TOS", "TPROXY", "TRACE", "TTL", "ULOG"}

// chainName reports whether a target is a chain.
func chainName(target string) bool { return target != "" && !slices.Contains(continuing, target) }

// condition reads an option.
func condition(option string, args []string) func(*packet) answer {
	unsure := func(*packet) answer { return maybe }
	arg := append(args, "")[0]
	switch option {
	case "-f": // fragments, which come together before
		return func(p *packet) answer { return p.knows(no) }
	case "-s", "-d":
		prefix, err := netip.ParsePrefix(arg)
		if err != nil {
			return unsure
		}
		return func(p *packet) answer { return p.address(option == "-s", prefix) }
	case "-p":
		protocol, ok := protocols[arg]
		if n, err := strconv.ParseUint(arg, 10, 8); err == nil {
			protocol, ok = uint8(n), true
		}
		if !ok {
			return unsure
		}
		return func(p *packet) answer { return p.is(protocol) }
	case "-i", "-o":
		return func(p *packet) answer { return p.device(option == "-i", arg) }
	case "--sport", "--dport", "--sports", "--dports", "--ports":
		which := map[string]byte{"--sport": sourcePorts, "--sports": sourcePorts, "--dport": destinationPorts, "--dports": destinationPorts, "--ports": 2}[option]
		ranges, err := portRanges(arg)
		if err != nil {
			return unsure
		}
		return func(p *packet) answer { return p.ports(which, ranges) }
	case "--ctstate", "--state":
		mask := uint16(0)
		for _, name := range strings.Split(arg, ",") {
			mask |= map[string]uint16{"INVALID": 1, "ESTABLISHED": stateEstablished, "RELATED": 4, "NEW": stateNew, "SNAT": 1 << 6, "DNAT": xtDNAT, "UNTRACKED": xtUntracked}[name]
		}
		return func(p *packet) answer { return p.inState(mask) }
	case "--mark":
		value, _, _ := strings.Cut(arg, "/")
		want, err := strconv.ParseUint(value, 0, 32)
		if err != nil {
			return unsure
		}
		return func(p *packet) answer {
			if p.marked {
				return maybe
			}
			return p.knows(is(want == 0))
		}
	case "--tcp-flags":
		if len(args) != 2 {
			return unsure
		}
		mask, set := tcpFlags(args[0]), tcpFlags(args[1])
		return func(p *packet) answer { return p.flags(mask, set) }
	}
	return unsure
}

// protocols are those that iptables-save names.
var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP, "icmp": unix.IPPROTO_ICMP, "ipv6-icmp": unix.IPPROTO_ICMPV6}

// tcpFlags reads names of flags.
func tcpFlags(names string) (flags byte) {
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG"} {
		if names == "ALL" || slices.Contains(strings.Split(names, ","), name) {
			flags |= 1 << i
		}
	}
	return flags
}

// portRanges reads "80,8000:8080".
func portRanges(text string) (ranges [][2]uint16, err error) {
	for _, part := range strings.Split(text, ",") {
		from, to, isRange := strings.Cut(part, ":")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, lastErr := strconv.ParseUint(to, 10, 16)
		if err != nil || lastErr != nil {
			return nil, fmt.Errorf("ports %q", text)
		}
		ranges = append(ranges, [2]uint16{uint16(first), uint16(last)})
	}
	return ranges, nil
}

// address is whether the source or destination is in a prefix.
func (p *packet) address(source bool, in netip.Prefix) answer {
	if p.network == nil || is(in.Addr().Is4()) != p.v4 {
		return p.knows(no)
	}
	offset, length := 12, 4
	if in.Addr().Is6() {
		offset, length = 8, 16
	}
	if !source {
		offset += length
	}
	from := in.Masked().Addr().AsSlice()
	to := bytes.Clone(from)
	for bit := in.Bits(); bit < 8*length; bit++ {
		to[bit/8] |= 0x80 >> (bit % 8)
	}
	return p.header(true, offset, length).within(from, to)
}

// device is whether the packet's interface has a name, or one that begins as it does before a "+".
func (p *packet) device(input bool, name string) answer {
	in, out := p.interfaces()
	if !input {
		in = out
	}
	if in.name == "" {
		return maybe
	}
	if begin, any := strings.CutSuffix(name, "+"); any {
		return is(strings.HasPrefix(in.name, begin))
	}
	return is(in.name == name)
}

// FindProgram finds a program on the PATH or in a directory for administrators.
func FindProgram(name string) (string, error) {
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		path := filepath.Join(dir, name)
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", os.ErrNotExist
}
