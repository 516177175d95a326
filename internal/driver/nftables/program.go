package nftables

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// TableName is the one table, of family inet, that the driver owns.
const TableName = "sluice"

// program is the constant part of the table: its sets and chains with their
// rules. It is the same on every node, whatever is balanced and permitted.
type program struct {
	sets   []*set
	chains []chain
	fam    [2]*familyProgram
	policy *policyProgram // nil: without policy
	notes  *set

	counters []string // named, beside those of policies
	limits   limits
	writings // of the programs of policy
}

// familyProgram is one address family's half of the program.
type familyProgram struct {
	ip family

	frontends, outside                          *set    // verdict maps: what a client addresses → the chain that serves it
	backends, localBackends                     [2]*set // a slot of a frontend → the backend in it; of small and of large size classes
	staged, restricted, sources                 *set
	affine, affinity, affineBackends, learn     *set
	learning                                    *set // what each frontend may still learn
	masquerade, hairpins                        *set
	clusterIPs, otherIPs                        *set
	serviceCIDRs, podCIDRs, keptCIDRs, ownCIDRs *set
	policy                                      *familyPolicy // nil: without policy
}

// family returns the half of the program for an address.
func (p *program) family(is4 bool) *familyProgram {
	if is4 {
		return p.fam[0]
	}
	return p.fam[1]
}

// affinitySize bounds the remembered clients of a family. A full map learns no more: new clients are balanced
// without affinity. So that one frontend cannot fill it, each learns a share of it at the most, see learnsTooMuch, and so that
// many cannot, the agent forgets the oldest clients of those that have most, see forgetter.
const affinitySize = 1 << 20

// newProgram returns the program for services, and for policy if it is asked for.
func newProgram(policy bool) *program {
	p := newSets(affinitySize)
	if policy {
		p.addPolicySets()
	}
	p.addChains()
	return p
}

func newSets(clients uint32) *program {
	p := &program{limits: usualLimits, writings: newWritings()}
	for i, f := range []family{ipv4, ipv6} {
		p.fam[i] = p.addFamily(f, clients)
	}
	p.notes = p.addSet(&set{
		name: "notes", key: []field{fieldMark},
		comment: "what the agent needs to know when it starts: a digest of each set's content",
	})
	return p
}

func (p *program) addChains() {
	p.addBaseChains()
	p.addFilterChains()
	for _, fp := range p.fam {
		p.addFamilyChains(fp)
	}
}

// hasChain reports whether the chain is one of the program's own.
func (p *program) hasChain(name string) bool {
	return slices.ContainsFunc(p.chains, func(c chain) bool { return c.name == name })
}

func (p *program) addSet(s *set) *set {
	s.id = uint32(len(p.sets) + 1)
	p.sets = append(p.sets, s)
	return s
}

func (p *program) addFamily(f family, clients uint32) *familyProgram {
	name := func(s string) string { return f.name + "-" + s }
	frontend := []field{f.daddr, fieldProto, fieldDport}
	fp := &familyProgram{ip: f}
	fp.frontends = p.addSet(&set{name: name("frontends"), key: frontend, verdict: true,
		comment: "service address and port : the chain that serves it"})
	fp.staged = p.addSet(&set{name: name("staged"), key: frontend,
		comment: "frontends that pass chain " + name("stages") + " first"})
	fp.outside = p.addSet(&set{name: name("outside"), key: frontend, verdict: true,
		comment: "externalTrafficPolicy Local: the chain that serves clients from outside"})
	slots := func(n, comment string) *set {
		return p.addSet(&set{name: name(n), typeof: true, comment: comment,
			key: []field{fieldSlot, f.daddr, fieldProto, fieldDport}, data: []field{f.daddr, fieldDport}})
	}
	// An element of a map costs the kernel a check against each rule that uses the map, so
	// the small classes, which most services are in, have maps of their own.
	fp.backends = [2]*set{
		slots("backends", fmt.Sprintf("slot and service address : backend; up to %d of a service", smallClass)),
		slots("many-backends", "the same, for services with more"),
	}
	fp.localBackends = [2]*set{
		slots("local", "the same as backends, but those on this node"),
		slots("many-local", "the same as many-backends, but those on this node"),
	}
	fp.restricted = p.addSet(&set{name: name("restricted"), key: frontend,
		comment: "frontends that only the sources in " + name("sources") + " may reach"})
	// nft 1.0.6 reads no typeof of five parts, and a mark is a number that it lists without.
	fp.sources = p.addSet(&set{name: name("sources"), key: []field{fieldMark, f.daddr, fieldProto, fieldDport, f.saddr},
		comment: "loadBalancerSourceRanges: length . service address . network"})
	fp.affine = p.addSet(&set{name: name("affine"), key: frontend,
		comment: "frontends with session affinity"})
	fp.affinity = p.addSet(&set{name: name("affinity"), typeof: true, dynamic: true, size: clients,
		key: []field{f.saddr, f.daddr, fieldProto, fieldDport}, data: []field{f.daddr, fieldDport},
		comment: "client and service address : the backend it was sent to"})
	fp.learning = p.addSet(&set{name: name("learning"), dynamic: true, size: 1 << 16, key: frontend,
		comment: "service address and how many clients it may learn"})
	fp.affineBackends = p.addSet(&set{name: name("affine-to"), typeof: true,
		key:     []field{f.daddr, fieldProto, fieldDport, f.daddr, fieldDport},
		comment: "service address and the backends that affinity may keep to"})
	fp.learn = p.addSet(&set{name: name("learn"), key: frontend, verdict: true,
		comment: "frontends with affinity : the chain that remembers, one for each time-out"})
	fp.masquerade = p.addSet(&set{name: name("masquerade"), key: frontend, verdict: true,
		comment: "external frontends : how their clients' addresses are treated"})
	fp.hairpins = p.addSet(&set{name: name("hairpins"), key: []field{f.saddr, f.daddr},
		comment: "endpoints on this node, twice: balanced back to themselves"})
	fp.clusterIPs = p.addSet(&set{name: name("cluster-ips"), key: []field{f.daddr},
		comment: "addresses of services: a port that has no frontend is rejected"})
	fp.otherIPs = p.addSet(&set{name: name("other-ips"), key: []field{f.daddr},
		comment: "addresses of services that another program serves"})
	cidrs := func(n, comment string) *set {
		return p.addSet(&set{name: name(n), key: []field{f.saddr}, interval: true, comment: comment})
	}
	fp.serviceCIDRs = cidrs("service-cidrs", "an address in here that no service has is dropped")
	fp.podCIDRs = cidrs("pod-cidrs", "sources that are pods")
	fp.keptCIDRs = cidrs("kept-cidrs", "sources that reach a cluster IP with their own address")
	fp.ownCIDRs = cidrs("own-cidrs", "sources that are this node's own pods")
	return fp
}

