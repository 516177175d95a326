package foreign

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
)

// Tables lists the nftables chains of others in the calling thread's network namespace, and whether
// there is a table of ours.
func Tables() (found []Chain, own bool, err error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, false, fmt.Errorf("open nftables: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }()
	tables, err := conn.ListTables()
	if err != nil {
		return nil, false, fmt.Errorf("list nftables tables: %w", err)
	}
	others := map[[2]string]*table{} // by family and name
	for _, t := range tables {
		is, agents := ours(t)
		if own = own || agents; !is {
			others[[2]string{FamilyNames[t.Family], t.Name}] = &table{of: t, chains: map[string][]rule{}, sets: map[string]*set{}}
		}
	}
	if len(others) == 0 { // our own chains may be thousands, to be listed in vain
		return nil, own, nil
	}
	all, err := conn.ListChains()
	if err != nil {
		return nil, false, fmt.Errorf("list nftables chains: %w", err)
	}
	for _, c := range all {
		t := others[[2]string{FamilyNames[c.Table.Family], c.Table.Name}]
		if t == nil {
			continue
		}
		seen := Chain{Family: cmp.Or(FamilyNames[c.Table.Family], "unknown"), Table: c.Table.Name, Name: c.Name, rules: t.rules}
		if c.Hooknum != nil {
			seen.Hook = hookNames[seen.Family][*c.Hooknum]
		}
		if seen.Hook != "" {
			if seen.policy = accept; c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
				seen.policy = drop
			}
			if c.Priority != nil {
				seen.Priority = int(*c.Priority)
			}
			if err := seen.ends(); err != nil {
				return nil, false, err
			}
		}
		found = append(found, seen)
	}
	return found, own, nil
}

// ours reports whether a table is Sluice's, and if so, whether it is an agent's, and not only a
// proxy's, which goes with its agent.
func ours(t *nftables.Table) (is, agents bool) {
	if t.Family != nftables.TableFamilyINet {
		return false, false
	}
	agents = t.Name == "sluice" || t.Name == "sluice-next"
	return agents || t.Name == "sluice-userspace", agents
}

// FamilyNames are the families of tables as nft writes them.
var FamilyNames = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyNetdev: "netdev", nftables.TableFamilyBridge: "bridge", nftables.TableFamilyARP: "arp",
}

// hookNames are the hooks that service traffic passes, by the family of tables.
var hookNames = map[string]map[nftables.ChainHook]string{
	"inet": ipHooks, "ip": ipHooks, "ip6": ipHooks,
	"netdev": {unix.NF_NETDEV_INGRESS: "ingress", unix.NF_NETDEV_EGRESS: "egress"},
}

const nfInetIngress = 5 // NF_INET_INGRESS of linux/netfilter.h

var ipHooks = map[nftables.ChainHook]string{
	unix.NF_INET_PRE_ROUTING: "prerouting", unix.NF_INET_LOCAL_IN: "input", unix.NF_INET_FORWARD: "forward",
	unix.NF_INET_LOCAL_OUT: "output", unix.NF_INET_POST_ROUTING: "postrouting", nfInetIngress: "ingress",
}

// table is what has been read of one.
type table struct {
	of     *nftables.Table
	chains map[string][]rule
	sets   map[string]*set
}

// rules reads those of a chain, once.
func (t *table) rules(chain string) ([]rule, error) {
	if known, ok := t.chains[chain]; ok {
		return known, nil
	}
	read, err := nft.ForeignRules(t.of, chain)
	if err != nil {
		return nil, err
	}
	t.chains[chain] = t.wrap(read)
	return t.chains[chain], nil
}

// wrap makes rules of what was read of the table's.
func (t *table) wrap(read []*nftables.Rule) []rule {
	rules := make([]rule, len(read))
	for i, r := range read {
		rules[i] = &tableRule{t: t, exprs: r.Exprs, note: r.UserData, handle: r.Handle}
	}
	return rules
}

// tableRule is a rule of nftables.
type tableRule struct {
	t      *table
	exprs  []expr.Any
	note   []byte
	handle uint64
}

func (r *tableRule) at(number int) position { return position{number, r.comment(), r.handle} }

// comment is nft's, or iptables-nft's.
func (r *tableRule) comment() string {
	if text, ok := userdata.GetString(r.note, userdata.TypeComment); ok {
		return text
	}
	for _, e := range r.exprs {
		if m, ok := e.(*expr.Match); ok {
			if c, ok := m.Info.(*xt.Comment); ok {
				return string(*c)
			}
		}
	}
	return ""
}

