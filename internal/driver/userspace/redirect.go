package userspace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// TableName is the table, of family inet, that leads packets to the proxy. It is there only while
// the driver is open.
const TableName = "sluice-userspace"

// RouteTable is the routing table by which packets to any address are the node's own, and the
// priority of its rule.
const RouteTable = 0x51c

// Bits of packets' marks: others than those by which the driver iptables, kube-proxy and the CNI
// plugin portmap have connections masqueraded.
const (
	toProxy = 0x10 // it is for the proxy: RouteTable routes it
	ownMark = 0x20 // the proxy itself sent it
)

// passingChain is empty but while the proxy drains.
const passingChain = "passing"

// rulesetRequirement is told where the kernel refuses the table.
var rulesetRequirement = &probe.Requirement{
	Name: "transparent proxying by nftables", Since: "5.12",
	Modules: []string{"nf_tables", "nft_tproxy", "nft_socket", "nft_ct", "nft_fib_inet", "nft_reject_inet"},
	Check: func(context.Context) error {
		r, err := openRedirect(true)
		if err != nil || r == nil {
			return err
		}
		return errors.Join(r.try(), r.close())
	},
}

// redirect leads packets to the proxy.
type redirect struct {
	sock        *nft.Socket
	route       *netlink.Handle
	transparent bool      // backends see clients' addresses: what they answer is for the proxy, too
	ports       [2]uint16 // the proxy's, at the loopback addresses
	families    [2]*family
	sets        []*nft.Set
	built       bool // the table is there, as the state says
	closed      bool
}

// family is the half of the table for IPv4 or IPv6.
type family struct {
	nft.Family
	// By frontend, what becomes of new connections: of all, and where that depends on the client,
	// of those from pods and the node, and of others.
	frontends, inside, outside *nft.Set
	sources                    *nft.Set // length . frontend . network that may connect, where it depends on the client
	clusterIPs, otherIPs       *nft.Set
	serviceCIDRs, podCIDRs     *nft.Set
}

// openRedirect opens sockets in the calling thread's network namespace. It returns nil without
// CAP_NET_ADMIN there.
func openRedirect(transparent bool) (*redirect, error) {
	sock, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	r := &redirect{sock: sock, transparent: transparent, ports: [2]uint16{1, 1}}
	probe := nft.NewBatch(TableName + "-probe")
	probe.AddTable(0, "")
	probe.DeleteTable()
	if _, err := probe.Send(sock); errors.Is(err, unix.EPERM) {
		return nil, sock.Close()
	}
	if r.route, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	for i, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		r.families[i] = r.newFamily(f)
	}
	return r, nil
}

func (r *redirect) newFamily(f nft.Family) *family {
	set := func(name, comment string, s nft.Set) *nft.Set {
		s.ID, s.Name, s.Comment, s.Early = uint32(len(r.sets)+1), f.Name+"-"+name, comment, !s.Verdict
		r.sets = append(r.sets, &s)
		return &s
	}
	frontend := []nft.Field{f.Daddr, nft.L4Proto, nft.Dport}
	list := func(name, comment string) *nft.Set {
		s := nft.NewList(f, name, comment)
		s.ID = uint32(len(r.sets) + 1)
		r.sets = append(r.sets, s)
		return s
	}
	return &family{
		Family:       f,
		frontends:    set("frontends", "what becomes of new connections", nft.Set{Key: frontend, Verdict: true}),
		inside:       set("inside", "where that depends on the client: from pods and the node", nft.Set{Key: frontend, Verdict: true}),
		outside:      set("outside", "the same, from others", nft.Set{Key: frontend, Verdict: true}),
		sources:      set("sources", "the same: who may connect", nft.Set{Key: append(append([]nft.Field{nft.Mark}, frontend...), f.Saddr)}),
		clusterIPs:   set("cluster-ips", "addresses of services", nft.Set{Key: frontend[:1]}),
		otherIPs:     set("other-ips", "addresses that other programs serve", nft.Set{Key: frontend[:1]}),
		serviceCIDRs: list("service-cidrs", "an address in here that no service has is dropped"),
		podCIDRs:     list("pod-cidrs", "sources that are pods"),
	}
}

func rule(comment ...string) nft.Rule { return nft.NewRule(comment...) }

// lists are the lists of networks of the settings.
func (r *redirect) lists(s state.Settings) nft.Lists {
	all := nft.Lists{}
	for _, f := range r.families {
		all.Put(f.Family, f.serviceCIDRs, s.ServiceCIDRs)
		all.Put(f.Family, f.podCIDRs, s.ClusterCIDRs)
	}
	return all
}

