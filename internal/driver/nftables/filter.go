package nftables

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
)

// This file is the constant part of policy: where packets are judged. What they are
// judged by is in judge.go.

// policyProgram are the sets of policy that both families share.
type policyProgram struct {
	podDevices, hostDevices *set
	checked                 *set // interfaces from which only what is routed back may come
	ports                   *set // blocks of ports
	before                  *set // host endpoints, by interface
	input, output           *set
	forwardIn, forwardOut   *set
}

// familyPolicy are the sets of policy of one family.
type familyPolicy struct {
	from, to *set // a pod's interface and address, a pod's address → its program
	ownPods  *set
	selves   *set
	members  *set // of groups and lists
	named    *set // ports by name
	denied   *set // addresses that deny lists hold
}

// fieldDevice is the interface that a packet came in by, fieldOutDevice the one it leaves by.
var (
	fieldDevice    = deviceField(expr.MetaKeyIIF)
	fieldOutDevice = deviceField(expr.MetaKeyOIF)
	fieldSport     = field{name: "inet_service", magic: 13, size: 2, load: payload(expr.PayloadBaseTransportHeader, 0, 2), udata: udataPayload(udataProtoTransport, 1)}
)

func deviceField(key expr.MetaKey) field {
	return field{
		name: "iface_index", magic: 20, size: 4, host: true,
		load: func(reg uint32) expression { return libExpr(&expr.Meta{Key: key, Register: reg}) },
	}
}

// addPolicySets adds what policy looks packets up in.
func (p *program) addPolicySets() {
	devices := func(name, comment string) *set {
		return p.addSet(&set{name: name, policy: true, key: []field{fieldDevice}, comment: comment})
	}
	hosts := func(name, comment string) *set {
		return p.addSet(&set{name: name, policy: true, key: []field{fieldDevice}, verdict: true, comment: comment})
	}
	p.policy = &policyProgram{
		podDevices:  devices("pod-devices", "interfaces that lead to one pod each"),
		hostDevices: devices("host-devices", "the node's own interfaces"),
		checked:     devices("checked-devices", "interfaces that lead to pods, bridges too: what comes by them must be routed back by them"),
		ports: p.addSet(&set{name: "ports", policy: true, typeof: true,
			key: []field{fieldSlot, fieldProto, fieldDport}, comment: "set . protocol . port, or first of a block of ports"}),
		before:     hosts("host-before", "interface : its host endpoint's preDNAT policies"),
		input:      hosts("host-input", "interface : its host endpoint's policies towards the node"),
		output:     hosts("host-output", "interface : its host endpoint's policies from the node"),
		forwardIn:  hosts("host-forward-in", "interface : its host endpoint's policies for what it passes on"),
		forwardOut: hosts("host-forward-out", "interface : the same, on the way out"),
	}
	for _, fp := range p.fam {
		p.addFamilyPolicy(fp)
	}
}

func (p *program) addFamilyPolicy(fp *familyProgram) {
	f := fp.ip
	add := func(name, comment string, s set) *set {
		s.name, s.comment, s.policy = f.name+"-"+name, comment, true
		return p.addSet(&s)
	}
	fp.policy = &familyPolicy{
		from: add("from", "interface and address of a pod of this node : what it may send",
			set{key: []field{fieldDevice, f.saddr}, verdict: true}),
		to: add("to", "address of a pod of this node : what may reach it",
			set{key: []field{f.daddr}, verdict: true}),
		ownPods: add("own-pods", "addresses of this node's pods, known or not",
			set{key: []field{f.saddr}, interval: true}),
		selves: add("selves", "pods of this node, twice: what a pod sends to itself passes",
			set{key: []field{f.saddr, f.daddr}}),
		members: add("members", "set . address, or set . network",
			set{key: []field{fieldSlot, f.saddr}, typeof: true}),
		named: add("named-ports", "set . address . protocol . port",
			set{key: []field{fieldSlot, f.daddr, fieldProto, fieldDport}, typeof: true}),
	}
	fp.policy.denied = p.addSet(newDeniedSet(f, 0))
}

// beforeServices judges what comes in by a host endpoint's interface before services are translated. Chains of
// type nat see new connections alone, so this costs established ones nothing.
func (p *program) beforeServices() []rule {
	if p.policy == nil {
		return nil
	}
	return []rule{newRule("").vmap([]field{fieldDevice}, p.policy.before)}
}