// chain is a chain with its rules; hook is nil for the regular ones.
type chain struct {
	name, comment string
	hook          *hook
	rules         []rule
}

// natHook is the kind of hook that sees the first packet of a connection alone.
const natHook = "nat"

type hook struct {
	kind     string // "nat", "filter"
	num      uint32
	priority int32
	device   string // of an ingress hook
}

// addBaseChains adds the chains that the kernel calls, one for each place that
// matters to a new connection.
func (p *program) addBaseChains() {
	dispatch := func(to string) []rule {
		return []rule{
			newRule("").family(ipv4).jump(ipv4.name + to),
			newRule("").family(ipv6).jump(ipv6.name + to),
		}
	}
	nat := func(num uint32, prio int32) *hook { return &hook{natHook, num, prio, ""} }
	p.chains = append(p.chains,
		chain{name: "prerouting", hook: nat(unix.NF_INET_PRE_ROUTING, -100), rules: append(p.beforeServices(), dispatch("-services")...),
			comment: "new connections from pods and from outside"},
		chain{name: "output", hook: nat(unix.NF_INET_LOCAL_OUT, -100), rules: dispatch("-services"),
			comment: "new connections of the node itself"},
		chain{name: "input", hook: nat(unix.NF_INET_LOCAL_IN, 100),
			rules:   append([]rule{newRule("").untranslated().accept()}, dispatch("-remember")...),
			comment: "new connections translated to the node itself"},
		chain{name: "postrouting", hook: nat(unix.NF_INET_POST_ROUTING, 100),
			rules:   append(append([]rule{newRule("").untranslated().accept()}, dispatch("-remember")...), dispatch("-source")...),
			comment: "new connections on their way out: remember the backend, masquerade"},
	)
}

