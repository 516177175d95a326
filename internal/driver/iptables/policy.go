package iptables

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
)

// The chains of policy. Packets enter by our rules in the built-in chains:
//
//	table   chain        leads to            what is seen
//	raw     PREROUTING   SLUICE-P-ARRIVAL    what came by another interface than the way back leads to
//	filter  FORWARD,     SLUICE-P-DROP-cut   what policy forbids since it was established
//	        INPUT, OUTPUT
//	filter  FORWARD      SLUICE-P-FORWARD    what is not established
//	filter  INPUT        SLUICE-P-INPUT      the same
//	filter  OUTPUT       SLUICE-P-OUTPUT     new connections of the node, by host endpoints
//	filter  FORWARD,     SLUICE-P-AGAIN-…    what a change may be about that was just made (again.go)
//	        INPUT, OUTPUT
//	mangle  POSTROUTING  SLUICE-P-SERVICES   those to services: here the interface is known
//	mangle  PREROUTING   SLUICE-P-BEFORE     new connections, by preDNAT policies
//	raw     PREROUTING,  SLUICE-P-RAW-IN,    every packet, by deny lists and doNotTrack policies
//	        OUTPUT       SLUICE-P-RAW-OUT
//
// SLUICE-P-OUTPUT and the last four are there only where they are used.
//
// From there a packet passes SLUICE-P-SENT, where SLUICE-P-FROM, a tree of chains, finds the pod of
// its source, and SLUICE-P-RECEIVED, where SLUICE-P-TO finds that of its destination. They lead to
// the chains that the pods' rules become (judge.go), which return for what is allowed: the rules of
// other programs judge it, too.
//
// iptables knows interfaces by name. That of a pod is in the rule for the pod; what asks whether an
// interface is a pod's asks whether it is none of the node's own, which are few.
const (
	policyPrefix   = prefix + "P-"
	arrivalChain   = policyPrefix + "ARRIVAL"
	passChain      = policyPrefix + "FORWARD"
	localChain     = policyPrefix + "INPUT"
	ownInputChain  = policyPrefix + "LOCAL"
	sentChain      = policyPrefix + "SENT"
	fromChain      = policyPrefix + "FROM"
	strangerChain  = policyPrefix + "STRANGER"
	receivedChain  = policyPrefix + "RECEIVED"
	toChain        = policyPrefix + "TO"
	nobodyChain    = policyPrefix + "NOBODY"
	errorsChain    = policyPrefix + "ERRORS"
	foreignChain   = policyPrefix + "FOREIGN"
	neighbourChain = policyPrefix + "NEIGHBOURS"
	carriedChain   = policyPrefix + "CARRIED"
	tunnelledChain = policyPrefix + "TUNNELLED"
	deniedChain    = policyPrefix + "DENIED"
	anyChain       = policyPrefix + "ANY" // of pods without policies
	answersChain   = policyPrefix + "ANSWERS"
	outputChain    = policyPrefix + "OUTPUT"
	toServiceChain = policyPrefix + "SERVICES"
	beforeChain    = policyPrefix + "BEFORE"
	rawInChain     = policyPrefix + "RAW-IN"
	rawOutChain    = policyPrefix + "RAW-OUT"
	noTrackChain   = policyPrefix + "NOTRACK"
)

// policyKinds are the types of the sets of policy that are always there.
var policyKinds = map[string]string{setPods: "hash:net", setAgain: "hash:net", setAnswers: clientsKind, setAnswered: clientsKind}

const setPods = "P-POD-CIDRS"

func dropChain(reason state.Drop) string { return policyPrefix + dropInfix + string(reason) }

// dropInfix stands before the reason in the names of chains that drop, of policy and of services.
const dropInfix = "DROP-"

// judge writes the rules of endpoints, and keeps what they became from one change to the next.
type judge struct {
	family
	written map[writtenAt]*written
	names   map[int]string // of interfaces
}

type writtenAt struct {
	site string
	id   state.RulesID
}

// enforce returns what a policy becomes. What is kept judges in place of what is wanted.
func (j *judge) enforce(p *state.Policy, kept *keeping) *enforced {
	i, lookups := newImage(), map[lookup]bool{}
	for name, kind := range policyKinds {
		i.set(j.name(name), kind)
	}
	i.sets[j.name(setAgain)].timeout = true
	for _, name := range answering {
		s := i.sets[j.name(name)]
		s.timeout, s.most = true, driver.MostAnswering
	}
	j.networks(i, setPods, p.PodCIDRs)
	i.drops("raw", state.DropSpoofed)
	i.drops("filter", state.DropCut, state.DropUnknownPod, state.DropUnknownDevice, state.DropPolicy, state.DropTunnel, state.DropForeignError)
	j.forward(i)
	j.ends(p, i)
	j.strangers(p, i)
	if kept == nil {
		kept = &keeping{}
	}
	j.pods(p, kept.slots, i, lookups)
	j.deny(p, i, lookups)
	j.hosts(p, kept.slots, i, lookups)
	kept.apply(i)
	for l := range lookups {
		i.set(j.lookupName(l), lookupKinds[l.kind])
	}
	return &enforced{i, lookups}
}