// strayRules are about segments that connection tracking can make nothing of. One of a
// backend would arrive untranslated and be answered with a reset.
func (p *program) strayRules() (forward, input []rule) {
	return []rule{newRule("a stray segment").invalid().proto(unix.IPPROTO_TCP).drop()},
		[]rule{newRule("").invalid().proto(unix.IPPROTO_TCP).jump("stray")}
}

// addFilterChains adds the chains that see every packet. Those of an established connection end at
// their first rule.
func (p *program) addFilterChains() {
	strayForward, strayInput := p.strayRules()
	forward := chain{name: "forward", hook: &hook{"filter", unix.NF_INET_FORWARD, 0, ""}, comment: "what the node passes on"}
	input := chain{name: "local-in", hook: &hook{"filter", unix.NF_INET_LOCAL_IN, 0, ""}, comment: "what is for the node itself"}
	if p.policy == nil {
		forward.rules, input.rules = strayForward, strayInput
		p.chains = append(p.chains, forward, input, p.strayChain())
		return
	}
	h := p.policy
	cut := newRule("established, and forbidden since").cut().goTo(dropChain(state.DropCut))
	begin := []rule{newRule("").established(expr.CtStateBitESTABLISHED).accept(), cut}
	both := func(to string) []rule {
		return []rule{newRule("").family(ipv4).jump(ipv4.name + to), newRule("").family(ipv6).jump(ipv6.name + to)}
	}
	forward.rules = concat(begin, []rule{newRule("").loose().jump("loose-forward")}, both("-sent"), both("-received"), []rule{
		newRule("by doNotTrack").untracked().accept(),
		newRule("").vmap([]field{fieldDevice}, h.forwardIn),
		newRule("").vmap([]field{fieldOutDevice}, h.forwardOut),
	})
	input.rules = concat(begin, []rule{
		newRule("").loose().jump("loose-in"),
		newRule("").device(fieldDevice, loopback).accept(),
		newRule("").family(ipv6).proto(unix.IPPROTO_ICMPV6).jump("neighbours"),
	}, both("-sent"), []rule{
		newRule("by doNotTrack").untracked().accept(),
		newRule("").vmap([]field{fieldDevice}, h.input),
	})
	p.chains = append(p.chains,
		// Before fragments are put together (-400) and connections are tracked (-200), so that a pod has no part in either
		// under another's address.
		chain{name: "arrival", hook: &hook{"filter", unix.NF_INET_PRE_ROUTING, -450, ""},
			comment: "what a pod sends has the pod's own address",
			rules:   []rule{newRule("").in([]field{fieldDevice}, h.checked).wrongWay().goTo(dropChain(state.DropSpoofed))}},
		forward, input, p.strayChain(),
		p.looseChain("loose-forward", strayForward...),
		p.looseChain("loose-in", append(strayInput, newRule("").invalid().ret())...),
		chain{name: "local-out", hook: &hook{"filter", unix.NF_INET_LOCAL_OUT, 0, ""}, comment: "what the node itself sends",
			rules: concat([]rule{newRule("").established(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED).accept(), cut}, []rule{
				newRule("by doNotTrack").untracked().accept(),
				newRule("").vmap([]field{fieldOutDevice}, h.output),
			})},
		chain{name: "tunnels", comment: "what tunnels carry: the node, or another one, would take what is inside for its own", rules: []rule{
			tunnelled(h.ports, len(portBlocks)-1).in([]field{fieldDevice}, h.checked).goTo(dropChain(state.DropTunnel)),
			tunnelled(h.ports, 0).in([]field{fieldDevice}, h.checked).goTo(dropChain(state.DropTunnel)),
		}},
		chain{name: "neighbours", comment: "what a host on an IPv6 link needs", rules: neighbourDiscovery()},
		chain{name: "labels", comment: "never entered: while this rule is there, connections have room for labels",
			rules: []rule{newRule("").setCut()}},
	)
	for _, fp := range p.fam {
		p.addPodChains(fp)
	}
	for _, reason := range drops {
		p.chains = append(p.chains, newDropChain(reason))
		p.counters = append(p.counters, dropped+string(reason))
	}
}