func (p *program) addFamilyChains(fp *familyProgram) {
	f := fp.ip
	n := func(s string) string { return f.name + "-" + s }
	frontend := []field{f.daddr, fieldProto, fieldDport}
	fromClient := []field{f.saddr, f.daddr, fieldProto, fieldDport}
	p.chains = append(p.chains,
		chain{name: n("services"), comment: "where every new connection is looked up", rules: []rule{
			// A rule of its own and not a verdict of the map. To validate a verdict the kernel walks
			// all that can be reached behind every element, the maps of the stages included; and a
			// packet for which the stages come or go at this moment is served either way.
			newRule("").family(f).in(frontend, fp.staged).jump(n("stages")),
			newRule("").family(f).vmap(frontend, fp.frontends),
			newRule("a port that the service does not have").family(f).in([]field{f.daddr}, fp.clusterIPs).jump(n("reject")),
			newRule("an address that no service has").family(f).
				in([]field{f.daddr}, fp.serviceCIDRs).notIn([]field{f.daddr}, fp.otherIPs).drop(),
		}},
		chain{name: n("stages"), comment: "what some frontends have before the choice of a backend", rules: []rule{
			newRule("loadBalancerSourceRanges").family(f).in(frontend, fp.restricted).jump(n("sources")),
			newRule("session affinity").family(f).in(frontend, fp.affine).
				dnat(f, fp.affinity, fromClient...),
			newRule("externalTrafficPolicy Local, seen from outside").family(f).
				notIn([]field{f.saddr}, fp.podCIDRs).fromNode(false).vmap(frontend, fp.outside),
		}},
		fp.sourcesChain(),
		chain{name: n("reject"), comment: "nobody serves this: say so at once", rules: []rule{
			newRule("").proto(unix.IPPROTO_TCP).rejectTCP(),
			newRule("").reject(),
		}},
		chain{name: n("remember"), comment: "session affinity: learn or renew the chosen backend",
			rules: []rule{newRule("").vmap(f.origFrontend(), fp.learn)}},
		chain{name: n("forget"), comment: "the remembered backend is no longer one: the client's next try chooses anew",
			rules: []rule{newRule("").family(f).forget(f, fp.affinity), newRule("").drop()}},
		chain{name: n("source"), comment: "masquerade where the answer would not find its way back", rules: fp.sourceRules()},
		chain{name: n("masquerade"), comment: "external frontends: always", rules: []rule{newRule("").masquerade()}},
		chain{name: n("keep"), comment: "externalTrafficPolicy Local: the client's address is kept, but for the node's own and for pods of other nodes", rules: []rule{
			newRule("").fromNode(true).masquerade(),
			newRule("").family(f).in([]field{f.saddr}, fp.podCIDRs).notIn([]field{f.saddr}, fp.ownCIDRs).masquerade(),
			newRule("").family(f).in([]field{f.saddr, f.daddr}, fp.hairpins).masquerade(),
		}},
	)
	for _, size := range ladder {
		p.chains = append(p.chains, fp.pickChain(size, false), fp.pickChain(size, true))
	}
}

// sourceRules decide on the source address of a translated connection.
func (fp *familyProgram) sourceRules() []rule {
	f := fp.ip
	return []rule{
		newRule("").vmap(f.origFrontend(), fp.masquerade),
		newRule("balanced back to itself").family(f).in([]field{f.saddr, f.daddr}, fp.hairpins).masquerade(),
		// The source first: it is a pod's for most connections, and the set of a few prefixes is
		// at hand, while one of all cluster IPs is a trip to memory.
		newRule("a cluster IP, asked from outside the cluster").family(f).notIn([]field{f.saddr}, fp.keptCIDRs).
			in([]field{f.origDaddr}, fp.clusterIPs).masquerade(),
	}
}

// pickChain balances over a size class. Slots may be empty: a miss falls
// through to the next try, in the end to slot 0, which never is. A packet that
// is here while the last backend goes is dropped, never let through.
func (fp *familyProgram) pickChain(size int, local bool) chain {
	f := fp.ip
	c := chain{name: fp.pickName(size, local), comment: fmt.Sprintf("balance over %d slots", size)}
	slots := fp.slots(size, local)
	if local {
		c.comment += ", this node's backends"
	}
	for range tries(size) {
		c.rules = append(c.rules, newRule("").family(f).pick(f, uint32(size), slots))
	}
	if size > 1 {
		c.rules = append(c.rules, newRule("").family(f).pick(f, 1, slots))
	}
	c.rules = append(c.rules, newRule("").drop())
	return c
}

// slots is the map that holds the slots of the size class.
func (fp *familyProgram) slots(size int, local bool) *set {
	maps := fp.backends
	if local {
		maps = fp.localBackends
	}
	if size > smallClass {
		return maps[1]
	}
	return maps[0]
}

func (fp *familyProgram) pickName(size int, local bool) string {
	if local {
		return fmt.Sprintf("%s-pick-local-%d", fp.ip.name, size)
	}
	return fmt.Sprintf("%s-pick-%d", fp.ip.name, size)
}

// learnName is the chain that remembers for the given time-out.
func (fp *familyProgram) learnName(d time.Duration) string {
	return fmt.Sprintf("%s-learn-%d", fp.ip.name, int64(d/time.Second))
}

// learnChain remembers a connection's backend for the time-out. A rule has one
// time-out, so that there is a chain for each that services use.
func (fp *familyProgram) learnChain(d time.Duration) chain {
	f := fp.ip
	return chain{name: fp.learnName(d), comment: fmt.Sprintf("remember for %s", d), rules: []rule{
		newRule("").family(f).notIn(append(f.origFrontend(), f.daddr, fieldDport), fp.affineBackends).jump(fp.ip.name + "-forget"),
		// An update renews an element's time and leaves its data, which is right: an element that is
		// there is where this connection was sent, or where another one of the client, just before it.
		newRule("").family(f).remembered(f, fp.affinity).remember(f, fp.affinity, d).ret(),
		newRule("").family(f).learnsTooMuch(f, fp.learning, fp.affinity.size, d).ret(),
		newRule("").family(f).remember(f, fp.affinity, d),
	}}
}
