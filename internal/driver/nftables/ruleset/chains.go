package ruleset

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// All chains of the table are in this file, except for those that a policy's rules become
// (policy_chains.go). Packets enter the table by its base chains, in this order:
//
//	chain        hook         type    priority  what is seen
//	deny-at-*    ingress      filter  -500      what arrives by an interface with deny lists
//	arrival      prerouting   filter  -450      what a pod sends, under which address
//	raw-in       prerouting   filter  -300      what host endpoints receive, by policies with doNotTrack
//	outer-in     prerouting   filter  -300      what arrives by tunnels of the pod network: it is not tracked
//	prerouting   prerouting   nat     -100      new connections: preDNAT policies, then services
//	forward      forward      filter  0         what the node passes on
//	tunnel-in    input        filter  -150      what tunnels of the pod network take
//	local-in     input        filter  0         what is for the node itself
//	input        input        nat     100       new connections translated to the node: remember the backend
//	raw-out      output       filter  -300      what host endpoints send, by policies with doNotTrack
//	outer-out    output       filter  -300      what leaves by tunnels of the pod network: it is not tracked
//	output       output       nat     -100      new connections of the node itself: services
//	local-out    output       filter  0         what the node itself sends
//	service-out  postrouting  nat     90        new connections of the node itself to services
//	postrouting  postrouting  nat     100       new connections on their way out: remember the backend, masquerade
//
// Beside IPVS, local-in has priority 110, balanced is one more, of type filter at postrouting with
// priority 50 (see besideIPVS), and so is broken, at input with priority 90.
//
// deny-at-*, raw-* and outer-* are there from when the state first needs them, as every packet pays
// for them. They stay, and have no rules while it does not need them: the kernel drops all packets
// that wait in queues of the namespace, for whatever program, when a base chain is deleted. Without
// policy there are none of the first two, nor arrival, local-out and service-out. There is
// tunnel-in where the pod network is ours.
//
// From there a packet jumps to the chains of its family, whose names begin with ip- and ip6-:
// services, sent, received …

// AddChains adds the chains that are always there, in an order that the note on the ruleset depends
// on.
func (rs *Ruleset) AddChains() {
	rs.Chains = append(rs.natChains(), rs.filterChains()...)
	if rs.Families[0].peers != nil {
		rs.Chains = append(rs.Chains, rs.tunnelChain())
	}
	for _, reason := range rs.drops() {
		rs.Chains = append(rs.Chains, newDropChain(reason))
	}
	var more []nft.Chain
	for _, fp := range rs.Families {
		more = append(more, fp.serviceChains()...)
		if rs.ipvs {
			more = append(more, fp.ipvsChain(rs.Policy != nil))
		}
	}
	if rs.ipvs {
		more = append(more, brokenChain())
	}
	changing := rs.changingChains(&state.State{})
	rs.listChains = map[string]bool{}
	for _, c := range changing {
		rs.listChains[c.Name] = true
	}
	rs.Chains = slices.Concat(nft.LookAgain(rs.MayMiss, rs.Chains...), changing, nft.LookAgain(rs.MayMiss, more...))
}

// rule begins a rule. A comment says what it is about, where the chain's own does not.
func rule(comment ...string) nft.Rule { return nft.NewRule(comment...) }

// byFamily jumps to a chain of the packet's family.
func byFamily(to string) []nft.Rule {
	return []nft.Rule{
		rule().Family(nft.IPv4).Jump(nft.IPv4.Name + to),
		rule().Family(nft.IPv6).Jump(nft.IPv6.Name + to),
	}
}