// looseChain judges packets that belong to no connection and those that are about one: ICMP errors, and first packets of
// connections that a helper of connection tracking expects, which only administrators assign.
func (p *program) looseChain(name string, stray ...rule) chain {
	return chain{name: name, comment: "of no connection, or about one", rules: concat(stray, []rule{
		newRule("").family(ipv4).proto(unix.IPPROTO_ICMP).icmpType(3, 5).jump(ipv4.name + "-errors"),
		newRule("").family(ipv4).proto(unix.IPPROTO_ICMP).icmpType(11, 12).jump(ipv4.name + "-errors"),
		newRule("").family(ipv6).proto(unix.IPPROTO_ICMPV6).icmpType(0, 127).jump(ipv6.name + "-errors"),
		newRule("").ct(expr.CtKeySTATE, expr.CtStateBitRELATED, expr.CmpOpNeq).accept(),
	})}
}

// addPodChains adds the chains that find a pod's program.
func (p *program) addPodChains(fp *familyProgram) {
	f, pods := fp.ip, fp.policy
	n := func(s string) string { return f.name + "-" + s }
	unknown := newRule("of this node's pods, and none that is known").family(f)
	stranger := []rule{
		newRule("it is routed there, and no pod is known").in([]field{fieldDevice}, p.policy.podDevices).goTo(dropChain(state.DropUnknownPod)),
		unknown.in([]field{f.saddr}, pods.ownPods).goTo(dropChain(state.DropUnknownPod)),
		newRule("").notIn([]field{fieldDevice}, p.policy.hostDevices).goTo(dropChain(state.DropUnknownDevice)),
	}
	p.chains = append(p.chains,
		chain{name: n("sent"), comment: "what may the source send", rules: []rule{
			newRule("").family(f).notProto(unix.IPPROTO_TCP).jump("tunnels"), // none is over TCP
			newRule("").family(f).vmap([]field{fieldDevice, f.saddr}, pods.from),
			newRule("").goTo(n("stranger")),
		}},
		chain{name: n("stranger"), comment: "not from a pod that is known by this address at this interface", rules: stranger},
		chain{name: n("received"), comment: "what may reach the destination", rules: []rule{
			newRule("").family(f).vmap([]field{f.daddr}, pods.to),
			unknown.in([]field{f.daddr}, pods.ownPods).goTo(dropChain(state.DropUnknownPod)),
			newRule("leaves by a pod's interface, or by one of which nothing is known").
				notIn([]field{fieldOutDevice}, p.policy.hostDevices).goTo(dropChain(state.DropUnknownPod)),
		}},
		chain{name: n("errors"), comment: "ICMP errors: a router on the way sends them, and of pods the connection's own ends", rules: []rule{
			newRule("").notIn([]field{fieldDevice}, p.policy.checked).ret(),
			newRule("of the pod that opened the connection").family(f).in([]field{f.saddr, f.origSaddr}, pods.selves).ret(),
			newRule("of the pod that answers").family(f).in([]field{f.saddr, f.replySaddr}, pods.selves).ret(),
			newRule("").goTo(dropChain(state.DropForeignError)),
		}},
		chain{name: n("refused"), comment: "but a pod always reaches itself", rules: []rule{
			newRule("").family(f).in([]field{f.saddr, f.daddr}, pods.selves).accept(),
			newRule("").goTo(dropChain(state.DropPolicy)),
		}},
	)
}

// tunnelled goes on for what tunnels carry: on a port of their own, or by a protocol of their own.
func tunnelled(ports *set, size int) rule {
	return portsIn(ports, tunnelPorts, size, fieldDport).test(newRule(""))
}

// neighbourDiscovery passes what a host on an IPv6 link sends: multicast listener discovery (RFC 2710, RFC
// 3810), router solicitations, neighbour solicitations and advertisements (RFC 4861). They never leave the
// link, so they are asked for only where packets are for the node itself. What only routers send is not for pods to say.
func neighbourDiscovery() (rules []rule) {
	for _, types := range [][2]byte{{130, 133}, {135, 136}, {143, 143}} {
		rules = append(rules, newRule("").family(ipv6).proto(unix.IPPROTO_ICMPV6).icmpType(types[0], types[1]).accept())
	}
	return rules
}

func (p *program) strayChain() chain {
	return chain{name: "stray",
		comment: "a stray segment of a backend would be answered with a reset",
		rules: []rule{
			newRule("").family(ipv4).in([]field{ipv4.saddr}, p.fam[0].podCIDRs).drop(),
			newRule("").family(ipv6).in([]field{ipv6.saddr}, p.fam[1].podCIDRs).drop(),
		}}
}