// listChains are the chains that depend on the lists.
func (r *redirect) listChains(l nft.Lists) (chains []nft.Chain) {
	for _, f := range r.families {
		ours, frontend := rule().Family(f.Family), f.frontends.Key
		services := nft.Chain{Name: f.Name + "-services", Comment: "where every packet is looked up", Rules: []nft.Rule{
			ours.Vmap(f.frontends, frontend...),
			rule("a port that the service does not have").Family(f.Family).In(f.clusterIPs, f.Daddr).Goto("reject"),
		}}
		services.Rules = append(services.Rules, l.Rules(rule("an address that no service has").Family(f.Family), f.serviceCIDRs, f.Daddr, func(r nft.Rule) nft.Rule {
			return r.NotIn(f.otherIPs, f.Daddr).Drop()
		})...)
		clients := nft.Chain{Name: f.Name + "-clients", Comment: "what becomes of it depends on the client",
			Rules: append(established(), rule("loadBalancerSourceRanges").Jump(f.Name+"-sources"))}
		clients.Rules = append(clients.Rules, l.Rules(rule("from a pod").Family(f.Family), f.podCIDRs, f.Saddr, func(r nft.Rule) nft.Rule {
			return r.Goto(f.Name + "-inside")
		})...)
		clients.Rules = append(clients.Rules,
			rule("externalTrafficPolicy Local, seen from outside").Family(f.Family).FromNode(false).Vmap(f.outside, frontend...),
			rule().Goto(f.Name+"-inside"))
		chains = append(chains, services, clients)
	}
	return chains
}

// chains are the table's, whatever the services are; those for lists have none.
func (r *redirect) chains() []nft.Chain {
	unmarked := func(to string, f *family) nft.Rule {
		return rule().Mark(expr.CmpOpEq, toProxy|ownMark, 0).Family(f.Family).Jump(to)
	}
	arriving := nft.Chain{Name: "prerouting", Hook: nft.FilterHook(unix.NF_INET_PRE_ROUTING, -150), Comment: "what comes from pods and from outside, and the node's own that is for the proxy"}
	leaving := nft.Chain{Name: "output", Hook: &nft.Hook{Type: "route", Number: unix.NF_INET_LOCAL_OUT, Priority: -150}, Comment: "what the node itself sends"}
	chains := []nft.Chain{
		{Name: passingChain, Comment: "what passes by the proxy, once another program serves"},
		{Name: "proxy", Comment: "to the proxy", Rules: []nft.Rule{rule().SetMark(toProxy, toProxy)}},
		{Name: "reject", Comment: "nobody serves this: say so at once", Rules: append(established(), rule().Proto(unix.IPPROTO_TCP).RejectTCP(), rule().Reject())},
		{Name: "silence", Comment: "nobody here serves this", Rules: append(established(), rule().Drop())},
	}
	if r.transparent {
		arriving.Rules = append(arriving.Rules, rule("answers to the proxy, which has the client's address").
			Add(&expr.Socket{Key: expr.SocketKeyTransparent, Register: register}, &expr.Cmp{Register: register, Data: []byte{1}}).Goto("proxy"))
		leaving.Rules = append(leaving.Rules,
			rule("the proxy's own connections").Mark(expr.CmpOpEq, ownMark, ownMark).Add(&expr.Ct{Key: expr.CtKeyMARK, Register: register}, bits(^uint32(ownMark), ownMark),
				&expr.Ct{Key: expr.CtKeyMARK, Register: register, SourceRegister: true}).Accept(),
			rule("the node's answers to them").Add(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: register}, &expr.Cmp{Register: register, Data: []byte{1}},
				&expr.Ct{Key: expr.CtKeyMARK, Register: register}, bits(ownMark, 0), &expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: make([]byte, 4)}).Goto("proxy"))
	}
	// What translates services meanwhile, or did before, belongs to another program, or to an agent
	// in another mode: its connections go on, and new ones are ours alone.
	theirs, passing := rule("connections that others translate").Translated().Accept(), rule().Jump(passingChain)
	arriving.Rules, leaving.Rules = append(arriving.Rules, theirs, passing), append(leaving.Rules, theirs, passing)
	var asTheyAre []nft.Rule
	for i, f := range r.families {
		name := f.Name + "-services"
		asTheyAre = append(asTheyAre, rule("it stays as it is").Mark(expr.CmpOpEq, toProxy, toProxy).Family(f.Family).Load(0, f.Daddr).Destination(f.Family, 0, -1))
		arriving.Rules, leaving.Rules = append(arriving.Rules, f.related(), unmarked(name, f)), append(leaving.Rules, unmarked(name, f))
		chains = append(chains, f.sourcesChain(), nft.Chain{Name: f.Name + "-inside", Comment: "from pods and the node", Rules: []nft.Rule{
			rule().Family(f.Family).Vmap(f.inside, f.frontends.Key...),
			rule().Drop(),
		}})
		arriving.Rules = append(arriving.Rules, rule().Mark(expr.CmpOpEq, toProxy, toProxy).Family(f.Family).Proto(unix.IPPROTO_TCP).Add(
			&expr.Immediate{Register: register, Data: loopback(f.Family).AsSlice()},
			&expr.Immediate{Register: register + 4, Data: binary.BigEndian.AppendUint16(nil, r.ports[i])},
			&expr.TProxy{Family: familyNumbers[i], RegAddr: register, RegPort: register + 4}))
	}
	const beforeOthers = -110
	chains = append(chains, r.listChains(nil)...)
	return append(chains, arriving, leaving,
		nft.Chain{Name: "nat-prerouting", Hook: nft.NATHook(unix.NF_INET_PRE_ROUTING, beforeOthers), Comment: "so that nobody translates what is for the proxy", Rules: asTheyAre},
		nft.Chain{Name: "nat-output", Hook: nft.NATHook(unix.NF_INET_LOCAL_OUT, beforeOthers), Comment: "the same, of the node itself", Rules: asTheyAre})
}