// natChains are the base chains for the first packet of each connection.
func (rs *Ruleset) natChains() []nft.Chain {
	var preDNAT []nft.Rule
	if rs.Policy != nil {
		preDNAT = []nft.Rule{rule().Jump(rs.Policy.before.Name)}
	}
	toNode, untranslated := []nft.Rule{rule().NotDNAT().Accept()}, []nft.Rule{rule().NotDNAT().Accept()}
	var outgoing []nft.Rule
	if rs.Families[0].outgoing != nil {
		untranslated, outgoing = []nft.Rule{rule().NotDNAT().Goto(outgoingChain)}, []nft.Rule{rule().Goto(outgoingChain)}
	}
	if rs.ipvs { // what IPVS translates does not say so
		toNode, untranslated = nil, nil
	}
	return []nft.Chain{
		{Name: "prerouting", Hook: nft.NATHook(unix.NF_INET_PRE_ROUTING, -100), Comment: "new connections from pods and from outside",
			Rules: concat(preDNAT, byFamily("-services"))},
		{Name: "output", Hook: nft.NATHook(unix.NF_INET_LOCAL_OUT, -100), Comment: "new connections of the node itself",
			Rules: byFamily("-services")},
		{Name: "input", Hook: nft.NATHook(unix.NF_INET_LOCAL_IN, 100), Comment: "new connections translated to the node itself",
			Rules: concat(toNode, byFamily("-remember"))},
		{Name: "postrouting", Hook: nft.NATHook(unix.NF_INET_POST_ROUTING, 100), Comment: "new connections on their way out: remember the backend, masquerade",
			Rules: concat(untranslated, byFamily("-remember"), byFamily("-source"), outgoing)},
	}
}

// tunnelChain drops what others than nodes send to the node's own ends of tunnels: it would be in
// the pod network, with any source. Tunnels of other programs are theirs: their packets have other
// numbers, or other addresses.
func (rs *Ruleset) tunnelChain() nft.Chain {
	c := nft.Chain{Name: "tunnel-in", Hook: nft.FilterHook(unix.NF_INET_LOCAL_IN, -150), Comment: "tunnels of the pod network take packets from nodes alone"}
	for _, fp := range rs.Families {
		f := fp.IP
		c.Rules = append(c.Rules,
			rule("VXLAN").Family(f).Proto(unix.IPPROTO_UDP).In(fp.vxlan, fp.vxlan.Key...).Is(expr.CmpOpEq, nft.VNI, vni()).NotIn(fp.peers, f.Saddr).Goto(dropChain(state.DropForeignTunnel)))
	}
	v4 := rs.Families[0]
	c.Rules = append(c.Rules,
		rule("IPIP").Family(v4.IP).Proto(unix.IPPROTO_IPIP).In(v4.ipip, v4.IP.Daddr).NotIn(v4.peers, v4.IP.Saddr).Goto(dropChain(state.DropForeignTunnel)))
	return c
}