// drops are the reasons that have a chain.
var drops = []state.Drop{state.DropSpoofed, state.DropUnknownPod, state.DropUnknownDevice, state.DropPolicy, state.DropHost, state.DropTunnel, state.DropCut, state.DropDenyList, state.DropForeignError}

func dropChain(reason state.Drop) string { return "drop-" + string(reason) }

// logged is the number of packets a second that are shown of each reason to
// those who listen; snap is how much of a packet.
const (
	logged = 200
	snap   = 128
)

// newDropChain tells whoever listens, and drops.
func newDropChain(reason state.Drop) chain {
	log := &expr.Log{Group: driver.DropGroup, Snaplen: snap, Data: []byte(driver.DropPrefix + string(reason)),
		Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN}
	counter := &expr.Objref{Type: objectCounter, Name: dropped + string(reason)}
	return chain{name: dropChain(reason), comment: "tell those who listen, and drop", rules: []rule{
		newRule("").add(&expr.Limit{Type: expr.LimitTypePkts, Rate: logged, Unit: expr.LimitTimeSecond, Burst: logged}, log),
		newRule("").add(counter).drop(),
	}}
}

// loopback is the index of lo in every network namespace.
const loopback = 1

// cutMask has the bit among a connection's labels which says that it is forbidden.
func cutMask() []byte {
	mask := make([]byte, 16)
	word := state.CutLabel / 32 * 4
	binary.NativeEndian.PutUint32(mask[word:], 1<<(state.CutLabel%32))
	return mask
}

// labelled loads the cut label: all bits but it are zero.
func (r rule) labelled() rule {
	return r.add(&expr.Ct{Key: expr.CtKeyLABELS, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 16, Mask: cutMask(), Xor: make([]byte, 16)})
}

// established goes on if the packet is in one of the states to a connection that is not cut.
func (r rule) established(states uint32) rule {
	return r.ct(expr.CtKeySTATE, states, expr.CmpOpNeq).
		labelled().compare(expr.CmpOpNeq, cutMask())
}

// cut goes on if the connection is cut.
func (r rule) cut() rule { return r.labelled().compare(expr.CmpOpEq, cutMask()) }

func (r rule) setCut() rule {
	return r.add(&expr.Immediate{Register: firstRegister, Data: cutMask()},
		&expr.Ct{Key: expr.CtKeyLABELS, Register: firstRegister, SourceRegister: true})
}

// loose goes on if the packet belongs to no connection that there is, or could be, or is about one.
func (r rule) loose() rule {
	return r.ct(expr.CtKeySTATE, expr.CtStateBitINVALID|expr.CtStateBitRELATED, expr.CmpOpNeq)
}

func (r rule) untracked() rule {
	return r.ct(expr.CtKeySTATE, expr.CtStateBitUNTRACKED, expr.CmpOpNeq)
}

// device goes on if the packet came in (or leaves) by the interface.
func (r rule) device(by field, index uint32) rule {
	r.load([]field{by})
	return r.compare(expr.CmpOpEq, binary.NativeEndian.AppendUint32(nil, index))
}

// wrongWay goes on if the way back to the source does not lead through the interface.
func (r rule) wrongWay() rule {
	return r.add(&expr.Fib{Register: firstRegister, FlagSADDR: true, FlagIIF: true, FlagPRESENT: true, ResultOIF: true}).
		compare(expr.CmpOpEq, []byte{0})
}

// between goes on if what is loaded is in the range.
func (r rule) between(load func(uint32) expression, from, to []byte) rule {
	return r.append(load(firstRegister)).add(&expr.Range{Op: expr.CmpOpEq, Register: firstRegister, FromData: from, ToData: to})
}

func (r rule) icmpType(from, to byte) rule {
	return r.between(payload(expr.PayloadBaseTransportHeader, 0, 1), []byte{from}, []byte{to})
}

func (r rule) goTo(to string) rule {
	return r.add(&expr.Verdict{Kind: expr.VerdictGoto, Chain: to})
}

func (r rule) ret() rule { return r.add(&expr.Verdict{Kind: expr.VerdictReturn}) }

func concat(lists ...[]rule) (all []rule) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}