// sourcesChain returns for the sources that may connect.
func (f *family) sourcesChain() nft.Chain {
	c := nft.Chain{Name: f.Name + "-sources", Comment: "one look-up for each length; a frontend that is open to all has length 0"}
	for bits := range f.Bits + 1 {
		c.Rules = append(c.Rules, rule().Family(f.Family).Lookup(uint32(bits), f.sources, false, append(f.frontends.Key[:3:3], nft.Masked(f.Saddr, bits))...).Return())
	}
	c.Rules = append(c.Rules, rule().Drop())
	return c
}

// register is the first that rules here use.
const register = unix.NFT_REG32_00

// bits makes of the register (it & mask) ^ xor.
func bits(mask, xor uint32) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4,
		Mask: binary.NativeEndian.AppendUint32(nil, mask), Xor: binary.NativeEndian.AppendUint32(nil, xor)}
}

var familyNumbers = [2]byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6}

// established are the rules by which that goes to the proxy which belongs to connections that go on
// though there are no new ones: all of TCP but what begins a connection, and errors.
func established() []nft.Rule {
	const syn, ack = 0x02, 0x10
	return []nft.Rule{
		rule("it is under way").Proto(unix.IPPROTO_TCP).Add(
			&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
			&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: []byte{syn}}).Goto("proxy"),
		rule("it is about one").CtState(expr.CtStateBitRELATED).Goto("proxy"),
	}
}

// related looks up what the packets were sent to that an ICMP error is about, such as one that was
// too long for a link on the way to the client. What the table itself rejects is not meant, which
// leaves the node.
func (f *family) related() nft.Rule {
	addr := nft.Registers(f.OrigDaddr)
	return rule("an error of a connection").Family(f.Family).CtState(expr.CtStateBitRELATED).Load(0, f.OrigDaddr).
		Add(&expr.Ct{Key: expr.CtKeyPROTOCOL, Register: register + uint32(addr)}).Load(addr+1, nft.CtOrigDport).Follow(f.frontends, 0)
}

func loopback(f nft.Family) netip.Addr {
	if f.Version() == 4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// create has the batch make the table without elements.
func (r *redirect) create(b *nft.Batch, flags uint32) {
	b.AddTable(nft.FlagOwner|flags, "Sluice's services by a proxy. It goes with sluice run.")
	for _, s := range r.sets {
		b.AddSet(s)
	}
	chains := nft.LookAgain(nft.MayMiss(), r.chains()...)
	for _, c := range chains {
		b.AddChain(c)
	}
	for _, c := range chains {
		b.AddRules(c)
	}
}

// drain has all pass by the proxy but connections that go through it already.
func (r *redirect) drain() error {
	fresh := func(comment string) nft.Rule { return rule(comment).Mark(expr.CmpOpEq, toProxy, 0) }
	b := nft.NewBatch(TableName)
	b.AddRules(nft.Chain{Name: passingChain, Rules: []nft.Rule{
		fresh("new connections").CtState(expr.CtStateBitNEW).Accept(),
		fresh("datagrams").Proto(unix.IPPROTO_UDP).Accept(),
	}})
	_, err := b.Send(r.sock)
	return err
}

// try has the kernel take the ruleset in a table that no packet meets.
func (r *redirect) try() error {
	b := nft.NewBatch(TableName + "-probe")
	r.create(b, nft.FlagDormant)
	b.DeleteTable()
	_, err := b.Send(r.sock)
	return err
}

// apply brings the table in step with a change of what is served.
func (r *redirect) apply(have *state.Services, d state.ServicesDelta) error {
	b := nft.NewBatch(TableName)
	if err := r.addWays(); err != nil {
		return err
	}
	if !r.built {
		there, err := r.sock.ReadFlags(context.Background(), TableName)
		if err != nil {
			return fmt.Errorf("read table %s: %w", TableName, err)
		}
		if b.Fresh = there == nil; there != nil {
			b.ReplaceTable()
		}
		r.create(b, 0)
		all := have.Clone()
		all.Apply(d)
		have, d = state.NewServices(), driver.Whole(all)
	}
	for k, f := range d.Frontends {
		change(b, r.elements(k, have.Frontends[k]), r.elements(k, f))
	}
	for a, in := range d.ClusterIPs {
		address(b, r.family(a).clusterIPs, a, in)
	}
	for a, in := range d.OtherIPs {
		address(b, r.family(a).otherIPs, a, in)
	}
	if d.Settings != nil {
		mayMiss, before, after := nft.MayMiss(), r.lists(have.Settings), r.lists(*d.Settings)
		change(b, networks(before), networks(after))
		b.ChangeRules(nft.LookAgain(mayMiss, r.listChains(before)...), nft.LookAgain(mayMiss, r.listChains(after)...))
		b.Stepwise = r.built
	}
	_, err := b.Send(r.sock)
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: table %s: %w", driver.ErrBusy, TableName, err)
	}
	r.built = err == nil
	return err
}