// filterChains see every packet. Those of an established connection end at the first rule.
func (rs *Ruleset) filterChains() []nft.Chain {
	// Connection tracking can make nothing of a stray segment. One of a backend would arrive
	// untranslated and be answered with a reset.
	stray := rule("a stray segment").CtState(expr.CtStateBitINVALID).Proto(unix.IPPROTO_TCP)
	strayForward, strayInput := stray.Jump(strayForwardChain), stray.Jump(strayInputChain)
	strayOn := nft.Chain{Name: strayForwardChain, Comment: "a stray segment of a backend here would arrive untranslated; others are not ours"}
	for _, fp := range rs.Families {
		strayOn.Rules = append(strayOn.Rules, rule().Family(fp.IP).In(fp.hairpins, fp.IP.Saddr, fp.IP.Saddr).Goto(dropChain(state.DropStray)))
	}
	forward := nft.Chain{Name: "forward", Hook: nft.FilterHook(unix.NF_INET_FORWARD, 0), Comment: "what the node passes on"}
	input := nft.Chain{Name: "local-in", Hook: nft.FilterHook(unix.NF_INET_LOCAL_IN, 0), Comment: "what is for the node itself"}
	if rs.Policy == nil {
		forward.Rules, input.Rules = []nft.Rule{strayForward}, []nft.Rule{strayInput}
		chains := []nft.Chain{forward, input, strayOn}
		if rs.Flowtable != "" {
			with, _ := rs.OffloadChain()
			chains[0].Rules = append(forward.Rules, rule().CtState(expr.CtStateBitESTABLISHED).Goto(with.Name))
			chains = append(chains, with)
		}
		return chains
	}

	permitted := rule().CtState(expr.CtStateBitESTABLISHED).CtLabel(expr.CmpOpNeq, cutLabel())
	cut := rule("established, and forbidden since").CtLabel(expr.CmpOpEq, cutLabel()).Goto(dropChain(state.DropCut))
	loose := rule().CtState(expr.CtStateBitINVALID | expr.CtStateBitRELATED)
	untracked := rule("by doNotTrack").CtState(expr.CtStateBitUNTRACKED).Accept()

	pass := nft.Rule.Accept
	if rs.Flowtable != "" {
		pass = func(r nft.Rule) nft.Rule { return r.Goto(offloadChain) }
	}
	forwards := rs.judged(forward, permitted, pass, cut, concat([]nft.Rule{loose.Jump("loose-forward")}, byFamily("-sent"), byFamily("-received"), []nft.Rule{
		untracked,
		rule().Jump(rs.Policy.forwardIn.Name),
		rule().Vmap(rs.Policy.forwardOut, nft.OIF),
	}))
	inputs := rs.judged(input, permitted, nft.Rule.Accept, cut, concat([]nft.Rule{
		loose.Jump("loose-in"),
		rule().Device(nft.IIF, loopback).Accept(),
		rule().Family(nft.IPv6).Proto(unix.IPPROTO_ICMPV6).Jump("neighbours"),
	}, byFamily("-sent"), []nft.Rule{
		untracked,
		rule().Vmap(rs.Policy.input, nft.IIF),
	}))
	output := nft.Chain{Name: "local-out", Hook: nft.FilterHook(unix.NF_INET_LOCAL_OUT, 0), Comment: "what the node itself sends"}
	outputs := rs.judged(output, rule().CtState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED).CtLabel(expr.CmpOpNeq, cutLabel()), nft.Rule.Accept, cut, []nft.Rule{
		untracked,
		rule("to a service: here the interface is still that of the way to the service's address").Translated().Accept(),
		rule().Vmap(rs.Policy.output, nft.OIF),
	})
	chains := []nft.Chain{
		// Before fragments are put together (-400) and connections are tracked (-200), so that a
		// pod has no part in either under another's address.
		{Name: "arrival", Hook: nft.FilterHook(unix.NF_INET_PRE_ROUTING, -450), Comment: "what a pod sends has the pod's own address", Rules: []nft.Rule{
			rule().In(rs.Policy.Checked, nft.IIF).WrongWay().Goto(dropChain(state.DropSpoofed)),
		}},
		strayOn,
		looseChain("loose-forward", strayForward),
		looseChain("loose-in", strayInput, rule().CtState(expr.CtStateBitINVALID).Return()),
		{Name: "service-out", Hook: nft.NATHook(unix.NF_INET_POST_ROUTING, 90), Comment: "new connections of the node itself to services", Rules: []nft.Rule{
			rule().NotDNAT().Accept(),
			rule("from elsewhere").Is(expr.CmpOpNeq, nft.IIF, make([]byte, 4)).Accept(),
			rule().Vmap(rs.Policy.output, nft.OIF),
		}},
		{Name: "tunnels", Comment: "what tunnels carry: the node, or another one, would take what is inside for its own", Rules: []nft.Rule{
			tunnelled(rs.Policy.ports, len(portBlocks)-1).In(rs.Policy.Checked, nft.IIF).Goto(dropChain(state.DropTunnel)),
			tunnelled(rs.Policy.ports, 0).In(rs.Policy.Checked, nft.IIF).Goto(dropChain(state.DropTunnel)),
		}},
		neighboursChain(),
		{Name: "labels", Comment: "never entered: while this rule is there, connections have room for labels", Rules: []nft.Rule{
			rule().SetCtLabel(cutLabel()),
		}},
	}
	for _, s := range []*nft.Set{rs.Policy.before, rs.Policy.forwardIn} {
		chains = append(chains, nft.Chain{Name: s.Name, Comment: "others judge after this", Rules: []nft.Rule{rule().Vmap(s, nft.IIF)}})
	}
	chains = slices.Concat(chains, forwards, inputs, outputs, []nft.Chain{rs.answering()})
	if rs.Flowtable != "" {
		with, _ := rs.OffloadChain()
		chains = append(chains, with)
	}
	for _, fp := range rs.Families {
		chains = append(chains, rs.podChains(fp)...)
	}
	if rs.ipvs {
		chains = rs.besideIPVS(chains, forwards[0].Rules, strayForward)
	}
	return chains
}

// offloadChain is where established connections that the node passes on are put into the flowtable.
const offloadChain = "offload"

// questions are the packets of a flow of UDP that is not put there yet: what DNS takes, two
// questions and their answers. An entry of the flowtable saves such a flow nothing, and stays half
// a minute. A connection of TCP has more to come once it is established.
const questions = 4