// drops adds chains that tell whoever listens, and drop.
func (i *image) drops(table string, reasons ...state.Drop) {
	for _, reason := range reasons {
		if table == "filter" {
			i.rule(table, dropChain(reason), established(reason)...)
		}
		i.drop(table, dropChain(reason), reason)
	}
}

// drop adds such a chain.
func (i *image) drop(table, chain string, reason state.Drop) {
	i.rule(table, chain,
		fmt.Sprintf(`-m limit --limit 200/sec --limit-burst 200 -j NFLOG --nflog-prefix "%s%s" --nflog-group %d --nflog-size 128`, driver.DropPrefix, reason, driver.DropGroup),
		"-j DROP")
}

// forward adds the ways by which packets enter.
func (f family) forward(i *image) {
	i.rule("raw", "PREROUTING", "-m rpfilter --invert -j "+arrivalChain)
	cut := fmt.Sprintf(`-m connlabel --label "%d" -j %s`, state.CutLabel, dropChain(state.DropCut))
	for name, to := range map[string]string{"FORWARD": passChain, "INPUT": localChain, "OUTPUT": ""} {
		i.rule("filter", name, cut)
		if to != "" {
			i.rule("filter", name, "-m conntrack ! --ctstate ESTABLISHED -j "+to)
			i.judgedBy(name, to)
		}
		f.again(i, name)
	}
	f.answers(i)
	errors := "-p " + number(f.icmp()) + " -m conntrack --ctstate RELATED -g " + errorsChain
	const helped = "-m conntrack --ctstate RELATED -j RETURN" // what a helper expects, which administrators assign
	i.rule("filter", passChain, errors, helped,
		"-p "+number(f.icmp())+" -m conntrack --ctstate INVALID -j "+foreignChain,
		"-j "+sentChain, "-j "+receivedChain)
	i.rule("filter", localChain, "-i lo -j RETURN", errors, helped)
	if f.v6 {
		i.rule("filter", localChain, "-p ipv6-icmp -g "+neighbourChain)
		// What a host on a link sends. It never leaves the link, so that it is asked for only
		// where packets are for the node itself.
		for _, t := range []int{130, 131, 132, 133, 135, 136, 143} {
			i.rule("filter", neighbourChain, fmt.Sprintf("-p ipv6-icmp -m icmp6 --icmpv6-type %d -j RETURN", t))
		}
		i.rule("filter", neighbourChain, "-g "+ownInputChain)
	}
	i.rule("filter", localChain, "-g "+ownInputChain)
	i.rule("filter", ownInputChain, "-j "+sentChain)
}

// ends adds what judges a packet by its two ends, except for the pods themselves.
func (f family) ends(p *state.Policy, i *image) {
	if !p.PodTunnels {
		i.rule("filter", sentChain, "! -p tcp -j "+carriedChain) // no tunnel is over TCP
		to := " -g " + tunnelledChain
		i.rule("filter", carriedChain, "-p udp -m multiport --dports 4789,8472,6081"+to, "-p 4"+to, "-p 41"+to, "-p 47"+to)
	}
	i.rule("filter", sentChain, "-g "+fromChain)
	i.rule("filter", receivedChain, "-g "+toChain)
	i.rule("filter", strangerChain, f.in(setPods, "src")+" -g "+dropChain(state.DropUnknownPod))
	i.rule("filter", nobodyChain, f.in(setPods, "dst")+" -g "+dropChain(state.DropUnknownPod))
	// An ICMP error of a pod quotes a packet that was for the pod.
	own := f.equal(12, 44)
	if f.v6 {
		own = f.equal(8, 72)
	}
	i.rule("filter", errorsChain, "-m bpf --bytecode "+own+" -j RETURN", "-g "+foreignChain)
	i.rule("filter", deniedChain, "-m bpf --bytecode "+f.hairpin()+" -g "+unmatchedChain, "-g "+dropChain(state.DropPolicy))
	i.rule("filter", unmatchedChain, unmark.text)
	i.rule("filter", anyChain)
}

