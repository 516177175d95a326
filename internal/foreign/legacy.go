package foreign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/xtables"
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
	families, err := xtables.LegacyFamilies()
	l := Legacy{ReadErr: err}
	for _, f := range families {
		for _, t := range f.Tables {
			l.Tables = append(l.Tables, f.Name+" "+t)
		}
		printed, err := save(ctx, f.Program)
		if err != nil {
			l.ReadErr = errors.Join(l.ReadErr, err)
			continue
		}
		l.Chains = append(l.Chains, LegacyChains(f.Family, printed)...)
	}
	return l
}

func save(ctx context.Context, program string) ([]*xtables.Chain, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	path, err := xtables.Find(ctx, xtables.Legacy, program, "save")
	if err != nil {
		return nil, ErrNoSave
	}
	out, err := xtables.Run(ctx, path, "")
	return xtables.Parse(out), err
}

// ErrNoSave says that the rules of iptables-legacy cannot be read.
var ErrNoSave = errors.New("there is no iptables-legacy-save to read them with")

// LegacyChains are the chains that iptables-legacy-save printed, of the family "ip" or "ip6".
func LegacyChains(family string, printed []*xtables.Chain) []Chain {
	type at struct{ table, chain string }
	rules := map[at][]rule{}
	chains := make([]Chain, len(printed))
	for i, c := range printed {
		for _, r := range c.Rules {
			here := at{c.Table, c.Name}
			rules[here] = append(rules[here], readRule(r))
		}
		chains[i] = Chain{Family: family, Table: c.Table, Name: c.Name, Legacy: true, rules: func(chain string) ([]rule, error) { return rules[at{c.Table, chain}], nil }}
		if c.Policy != "" { // only chains that packets enter by themselves have one
			chains[i].Hook = strings.ToLower(c.Name)
			chains[i].Priority = priorities[c.Table]
			chains[i].policy = strings.ToLower(c.Policy)
		}
	}
	for i := range chains {
		if chains[i].Hook != "" {
			_ = chains[i].ends() // which fails only where rules cannot be read
		}
	}
	return chains
}

// priorities are those of the tables' chains (NF_IP_PRI_*), except for nat's later ones, which drop
// nothing.
var priorities = map[string]int{"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}

// saved is a rule of iptables-legacy.
type saved struct {
	conditions []func(*packet) answer
	action
	marks bool
	note  string
}

func (s *saved) at(number int) position { return position{number: number, comment: s.note} }

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

// readRule reads a rule.
func readRule(text xtables.Rule) *saved {
	r := &saved{}
	options := text.Options()
	for _, o := range options {
		switch o.Name {
		case "-j", "-g":
			r.target(o.Name, o.Arg())
			if o.Arg() == "CT" && slices.ContainsFunc(options, func(o xtables.Option) bool { return o.Name == "--notrack" }) {
				r.action = untracking
			}
			return r // what follows are its options
		case "--comment":
			r.note = o.Arg()
		case "-m":
			if !modules[o.Arg()] {
				r.conditions = append(r.conditions, func(*packet) answer { return maybe })
			}
		default:
			c := condition(o)
			r.conditions = append(r.conditions, func(p *packet) answer { return invert(c(p), o.Not) })
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
func condition(o xtables.Option) func(*packet) answer {
	unsure := func(*packet) answer { return maybe }
	arg := o.Arg()
	switch o.Name {
	case "-f": // fragments, which come together before
		return func(p *packet) answer { return p.knows(no) }
	case "-s", "-d":
		prefix, err := netip.ParsePrefix(arg)
		if err != nil {
			return unsure
		}
		return func(p *packet) answer { return p.address(o.Name == "-s", prefix) }
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
		return func(p *packet) answer { return p.device(o.Name == "-i", arg) }
	case "--sport", "--dport", "--sports", "--dports", "--ports":
		which := map[string]byte{"--sport": sourcePorts, "--sports": sourcePorts, "--dport": destinationPorts, "--dports": destinationPorts, "--ports": 2}[o.Name]
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
		if len(o.Args) != 2 {
			return unsure
		}
		mask, set := tcpFlags(o.Args[0]), tcpFlags(o.Args[1])
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