// OffloadChain is that chain, and the same while there is no flowtable.
func (rs *Ruleset) OffloadChain() (with, without nft.Chain) {
	with = nft.Chain{Name: offloadChain, Comment: "later packets of the connection meet no chain"}
	without = with
	without.Rules = []nft.Rule{rule().Accept()}
	with.Rules = append([]nft.Rule{
		rule("not yet; a flow from before packets were counted has none").Proto(unix.IPPROTO_UDP).CtPackets(1, questions).Accept(),
		rule().Offload(rs.Flowtable),
	}, without.Rules...)
	return with, without
}

// besideIPVS has connections that IPVS translates judged with their backends. Their packets come to
// it as the node's own input (at priority 99), and leave it as its output: to the former the chain
// for input comes later, and the chains for output leave them to one at postrouting, where they are
// judged as what they are: passed on.
func (rs *Ruleset) besideIPVS(chains []nft.Chain, forward []nft.Rule, stray nft.Rule) []nft.Chain {
	noInterface := make([]byte, 4)
	for i := range chains {
		switch c := &chains[i]; c.Name {
		case "local-in":
			c.Hook = nft.FilterHook(unix.NF_INET_LOCAL_IN, 110)
		case "local-out-judge":
			last := len(c.Rules) - 1
			c.Rules = slices.Insert(c.Rules, last, rule("to a service, by IPVS").CtLabel(expr.CmpOpEq, label(ipvsLabel)).Accept())
		case "service-out":
			c.Rules[0] = rule().NotDNAT().CtLabel(expr.CmpOpNeq, label(ipvsLabel)).Accept()
		}
	}
	const passedOn = "to-backend"
	return append(chains,
		nft.Chain{Name: "balanced", Hook: nft.FilterHook(unix.NF_INET_POST_ROUTING, 50), Comment: "what may be on its way to a backend that IPVS chose", Rules: []nft.Rule{
			rule("the node's own").Is(expr.CmpOpEq, nft.IIF, noInterface).Accept(),
			stray,
			rule("from the backend, and judged before IPVS gave it the service's address").Reply().Accept(),
			rule().CtLabel(expr.CmpOpEq, label(ipvsLabel)).Goto(passedOn),
			// The node's own messages of neighbour discovery are untracked, too, and seem to come
			// from the interface by which they leave.
			rule("untracked, by doNotTrack").CtState(expr.CtStateBitUNTRACKED).NotProto(unix.IPPROTO_ICMPV6).FromNode(false).Goto(passedOn),
		}},
		nft.Chain{Name: passedOn, Comment: "what the node passes on to backends that IPVS chose", Rules: forward})
}

// looseChain judges packets that belong to no connection and those that are about one: ICMP errors,
// and first packets of connections that a helper of connection tracking expects, which only
// administrators assign.
func looseChain(name string, stray ...nft.Rule) nft.Chain {
	return nft.Chain{Name: name, Comment: "of no connection, or about one", Rules: concat(stray, []nft.Rule{
		rule().Family(nft.IPv4).Proto(unix.IPPROTO_ICMP).ICMPType(3, 5).Jump(nft.IPv4.Name + "-errors"),
		rule().Family(nft.IPv4).Proto(unix.IPPROTO_ICMP).ICMPType(11, 12).Jump(nft.IPv4.Name + "-errors"),
		rule().Family(nft.IPv6).Proto(unix.IPPROTO_ICMPV6).ICMPType(0, 127).Jump(nft.IPv6.Name + "-errors"),
		rule().CtState(expr.CtStateBitRELATED).Accept(),
	})}
}

// neighboursChain passes what a host on an IPv6 link sends: multicast listener discovery (RFC 2710,
// RFC 3810), router solicitations, neighbour solicitations and advertisements (RFC 4861). They
// never leave the link, so they are asked for only where packets are for the node itself. What only
// routers send is not for pods to say.
func neighboursChain() nft.Chain {
	icmp := rule().Family(nft.IPv6).Proto(unix.IPPROTO_ICMPV6)
	return nft.Chain{Name: "neighbours", Comment: "what a host on an IPv6 link needs", Rules: []nft.Rule{
		icmp.ICMPType(130, 133).Accept(),
		icmp.ICMPType(135, 136).Accept(),
		icmp.ICMPType(143, 143).Accept(),
	}}
}

