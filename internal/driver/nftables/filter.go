package nftables

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/nft"
	"sluice.dev/sluice/internal/state"
)

// This file is the constant part of policy: where packets are judged. What they are
// judged by is in judge.go.

// policyProgram are the sets of policy that both families share.
type policyProgram struct {
	podDevices, hostDevices *nft.Set
	checked                 *nft.Set // interfaces from which only what is routed back may come
	ports                   *nft.Set // blocks of ports
	before                  *nft.Set // host endpoints, by interface
	input, output           *nft.Set
	forwardIn, forwardOut   *nft.Set
}

// familyPolicy are the sets of policy of one family.
type familyPolicy struct {
	from, to *nft.Set // a pod's interface and address, a pod's address → its program
	ownPods  *nft.Set
	selves   *nft.Set
	members  *nft.Set // of groups and lists
	named    *nft.Set // ports by name
	denied   *nft.Set // addresses that deny lists hold
}

// addPolicySets adds what policy looks packets up in.
func (p *program) addPolicySets() {
	devices := func(name, comment string) *nft.Set {
		return p.addSet(&nft.Set{Name: name, Key: []nft.Field{nft.IIF}, Comment: comment})
	}
	hosts := func(name, comment string) *nft.Set {
		return p.addSet(&nft.Set{Name: name, Key: []nft.Field{nft.IIF}, Verdict: true, Comment: comment})
	}
	p.policy = &policyProgram{
		podDevices:  devices("pod-devices", "interfaces that lead to one pod each"),
		hostDevices: devices("host-devices", "the node's own interfaces"),
		checked:     devices("checked-devices", "interfaces that lead to pods, bridges too: what comes by them must be routed back by them"),
		ports: p.addSet(&nft.Set{Name: "ports", Typeof: true, Early: true,
			Key: []nft.Field{nft.Number, nft.L4Proto, nft.Dport}, Comment: "set . protocol . port, or first of a block of ports"}),
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
	add := func(name, comment string, s nft.Set) *nft.Set {
		s.Name, s.Comment, s.Early = f.Name+"-"+name, comment, !s.Verdict && len(s.Key) > 1
		return p.addSet(&s)
	}
	fp.policy = &familyPolicy{
		from: add("from", "interface and address of a pod of this node : what it may send",
			nft.Set{Key: []nft.Field{nft.IIF, f.Saddr}, Verdict: true}),
		to: add("to", "address of a pod of this node : what may reach it",
			nft.Set{Key: []nft.Field{f.Daddr}, Verdict: true}),
		ownPods: add("own-pods", "addresses of this node's pods, known or not",
			nft.Set{Key: []nft.Field{f.Saddr}, Interval: true}),
		selves: add("selves", "pods of this node, twice: what a pod sends to itself passes",
			nft.Set{Key: []nft.Field{f.Saddr, f.Daddr}}),
		members: add("members", "set . address, or set . network",
			nft.Set{Key: []nft.Field{nft.Number, f.Saddr}, Typeof: true}),
		named: add("named-ports", "set . address . protocol . port",
			nft.Set{Key: []nft.Field{nft.Number, f.Daddr, nft.L4Proto, nft.Dport}, Typeof: true}),
	}
	fp.policy.denied = p.addSet(newDeniedSet(f, 0))
}

// beforeServices judges what comes in by a host endpoint's interface before services are translated. Chains of
// type nat see new connections alone, so this costs established ones nothing.
func (p *program) beforeServices() []nft.Rule {
	if p.policy == nil {
		return nil
	}
	return []nft.Rule{nft.NewRule("").Vmap([]nft.Field{nft.IIF}, p.policy.before)}
}

// strayRules are about segments that connection tracking can make nothing of. One of a
// backend would arrive untranslated and be answered with a reset.
func (p *program) strayRules() (forward, input []nft.Rule) {
	return []nft.Rule{nft.NewRule("a stray segment").CtState(expr.CtStateBitINVALID).Proto(unix.IPPROTO_TCP).Drop()},
		[]nft.Rule{nft.NewRule("").CtState(expr.CtStateBitINVALID).Proto(unix.IPPROTO_TCP).Jump("stray")}
}

// addFilterChains adds the chains that see every packet. Those of an established connection end at
// their first rule.
func (p *program) addFilterChains() {
	strayForward, strayInput := p.strayRules()
	forward := nft.Chain{Name: "forward", Hook: nft.FilterHook(unix.NF_INET_FORWARD, 0), Comment: "what the node passes on"}
	input := nft.Chain{Name: "local-in", Hook: nft.FilterHook(unix.NF_INET_LOCAL_IN, 0), Comment: "what is for the node itself"}
	if p.policy == nil {
		forward.Rules, input.Rules = strayForward, strayInput
		p.chains = append(p.chains, forward, input, p.strayChain())
		return
	}
	h := p.policy
	cut := nft.NewRule("established, and forbidden since").CtLabel(expr.CmpOpEq, cutLabel()).Goto(dropChain(state.DropCut))
	begin := []nft.Rule{nft.NewRule("").CtState(expr.CtStateBitESTABLISHED).CtLabel(expr.CmpOpNeq, cutLabel()).Accept(), cut}
	both := func(to string) []nft.Rule {
		return []nft.Rule{nft.NewRule("").Family(nft.IPv4).Jump(nft.IPv4.Name + to), nft.NewRule("").Family(nft.IPv6).Jump(nft.IPv6.Name + to)}
	}
	forward.Rules = concat(begin, []nft.Rule{nft.NewRule("").CtState(expr.CtStateBitINVALID | expr.CtStateBitRELATED).Jump("loose-forward")}, both("-sent"), both("-received"), []nft.Rule{
		nft.NewRule("by doNotTrack").CtState(expr.CtStateBitUNTRACKED).Accept(),
		nft.NewRule("").Vmap([]nft.Field{nft.IIF}, h.forwardIn),
		nft.NewRule("").Vmap([]nft.Field{nft.OIF}, h.forwardOut),
	})
	input.Rules = concat(begin, []nft.Rule{
		nft.NewRule("").CtState(expr.CtStateBitINVALID | expr.CtStateBitRELATED).Jump("loose-in"),
		nft.NewRule("").Device(nft.IIF, loopback).Accept(),
		nft.NewRule("").Family(nft.IPv6).Proto(unix.IPPROTO_ICMPV6).Jump("neighbours"),
	}, both("-sent"), []nft.Rule{
		nft.NewRule("by doNotTrack").CtState(expr.CtStateBitUNTRACKED).Accept(),
		nft.NewRule("").Vmap([]nft.Field{nft.IIF}, h.input),
	})
	p.chains = append(p.chains,
		// Before fragments are put together (-400) and connections are tracked (-200), so that a pod has no part in either
		// under another's address.
		nft.Chain{Name: "arrival", Hook: nft.FilterHook(unix.NF_INET_PRE_ROUTING, -450),
			Comment: "what a pod sends has the pod's own address",
			Rules:   []nft.Rule{nft.NewRule("").In([]nft.Field{nft.IIF}, h.checked).WrongWay().Goto(dropChain(state.DropSpoofed))}},
		forward, input, p.strayChain(),
		p.looseChain("loose-forward", strayForward...),
		p.looseChain("loose-in", append(strayInput, nft.NewRule("").CtState(expr.CtStateBitINVALID).Return())...),
		nft.Chain{Name: "local-out", Hook: nft.FilterHook(unix.NF_INET_LOCAL_OUT, 0), Comment: "what the node itself sends",
			Rules: concat([]nft.Rule{nft.NewRule("").CtState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED).CtLabel(expr.CmpOpNeq, cutLabel()).Accept(), cut}, []nft.Rule{
				nft.NewRule("by doNotTrack").CtState(expr.CtStateBitUNTRACKED).Accept(),
				nft.NewRule("").Vmap([]nft.Field{nft.OIF}, h.output),
			})},
		nft.Chain{Name: "tunnels", Comment: "what tunnels carry: the node, or another one, would take what is inside for its own", Rules: []nft.Rule{
			tunnelled(h.ports, len(portBlocks)-1).In([]nft.Field{nft.IIF}, h.checked).Goto(dropChain(state.DropTunnel)),
			tunnelled(h.ports, 0).In([]nft.Field{nft.IIF}, h.checked).Goto(dropChain(state.DropTunnel)),
		}},
		nft.Chain{Name: "neighbours", Comment: "what a host on an IPv6 link needs", Rules: neighbourDiscovery()},
		nft.Chain{Name: "labels", Comment: "never entered: while this rule is there, connections have room for labels",
			Rules: []nft.Rule{nft.NewRule("").SetCtLabel(cutLabel())}},
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
func (p *program) looseChain(name string, stray ...nft.Rule) nft.Chain {
	return nft.Chain{Name: name, Comment: "of no connection, or about one", Rules: concat(stray, []nft.Rule{
		nft.NewRule("").Family(nft.IPv4).Proto(unix.IPPROTO_ICMP).ICMPType(3, 5).Jump(nft.IPv4.Name + "-errors"),
		nft.NewRule("").Family(nft.IPv4).Proto(unix.IPPROTO_ICMP).ICMPType(11, 12).Jump(nft.IPv4.Name + "-errors"),
		nft.NewRule("").Family(nft.IPv6).Proto(unix.IPPROTO_ICMPV6).ICMPType(0, 127).Jump(nft.IPv6.Name + "-errors"),
		nft.NewRule("").CtState(expr.CtStateBitRELATED).Accept(),
	})}
}

// addPodChains adds the chains that find a pod's program.
func (p *program) addPodChains(fp *familyProgram) {
	f, pods := fp.ip, fp.policy
	n := func(s string) string { return f.Name + "-" + s }
	unknown := nft.NewRule("of this node's pods, and none that is known").Family(f)
	stranger := []nft.Rule{
		nft.NewRule("it is routed there, and no pod is known").In([]nft.Field{nft.IIF}, p.policy.podDevices).Goto(dropChain(state.DropUnknownPod)),
		unknown.In([]nft.Field{f.Saddr}, pods.ownPods).Goto(dropChain(state.DropUnknownPod)),
		nft.NewRule("").NotIn([]nft.Field{nft.IIF}, p.policy.hostDevices).Goto(dropChain(state.DropUnknownDevice)),
	}
	p.chains = append(p.chains,
		nft.Chain{Name: n("sent"), Comment: "what may the source send", Rules: []nft.Rule{
			nft.NewRule("").Family(f).NotProto(unix.IPPROTO_TCP).Jump("tunnels"), // none is over TCP
			nft.NewRule("").Family(f).Vmap([]nft.Field{nft.IIF, f.Saddr}, pods.from),
			nft.NewRule("").Goto(n("stranger")),
		}},
		nft.Chain{Name: n("stranger"), Comment: "not from a pod that is known by this address at this interface", Rules: stranger},
		nft.Chain{Name: n("received"), Comment: "what may reach the destination", Rules: []nft.Rule{
			nft.NewRule("").Family(f).Vmap([]nft.Field{f.Daddr}, pods.to),
			unknown.In([]nft.Field{f.Daddr}, pods.ownPods).Goto(dropChain(state.DropUnknownPod)),
			nft.NewRule("leaves by a pod's interface, or by one of which nothing is known").
				NotIn([]nft.Field{nft.OIF}, p.policy.hostDevices).Goto(dropChain(state.DropUnknownPod)),
		}},
		nft.Chain{Name: n("errors"), Comment: "ICMP errors: a router on the way sends them, and of pods the connection's own ends", Rules: []nft.Rule{
			nft.NewRule("").NotIn([]nft.Field{nft.IIF}, p.policy.checked).Return(),
			nft.NewRule("of the pod that opened the connection").Family(f).In([]nft.Field{f.Saddr, f.OrigSaddr}, pods.selves).Return(),
			nft.NewRule("of the pod that answers").Family(f).In([]nft.Field{f.Saddr, f.ReplySaddr}, pods.selves).Return(),
			nft.NewRule("").Goto(dropChain(state.DropForeignError)),
		}},
		nft.Chain{Name: n("refused"), Comment: "but a pod always reaches itself", Rules: []nft.Rule{
			nft.NewRule("").Family(f).In([]nft.Field{f.Saddr, f.Daddr}, pods.selves).Accept(),
			nft.NewRule("").Goto(dropChain(state.DropPolicy)),
		}},
	)
}

// tunnelled goes on for what tunnels carry: on a port of their own, or by a protocol of their own.
func tunnelled(ports *nft.Set, size int) nft.Rule {
	return portsIn(ports, tunnelPorts, size, nft.Dport).test(nft.NewRule(""))
}

// neighbourDiscovery passes what a host on an IPv6 link sends: multicast listener discovery (RFC 2710, RFC
// 3810), router solicitations, neighbour solicitations and advertisements (RFC 4861). They never leave the
// link, so they are asked for only where packets are for the node itself. What only routers send is not for pods to say.
func neighbourDiscovery() (rules []nft.Rule) {
	for _, types := range [][2]byte{{130, 133}, {135, 136}, {143, 143}} {
		rules = append(rules, nft.NewRule("").Family(nft.IPv6).Proto(unix.IPPROTO_ICMPV6).ICMPType(types[0], types[1]).Accept())
	}
	return rules
}

func (p *program) strayChain() nft.Chain {
	return nft.Chain{Name: "stray",
		Comment: "a stray segment of a backend would be answered with a reset",
		Rules: []nft.Rule{
			nft.NewRule("").Family(nft.IPv4).In([]nft.Field{nft.IPv4.Saddr}, p.fam[0].podCIDRs).Drop(),
			nft.NewRule("").Family(nft.IPv6).In([]nft.Field{nft.IPv6.Saddr}, p.fam[1].podCIDRs).Drop(),
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
func newDropChain(reason state.Drop) nft.Chain {
	log := &expr.Log{Group: driver.DropGroup, Snaplen: snap, Data: []byte(driver.DropPrefix + string(reason)),
		Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN}
	return nft.Chain{Name: dropChain(reason), Comment: "tell those who listen, and drop", Rules: []nft.Rule{
		nft.NewRule("").Add(&expr.Limit{Type: expr.LimitTypePkts, Rate: logged, Unit: expr.LimitTimeSecond, Burst: logged}, log),
		nft.NewRule("").Count(dropped + string(reason)).Drop(),
	}}
}

// loopback is the index of lo in every network namespace.
const loopback = 1

// cutLabel is the label of a connection that is forbidden.
func cutLabel() []byte {
	mask := make([]byte, 16)
	word := state.CutLabel / 32 * 4
	binary.NativeEndian.PutUint32(mask[word:], 1<<(state.CutLabel%32))
	return mask
}

func concat(lists ...[]nft.Rule) (all []nft.Rule) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}