// strangers adds what becomes of packets by interfaces that are none of the node's own, and of what
// others send than pods are known to.
func (j *judge) strangers(p *state.Policy, i *image) {
	pods := maps.Clone(p.PodDevices)
	for _, w := range p.Workloads {
		pods[w.Device] = struct{}{}
	}
	var own, others []string // the node's own; of these, those that lead to no pod, as a bridge does
	for d := range p.HostDevices {
		name, is := j.names[d]
		if !is {
			continue
		}
		own = append(own, name)
		if _, leads := pods[d]; !leads {
			others = append(others, name)
		}
	}
	slices.Sort(own)
	slices.Sort(others)
	i.devices("raw", arrivalChain, "-i ", 0, others, "-g "+dropChain(state.DropSpoofed))
	i.devices("filter", tunnelledChain, "-i ", 0, others, "-g "+dropChain(state.DropTunnel))
	i.devices("filter", foreignChain, "-i ", 0, others, "-g "+dropChain(state.DropForeignError))
	i.devices("filter", strangerChain, "-i ", 0, own, "-g "+dropChain(state.DropUnknownDevice))
	i.devices("filter", nobodyChain, "-o ", 0, own, "-g "+dropChain(state.DropUnknownPod))
}

// devices adds rules that return for some interfaces, sorted, which have so many letters in common,
// and do something else for all others. Where there are many, the next letter leads on.
func (i *image) devices(table, name, option string, common int, names []string, otherwise string) {
	for len(names) > leafSize {
		letter, n := names[0][:common+1], 0
		for n < len(names) && strings.HasPrefix(names[n], letter) {
			n++
		}
		if len(letter) == len(names[0]) { // it is no more than that
			i.rule(table, name, option+names[0]+" -j RETURN")
			names = names[1:]
			continue
		}
		next := named("P-I", name+letter)
		i.rule(table, name, option+letter+"+ -g "+next)
		i.devices(table, next, option, common+1, names[:n], otherwise)
		names = names[n:]
	}
	for _, d := range names {
		i.rule(table, name, option+d+" -j RETURN")
	}
	i.rule(table, name, otherwise)
}

// pods adds the trees by which pods are found, and the chains of their rules.
func (j *judge) pods(p *state.Policy, kept map[slot]goal, i *image, lookups map[lookup]bool) {
	from, to := map[state.FrontendKey]goal{}, map[state.FrontendKey]goal{}
	for a, w := range p.Workloads {
		if !j.holds(a) {
			continue
		}
		to[state.FrontendKey{Addr: a}] = goal{chain: j.rulesChain(p, podSite, w.Ingress, i, lookups)}
		if name, is := j.names[w.Device]; is {
			from[state.FrontendKey{Addr: a}] = goal{device: " -i " + name, chain: j.rulesChain(p, podSite, w.Egress, i, lookups)}
		}
	}
	for s, g := range kept {
		switch key := (state.FrontendKey{Addr: s.addr}); s.chain {
		case fromChain:
			from[key] = g
		case toChain:
			to[key] = g
		}
	}
	for _, t := range []*tree{j.newTree(fromChain, "P-F", "-s ", "-g "+strangerChain, from), j.newTree(toChain, "P-T", "-d ", "-g "+nobodyChain, to)} {
		i.treeChains("filter", t, t.prefixes())
	}
}

// deny adds what drops packets of deny lists where they arrive.
func (j *judge) deny(p *state.Policy, i *image, lookups map[lookup]bool) {
	if len(p.Denied.Lists) == 0 || len(p.Denied.Devices) == 0 {
		return
	}
	i.drops("raw", state.DropDenyList)
	l := lookup{kind: denyLookup}
	lookups[l] = true
	for _, d := range p.Denied.Devices {
		i.rule("raw", rawInChain, "-i "+d.Name+" -m set --match-set "+j.lookupName(l)+" src -g "+dropChain(state.DropDenyList))
	}
	i.rule("raw", "PREROUTING", "-j "+rawInChain)
}