// podChains find the rules of a pod.
func (rs *Ruleset) podChains(fp *Family) []nft.Chain {
	f, pods := fp.IP, fp.Policy
	n := func(s string) string { return f.Name + "-" + s }
	return []nft.Chain{
		{Name: n("sent"), Comment: "what may the source send", Rules: []nft.Rule{
			rule().Family(f).NotProto(unix.IPPROTO_TCP).Jump("tunnels"), // none is over TCP
			rule().Family(f).Vmap(pods.from, nft.IIF, f.Saddr),
			rule().Goto(n("stranger")),
		}},
		{Name: n("errors"), Comment: "ICMP errors: a router on the way sends them, and of pods the connection's own ends", Rules: []nft.Rule{
			rule().NotIn(rs.Policy.Checked, nft.IIF).Return(),
			rule("of the pod that opened the connection").Family(f).In(pods.selves, f.Saddr, f.OrigSaddr).Return(),
			rule("of the pod that answers").Family(f).In(pods.selves, f.Saddr, f.ReplySaddr).Return(),
			rule().Goto(dropChain(state.DropForeignError)),
		}},
		{Name: n("denied"), Comment: "what a policy denies; but a pod always reaches itself", Rules: []nft.Rule{
			rule().Family(f).In(pods.selves, f.Saddr, f.Daddr).Accept(),
			rule().Goto(dropChain(state.DropPolicy)),
		}},
	}
}

// drops are the reasons that have a chain.
func (rs *Ruleset) drops() []state.Drop {
	all := []state.Drop{state.DropStray, state.DropSourceRanges}
	if rs.Policy != nil {
		all = append(all, state.DropSpoofed, state.DropUnknownPod, state.DropUnknownDevice, state.DropPolicy, state.DropHost, state.DropTunnel, state.DropCut, state.DropDenyList, state.DropForeignError)
	}
	if rs.Families[0].peers != nil {
		all = append(all, state.DropForeignTunnel)
	}
	return all
}

func dropChain(reason state.Drop) string { return "drop-" + string(reason) }

// logged is the number of packets a second that are shown of each reason to
// those who listen; snap is how much of a packet.
const (
	logged = 200
	snap   = 128
)

// newDropChain tells whoever listens, and drops.
func newDropChain(reason state.Drop) nft.Chain {
	log := &expr.Log{Group: driver.DropGroup, Snaplen: snap, Data: []byte(driver.DropPrefix + string(reason)),
		Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN}
	var established []nft.Rule // packets come here that are judged again
	switch reason {
	case state.DropUnknownPod, state.DropUnknownDevice, state.DropTunnel:
		established = []nft.Rule{rule("no policy forbids the connection").CtState(expr.CtStateBitESTABLISHED).CtLabel(expr.CmpOpNeq, cutLabel()).Accept()}
	case state.DropPolicy, state.DropHost:
		established = []nft.Rule{rule("answers, too").CtState(expr.CtStateBitESTABLISHED).CtLabel(expr.CmpOpNeq, cutLabel()).SetCtLabel(label(state.CutLabel, state.CutByRuleLabel))}
	}
	return nft.Chain{Name: dropChain(reason), Comment: "tell those who listen, and drop", Rules: concat(established, []nft.Rule{
		rule().Add(&expr.Limit{Type: expr.LimitTypePkts, Rate: logged, Unit: expr.LimitTimeSecond, Burst: logged}, log),
		rule().Count(DropPrefix + string(reason)).Drop(),
	})}
}

// serviceChains find the backend of a frontend, and decide on the source address of what is
// translated.
func (fp *Family) serviceChains() []nft.Chain {
	f := fp.IP
	n := func(s string) string { return f.Name + "-" + s }
	masquerade := nft.Chain{Name: n("masquerade"), Comment: "external frontends: always"}
	if fp.snat != nil {
		// What may leave the node, and by another interface once the mode of the pod network
		// changes, is translated by name of the address: what is masqueraded is bound to the
		// interface.
		masquerade.Rules = []nft.Rule{rule("and goes on when the way there leads by another interface").SNAT(f, fp.snat, nft.OIFName)}
	}
	masquerade.Rules = append(masquerade.Rules, rule().Masquerade())
	chains := []nft.Chain{
		fp.sourcesChain(),
		{Name: n("reject"), Comment: "nobody serves this: say so at once", Rules: []nft.Rule{
			rule().Proto(unix.IPPROTO_TCP).RejectTCP(),
			rule().Reject(),
		}},
		{Name: n("remember"), Comment: "session affinity: learn or renew the chosen backend", Rules: []nft.Rule{
			rule().Vmap(fp.learn, origFrontend(f)...),
		}},
		masquerade,
	}
	for _, size := range sizeClasses {
		chains = append(chains, fp.pickChain(size, false), fp.pickChain(size, true))
	}
	return chains
}