func address(b *nft.Batch, s *nft.Set, a netip.Addr, in bool) {
	e := &nft.Element{Set: s}
	e.Append(a.AsSlice()...)
	if in {
		b.Add(e)
	} else {
		b.Delete(e)
	}
}

func (r *redirect) family(a netip.Addr) *family {
	if a.Is4() {
		return r.families[0]
	}
	return r.families[1]
}

// elementKey is an element's.
type elementKey struct {
	set *nft.Set
	key nft.ElementKey
}

// change plans the difference between elements. What goes, goes last: packets on their way have
// been led to it.
func change(b *nft.Batch, before, after map[elementKey]*nft.Element) {
	for key, e := range before {
		if n, is := after[key]; !is {
			b.DeleteLast(e)
		} else if !n.SameValue(e) {
			b.Delete(e)
		}
	}
	for key, e := range after {
		if o, is := before[key]; !is || !o.SameValue(e) {
			b.Add(e)
		}
	}
}

// networks are the elements of lists.
func networks(l nft.Lists) map[elementKey]*nft.Element {
	all := map[elementKey]*nft.Element{}
	l.Elements(func(e *nft.Element) { all[elementKey{e.Set, e.ElementKey}] = e })
	return all
}

// elements are what a frontend puts into the sets; none of nil.
func (r *redirect) elements(k state.FrontendKey, f *state.Frontend) map[elementKey]*nft.Element {
	if f == nil {
		return nil
	}
	fam, all := r.family(k.Addr), map[elementKey]*nft.Element{}
	add := func(s *nft.Set, v nft.Verdict, source ...netip.Prefix) {
		e := &nft.Element{Set: s, Verdict: v}
		for _, p := range source {
			e.AppendUint32(uint32(p.Bits()))
		}
		e.AppendDestination(fam.Family, k.Addr, uint8(k.Protocol), k.Port)
		for _, p := range source {
			e.Append(p.Addr().AsSlice()...)
		}
		all[elementKey{s, e.ElementKey}] = e
	}
	in, out := fate(f.Backends, f.Reject), fate(f.Backends, f.Reject)
	if f.LocalOnly {
		out = fate(f.Local, f.Reject && len(f.Backends) == 0)
	}
	switch {
	case k.Protocol == model.UDP && len(f.Serving) > 0: // the proxy knows which flows go on
		add(fam.frontends, nft.Goto("proxy"))
	case len(f.SourceRanges) == 0 && in == out:
		add(fam.frontends, in)
	default:
		add(fam.frontends, nft.Goto(fam.Name+"-clients"))
		add(fam.inside, in)
		add(fam.outside, out)
		ranges := f.SourceRanges
		if len(ranges) == 0 {
			ranges = []netip.Prefix{netip.PrefixFrom(k.Addr, 0).Masked()}
		}
		for _, p := range ranges {
			if p.Addr().Is4() == k.Addr.Is4() {
				add(fam.sources, nft.Verdict{}, p)
			}
		}
	}
	return all
}

// fate is what becomes of new connections that these backends would serve.
func fate(by []netip.AddrPort, reject bool) nft.Verdict {
	switch {
	case len(by) > 0:
		return nft.Goto("proxy")
	case reject:
		return nft.Goto("reject")
	}
	return nft.Goto("silence")
}