func (r *tableRule) apply(p *packet) ([]action, error) {
	matches := yes
	var regs registers
	var before []action // what it does beside its verdict
	for _, e := range r.exprs {
		switch e := e.(type) {
		case *expr.Meta:
			if e.SourceRegister {
				p.marked = p.marked || e.Key == expr.MetaKeyMARK
				continue
			}
			regs.put(e.Register, p.meta(e.Key))
		case *expr.Payload:
			if e.OperationType == expr.PayloadLoad {
				regs.put(e.DestRegister, p.payload(e))
			}
		case *expr.Ct:
			regs.put(e.Register, p.ct(e.Key))
		case *expr.Bitwise:
			regs.put(e.DestRegister, masked(regs.get(e.SourceRegister, int(e.Len)), e.Mask, e.Xor))
		case *expr.Byteorder:
			regs.put(e.DestRegister, swapped(regs.get(e.SourceRegister, int(e.Len)), int(e.Size)))
		case *expr.Cmp:
			matches = matches.and(compared(regs.get(e.Register, len(e.Data)), e.Op, e.Data))
		case *expr.Range:
			in := regs.get(e.Register, len(e.FromData)).within(e.FromData, e.ToData)
			if e.Op == expr.CmpOpNeq {
				in = in.not()
			}
			matches = matches.and(in)
		case *expr.Lookup:
			s, err := r.t.set(e.SetName)
			if err != nil {
				return nil, err
			}
			if e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT {
				return append(before, s.verdicts(regs.get(e.SourceRegister, s.width), matches)...), nil
			}
			has := s.has(regs.get(e.SourceRegister, s.width))
			if e.Invert {
				has = has.not()
			}
			if matches = matches.and(has); e.IsDestRegSet {
				regs = registers{}
			}
		case *expr.Match:
			matches = matches.and(p.match(e))
		case *nft.Opaque:
			switch a, ends := terminal[e.Name]; {
			case e.Name == "notrack": // and goes on to the rule's verdict
				before = append(before, untracking.where(matches))
			case ends:
				return append(before, a.where(matches)), nil
			case loads[e.Name]:
				regs = registers{}
			case !passes[e.Name]:
				matches = matches.and(maybe)
			}
		case *expr.Verdict:
			return append(before, action{matches: matches, does: does[e.Kind], chain: e.Chain}), nil
		case *expr.Reject:
			return append(before, action{matches: matches, does: reject}), nil
		case *expr.Target: // of iptables-nft
			if a, ends := terminal[e.Name]; ends {
				return append(before, a.where(matches)), nil
			}
			if e.Name == "CT" && leavesUntracked(e) {
				return append(before, untracking.where(matches)), nil
			}
			p.marked = p.marked || e.Name == "MARK" || e.Name == "CONNMARK"
		}
		if matches == no {
			return nil, nil
		}
	}
	return before, nil
}

// leavesUntracked reports whether a target CT is one with --notrack (xt_CT.h).
func leavesUntracked(e *expr.Target) bool {
	const notrack = 1 << 0 // XT_CT_NOTRACK
	info, ok := e.Info.(*xt.Unknown)
	return ok && len(*info) >= 2 && binary.NativeEndian.Uint16(*info)&notrack != 0
}

// does is what verdicts do.
var does = map[expr.VerdictKind]string{
	expr.VerdictAccept: accept, expr.VerdictDrop: drop, expr.VerdictJump: jump, expr.VerdictGoto: goTo, expr.VerdictReturn: back,
}

var (
	translation = action{matches: yes, does: accept, alters: translates}
	untracking  = action{matches: yes, alters: untracks}
)

// These are statements of nftables and targets of iptables, by name. Whoever reads a queue may drop
// what comes by it.
var (
	terminal = map[string]action{
		"nat": translation, "masq": translation, "redir": translation, "DNAT": translation, "SNAT": translation, "MASQUERADE": translation,
		"REDIRECT": translation, "NETMAP": translation, "NOTRACK": untracking,
		"REJECT": {matches: yes, does: reject}, "queue": {does: drop}, "NFQUEUE": {does: drop},
	}
	loads = map[string]bool{
		"immediate": true, "fib": true, "hash": true, "numgen": true, "socket": true, "osf": true, "exthdr": true, "rt": true, "xfrm": true, "tunnel": true,
	}
	passes = map[string]bool{
		"counter": true, "log": true, "last": true, "objref": true, "flow_offload": true, "dup": true, "secmark": true, "synproxy": true, "tproxy": true,
	}
)