// BesideIPVS is a chain that rulesets have beside IPVS, and no others.
const BesideIPVS = "broken"

// brokenChain drops, before IPVS (at priority 99), INITs of SCTP with a wrong checksum. It would
// begin an association for them, and give them a right one: source ranges and policies would be
// passed by, as those are asked for connections, and connection tracking sees none here.
func brokenChain() nft.Chain {
	const init = 1
	return nft.Chain{Name: BesideIPVS, Hook: nft.FilterHook(unix.NF_INET_LOCAL_IN, 90), Comment: "what IPVS would mend", Rules: []nft.Rule{
		rule().CtState(expr.CtStateBitINVALID).Proto(unix.IPPROTO_SCTP).Is(expr.CmpOpEq, nft.SCTPChunk, []byte{init}).Drop(),
	}}
}

// ipvsChain leaves a connection to IPVS, with the label by which policy knows it.
func (fp *Family) ipvsChain(policy bool) nft.Chain {
	r := rule()
	if policy {
		r = r.SetCtLabel(label(ipvsLabel))
	}
	return nft.Chain{Name: fp.ipvsName(), Comment: "IPVS chooses the backend", Rules: []nft.Rule{r.Accept()}}
}

func (fp *Family) ipvsName() string { return fp.IP.Name + "-ipvs" }

// sourcesChain returns for the sources that a restricted frontend is open to.
func (fp *Family) sourcesChain() nft.Chain {
	f := fp.IP
	c := nft.Chain{Name: f.Name + "-sources", Comment: "loadBalancerSourceRanges: one look-up for each length"}
	for _, bits := range sourceLengths(f) {
		network := nft.Masked(f.Saddr, bits)
		c.Rules = append(c.Rules, rule().Family(f).Lookup(uint32(bits), fp.Sources, false, f.Daddr, nft.L4Proto, nft.Dport, network).Return())
	}
	c.Rules = append(c.Rules, rule().Goto(dropChain(state.DropSourceRanges)))
	return c
}

// pickChain balances over a size class. Slots may be empty: a miss falls
// through to the next try, in the end to slot 0, which never is. A packet that
// is here while the last backend goes is dropped, never let through.
func (fp *Family) pickChain(size int, local bool) nft.Chain {
	f := fp.IP
	c := nft.Chain{Name: fp.pickName(size, local), Comment: fmt.Sprintf("balance over %d slots", size)}
	slots := fp.slots(size, local)
	if local {
		c.Comment += ", this node's backends"
	}
	for range tries(size) {
		c.Rules = append(c.Rules, rule().Family(f).Pick(f, uint32(size), slots))
	}
	if size > 1 {
		c.Rules = append(c.Rules, rule().Family(f).Pick(f, 1, slots))
	}
	c.Rules = append(c.Rules, rule().Drop())
	return c
}

func (fp *Family) pickName(size int, local bool) string {
	if local {
		return fmt.Sprintf("%s-pick-local-%d", fp.IP.Name, size)
	}
	return fmt.Sprintf("%s-pick-%d", fp.IP.Name, size)
}

// The chains from here on come and go with the state.

// learnChain remembers a connection's backend for the time-out. A rule has one
// time-out, so that there is a chain for each that services use.
func (fp *Family) learnChain(d time.Duration) nft.Chain {
	f, client, backend := fp.IP, clientOf(fp.IP), []nft.Field{fp.IP.Daddr, nft.Dport}
	size := fp.Affinity.Size
	return nft.Chain{Name: fp.learnName(d), Comment: fmt.Sprintf("remember for %s", d), Rules: []nft.Rule{
		// An update renews an element's time and leaves its data, which is right: an element that
		// is there is where this connection was sent, or where another one of the client, just
		// before it. Whether it is still a backend is asked when the client comes back: a packet
		// that is dropped here is lost.
		rule().Family(f).HasData(fp.Affinity, make([]byte, f.Bits/8), client).Update(fp.Affinity, d, client, backend).Return(),
		rule().Family(f).OverLimit(fp.learning, max(1, uint64(size/learnRate)/uint64(d/time.Second)), size/LearnBurst, d, origFrontend(f)).Return(),
		rule().Family(f).Update(fp.Affinity, d, client, backend),
	}}
}