// hosts adds the chains of host endpoints' rules.
func (j *judge) hosts(p *state.Policy, kept map[slot]goal, i *image, lookups map[lookup]bool) {
	untracked := "-m conntrack --ctstate UNTRACKED -j RETURN"
	chains := map[slot]string{}
	for _, h := range p.Hosts {
		in, out := "-i "+h.Device, "-o "+h.Device
		for _, at := range []struct {
			site
			chain, device string
			id            state.RulesID
		}{
			{hostSite, passChain, in, h.ForwardIn}, {hostSite, passChain, out, h.ForwardOut},
			{hostSite, ownInputChain, in, h.Input}, {hostSite, outputChain, out, h.Output}, {earlySite, toServiceChain, out, h.Output},
			{earlySite, beforeChain, in, h.PreDNAT}, {rawSite, rawInChain, in, h.UntrackedIn}, {rawSite, rawOutChain, out, h.UntrackedOut},
		} {
			if at.id != "" {
				chains[slot{table: at.table, chain: at.chain, device: at.device}] = j.rulesChain(p, at.site, at.id, i, lookups)
			}
		}
	}
	for s, g := range kept {
		if s.device != "" {
			chains[s] = g.chain
		}
	}
	if len(chains) == 0 {
		return
	}
	i.rule("filter", passChain, untracked)
	i.rule("filter", ownInputChain, untracked)
	i.rule("raw", noTrackChain, "-j CT --notrack")
	for _, table := range []string{"raw", "mangle", "filter"} {
		i.drops(table, state.DropHost)
	}
	enter := map[string][]string{ // the rule by which packets come to a chain, and what comes first there
		outputChain:    {"OUTPUT", "-m conntrack ! --ctstate RELATED,ESTABLISHED ", untracked, "-m conntrack --ctstate DNAT -j RETURN"},
		toServiceChain: {"POSTROUTING", "-m conntrack --ctstate NEW ", "-m conntrack ! --ctstate DNAT -j RETURN", "-m addrtype ! --src-type LOCAL -j RETURN"},
		beforeChain:    {"PREROUTING", "-m conntrack --ctstate NEW "},
		rawInChain:     {"PREROUTING", ""},
		rawOutChain:    {"OUTPUT", ""},
	}
	sorted := slices.SortedFunc(maps.Keys(chains), func(a, b slot) int {
		return cmp.Or(strings.Compare(a.chain, b.chain), strings.Compare(a.device, b.device))
	})
	for _, s := range sorted {
		if _, is := i.chains[chain{s.table, s.chain}]; !is {
			i.rule(s.table, enter[s.chain][0], enter[s.chain][1]+"-j "+s.chain)
			if s.chain == outputChain {
				i.judgedBy("OUTPUT", s.chain)
			}
			i.rule(s.table, s.chain, enter[s.chain][2:]...)
		}
		i.rule(s.table, s.chain, s.device+" -j "+chains[s])
	}
}

// rulesChain adds the chains of an endpoint's rules and returns the first. Rules that the state
// lacks deny.
func (j *judge) rulesChain(p *state.Policy, at site, id state.RulesID, i *image, lookups map[lookup]bool) string {
	rules := p.Rules[id]
	switch {
	case id == "":
		return anyChain
	case rules == nil:
		return strings.TrimPrefix(at.denied, "-g ")
	}
	key := writtenAt{at.kind, id}
	w := j.written[key]
	if w == nil {
		w = j.write(at, rules)
		j.written[key] = w
	}
	for name, texts := range w.chains {
		i.chains[chain{at.table, name}] = texts
	}
	for l := range w.lookups {
		lookups[l] = true
	}
	return w.entry
}

// forget drops what is written of rules that a policy does not have any more.
func (j *judge) forget(p *state.Policy) {
	maps.DeleteFunc(j.written, func(k writtenAt, _ *written) bool { return p.Rules[k.id] == nil })
}

// fill adds the elements of some lookups.
func (f family) fill(i *image, p *state.Policy, l lookup) {
	s := i.set(f.lookupName(l), lookupKinds[l.kind])
	f.elements(p, l, func(e element) { s.elements[e] = true })
}

// whole adds all that a policy becomes.
func (j *judge) whole(p *state.Policy, kept *keeping, i *image) *enforced {
	return j.update(state.NewPolicy(), state.PolicyDelta{}, p, kept, &enforced{image: newImage()}, newImage(), i)
}

// update adds what a change of policy is about to the images before and after it. These images have
// all chains, as pods that come or go move others in the trees.
func (j *judge) update(have *state.Policy, d state.PolicyDelta, next *state.Policy, kept *keeping, was *enforced, before, after *image) *enforced {
	now := j.enforce(next, kept)
	before.add(was.image)
	after.add(now.image)
	old, changed := touched(have, d), touched(next, d)
	for l := range now.lookups {
		if was.lookups[l] {
			j.fill(before, old, l)
			j.fill(after, changed, l)
		} else {
			j.fill(after, next, l)
		}
	}
	return now
}

// enforced is what the kernel has of policy: the chains, and the sets without what comes and goes
// in them.
type enforced struct {
	*image
	lookups map[lookup]bool
}

// add adds what another image has.
func (i *image) add(o *image) {
	for c, rules := range o.chains {
		i.rule(c.table, c.name, rules...)
	}
	for name, s := range o.sets {
		own := i.set(name, s.kind)
		own.timeout = s.timeout
		maps.Copy(own.elements, s.elements)
	}
}