// meta returns what a rule asks of a packet beside its headers.
func (p *packet) meta(key expr.MetaKey) bits {
	in, out := p.interfaces()
	native := func(v int, ok bool) bits {
		if !ok {
			return nil
		}
		return known(binary.NativeEndian.AppendUint32(nil, uint32(v))...)
	}
	name := func(n nic) bits {
		if n.name == "" {
			return nil
		}
		return known(append([]byte(n.name), make([]byte, unix.IFNAMSIZ-len(n.name))...)...)
	}
	switch key {
	case expr.MetaKeyIIFNAME:
		return name(in)
	case expr.MetaKeyOIFNAME:
		return name(out)
	case expr.MetaKeyIIF:
		return native(in.index, in.index != 0)
	case expr.MetaKeyOIF:
		return native(out.index, out.index != 0)
	case expr.MetaKeyMARK:
		return native(0, p.network != nil && !p.marked)
	}
	if p.network == nil {
		return nil
	}
	family, protocol := byte(unix.NFPROTO_IPV6), uint16(unix.ETH_P_IPV6)
	if p.v4 == yes {
		family, protocol = unix.NFPROTO_IPV4, unix.ETH_P_IP
	}
	switch key {
	case expr.MetaKeyNFPROTO:
		return known(family)
	case expr.MetaKeyPROTOCOL:
		return known(binary.BigEndian.AppendUint16(nil, protocol)...)
	case expr.MetaKeyL4PROTO:
		return known(p.protocol)
	}
	return nil
}

// payload returns what a rule asks of the headers.
func (p *packet) payload(e *expr.Payload) bits {
	switch e.Base {
	case expr.PayloadBaseNetworkHeader:
		return p.header(true, int(e.Offset), int(e.Len))
	case expr.PayloadBaseTransportHeader:
		return p.header(false, int(e.Offset), int(e.Len))
	}
	return nil
}

// ct returns what a rule asks of the connection.
func (p *packet) ct(key expr.CtKey) bits {
	number := func(value, mask uint32) bits {
		b := make(bits, 4)
		v, k := binary.NativeEndian.AppendUint32(nil, value), binary.NativeEndian.AppendUint32(nil, mask)
		for i := range b {
			b[i] = partly{v[i] & k[i], k[i]}
		}
		return b
	}
	switch dnat := p.dnat(); {
	case key == expr.CtKeySTATE && p.state() != 0:
		return number(p.state(), 0xffffffff)
	case key == expr.CtKeySTATUS && dnat == yes:
		return number(statusDNAT, statusDNAT)
	case key == expr.CtKeySTATUS && dnat == no:
		return number(0, statusDNAT)
	case key == expr.CtKeyDIRECTION && p.network != nil:
		return known(is(p.reply).bit())
	}
	return nil
}

// bit is 1 for yes.
func (a answer) bit() byte {
	if a == yes {
		return 1
	}
	return 0
}

// registers are the bytes of those of nftables' machine: 16 of 4 bytes, of which four each have a
// second name.
type registers [64]partly

// first is where the bytes of a register begin.
func first(register uint32) int {
	if register >= unix.NFT_REG32_00 {
		return int(register-unix.NFT_REG32_00) * 4
	}
	return int(register-unix.NFT_REG_1) * 16
}

// put fills a register, and those behind it where b is longer; nil: it is not known.
func (r *registers) put(register uint32, b bits) {
	if register == unix.NFT_REG_VERDICT {
		return
	}
	if b == nil {
		b = make(bits, 16)
	}
	for len(b)%4 != 0 { // the kernel fills it with zeros
		b = append(b, known(0)...)
	}
	if at := first(register); at < len(r) {
		copy(r[at:], b)
	}
}

// get returns so many bytes.
func (r *registers) get(register uint32, length int) bits {
	if register == unix.NFT_REG_VERDICT {
		return make(bits, length)
	}
	return bits(r[:]).slice(first(register), length)
}

// masked is b AND mask XOR xor.
func masked(b bits, mask, xor []byte) bits {
	if len(mask) < len(b) || len(xor) < len(b) { // a shift
		return nil
	}
	for i := range b {
		b[i] = partly{b[i].value&mask[i] ^ xor[i], b[i].known | ^mask[i]}
	}
	return b
}

// swapped turns the bytes of each number round, if the machine has another order than the network.
func swapped(b bits, size int) bits {
	if size == 0 || binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return b
	}
	for part := range slices.Chunk(b, size) {
		slices.Reverse(part)
	}
	return b
}

// compared is what a comparison says.
func compared(b bits, op expr.CmpOp, to []byte) answer {
	switch op {
	case expr.CmpOpEq:
		return b.equal(to)
	case expr.CmpOpNeq:
		return b.equal(to).not()
	}
	order, ok := b.compare(to)
	switch {
	case !ok:
		return maybe
	case op == expr.CmpOpLt:
		return is(order < 0)
	case op == expr.CmpOpLte:
		return is(order <= 0)
	case op == expr.CmpOpGt:
		return is(order > 0)
	}
	return is(order >= 0)
}