// learnName is the chain that remembers for the given time-out.
func (fp *Family) learnName(d time.Duration) string {
	return fmt.Sprintf("%s-learn-%d", fp.IP.Name, int64(d/time.Second))
}

// Of a map of affinity, a frontend may fill 1/LearnBurst at once, and 1/learnRate more over the
// time-out.
const (
	LearnBurst = 16
	learnRate  = 2
)

// denyListChain is where deny lists are looked up.
const denyListChain = "deny"

// DenyChainFor drops what comes from denied addresses, which it looks up in the sets given. It has
// no rule for what is in no list, as every packet pays for it.
func (rs *Ruleset) DenyChainFor(d state.Denied, sets [2]*nft.Set) nft.Chain {
	c := nft.Chain{Name: denyListChain, Comment: "deny lists"}
	lengths := prefixLengths(d)
	for i, fp := range rs.Families {
		f := fp.IP
		for bits := f.Bits; bits >= 0; bits-- {
			switch {
			case !lengths[i][bits]:
			case bits == f.Bits:
				c.Rules = append(c.Rules, rule().Family(f).In(sets[i], f.Saddr).Goto(dropChain(state.DropDenyList)))
			default:
				c.Rules = append(c.Rules, rule().Family(f).Lookup(listNumber(0, uint8(bits)), fp.Policy.members, false, nft.Masked(f.Saddr, bits)).Goto(dropChain(state.DropDenyList)))
			}
		}
	}
	return c
}

// DenyEntries yields the base chains of interfaces with deny lists. The kernel takes them out with
// the interface.
func (rs *Ruleset) DenyEntries(d state.Denied, yield ChainFunc) {
	if !slices.ContainsFunc(d.Lists, func(l *state.List) bool { return len(l.Prefixes) > 0 }) {
		return
	}
	for _, device := range d.Devices {
		c := denyEntry(device)
		yield(c.Name, func() *table.DynamicChain { return &table.DynamicChain{Chain: c} })
	}
}

func denyEntry(d state.Device) nft.Chain {
	return nft.Chain{Name: DenyEntryName(d), Hook: nft.IngressHook(d.Name, -500), Comment: truncate("deny lists at " + d.Name),
		Rules: []nft.Rule{rule().Goto(denyListChain)}}
}

// DenyEntryName is the name of the one at an interface. An interface that is made anew under its
// name is another one: the old one took its hook along.
func DenyEntryName(d state.Device) string {
	return fmt.Sprintf("%s%d-%s", denyEntries, d.Index, digestName(d.Name))
}

// RawChain is the base chain that looks a packet's interface up in a map of doNotTrack policies,
// before connection tracking; false: the set is no such map. What IPVS passes on leaves as the
// node's own: others' packets are left to what judges them as passed on.
func (rs *Ruleset) RawChain(s *nft.Set) (nft.Chain, bool) {
	if rs.Policy == nil || s != rs.Policy.rawIn && s != rs.Policy.rawOut {
		return nft.Chain{}, false
	}
	c := nft.Chain{Name: rawIn, Hook: nft.FilterHook(unix.NF_INET_PRE_ROUTING, -300), Rules: []nft.Rule{rule().Vmap(s, nft.IIF)}}
	if s == rs.Policy.rawOut {
		c = nft.Chain{Name: rawOut, Hook: nft.FilterHook(unix.NF_INET_LOCAL_OUT, -300), Rules: []nft.Rule{rule().Vmap(s, nft.OIF)}}
		if rs.ipvs {
			c.Rules = slices.Insert(c.Rules, 0, rule("passed on to a service, by IPVS").FromNode(false).Accept())
		}
	}
	c.Comment = "doNotTrack policies of host endpoints"
	return nft.LookAgain(rs.MayMiss, c)[0], true
}

// outerChains leave the packets between nodes' tunnels out of connection tracking: of VXLAN each
// connection inside would have an entry of its own, as it has a port of its own.
func (rs *Ruleset) outerChains() []nft.Chain {
	if rs.Families[0].peers == nil {
		return nil
	}
	var in, out []nft.Rule
	for _, fp := range rs.Families {
		vxlan := rule("VXLAN").Family(fp.IP).Proto(unix.IPPROTO_UDP).In(fp.vxlan, fp.vxlan.Key...).Is(expr.CmpOpEq, nft.VNI, vni())
		in = append(in, vxlan.In(fp.peers, fp.IP.Saddr).Add(&expr.Notrack{}))
		out = append(out, vxlan.In(fp.peers, fp.IP.Daddr).Add(&expr.Notrack{}))
	}
	v4 := rs.Families[0]
	ipip := rule("IPIP").Family(v4.IP).Proto(unix.IPPROTO_IPIP)
	in = append(in, ipip.In(v4.ipip, v4.IP.Daddr).In(v4.peers, v4.IP.Saddr).Add(&expr.Notrack{}))
	out = append(out, ipip.In(v4.ipip, v4.IP.Saddr).In(v4.peers, v4.IP.Daddr).Add(&expr.Notrack{}))
	const comment = "packets between nodes' tunnels are not tracked; what is in them is"
	return []nft.Chain{
		{Name: outerPrefix + "in", Hook: nft.FilterHook(unix.NF_INET_PRE_ROUTING, -300), Comment: comment, Rules: in},
		{Name: outerPrefix + "out", Hook: nft.FilterHook(unix.NF_INET_LOCAL_OUT, -300), Comment: comment, Rules: out},
	}
}

// Names of base chains that come with the state, or how they begin.
const (
	outerPrefix = "outer-"
	denyEntries = "deny-at-"
	rawIn       = "raw-in"
	rawOut      = "raw-out"
)

// vni is that of the pod network, as nft.VNI reads it.
func vni() []byte { return binary.BigEndian.AppendUint32(nil, state.VNI<<8) }

// OfServices reports whether a chain that comes and goes with the state does so with services.
func OfServices(name string) bool { return IsLearnChain(name) || IsOuter(name) }

// IsOuter reports whether it is one of those that leave packets between tunnels untracked.
func IsOuter(name string) bool { return strings.HasPrefix(name, outerPrefix) }

// IsDenyEntry reports whether it is one by which packets come to deny lists.
func IsDenyEntry(name string) bool { return strings.HasPrefix(name, denyEntries) }

// IsEntry reports whether a chain that comes with the state is one that packets enter by
// themselves.
func IsEntry(name string) bool {
	return IsOuter(name) || IsDenyEntry(name) || name == rawIn || name == rawOut
}

// HasEntry reports whether the ruleset has such a chain of the name, for some state.
func (rs *Ruleset) HasEntry(name string) bool {
	if IsOuter(name) {
		return slices.ContainsFunc(rs.outerChains(), func(c nft.Chain) bool { return c.Name == name })
	}
	return IsEntry(name) && rs.Policy != nil
}

// IsLearnChain reports whether the chain is one of those for the time-outs of affinity in use.
func IsLearnChain(name string) bool { return strings.Contains(name, "-learn-") }

// What rules are made of.

// strayForwardChain is where stray segments are judged that are to be forwarded.
const strayForwardChain = "stray-forward"

// loopback is the index of lo in every network namespace.
const loopback = 1

// cutLabel is the label of a connection that is forbidden.
func cutLabel() []byte { return label(state.CutLabel) }

// ipvsLabel is the bit of the label of a connection that IPVS translates.
const ipvsLabel = 126

// label is that of some bits.
func label(bits ...int) []byte { l := state.Label(bits...); return l[:] }

// tunnelled goes on for what tunnels carry: on a port of their own, or by a protocol of their own.
func tunnelled(ports *nft.Set, size int) nft.Rule {
	return portsIn(ports, tunnelPorts, size, nft.Dport).test(rule())
}

// origFrontend is the key of the frontend that a translated connection's client asked for.
func origFrontend(f nft.Family) []nft.Field {
	return []nft.Field{f.OrigDaddr, nft.L4Proto, nft.CtOrigDport}
}

// clientOf is the key of the client and the frontend it asked for.
func clientOf(f nft.Family) []nft.Field { return append([]nft.Field{f.OrigSaddr}, origFrontend(f)...) }

func concat(lists ...[]nft.Rule) (all []nft.Rule) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}
