package nftables

import "sluice.dev/sluice/internal/driver/nftables/nft"

import (
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"
)

// TableName is the one table, of family inet, that the driver owns.
const TableName = "sluice"

// tableComment is what the table says of itself.
const tableComment = "Sluice's services. It is kept in step by sluice run and removed by sluice cleanup."

// program is the constant part of the table: its sets and chains with their
// rules. It is the same on every node, whatever is balanced and permitted.
type program struct {
	sets   []*nft.Set
	chains []nft.Chain
	fam    [2]*familyProgram
	policy *policyProgram // nil: without policy
	notes  *nft.Set

	counters []string // named, beside those of policies
	limits   limits
	writings // of the programs of policy
}

// familyProgram is one address family's half of the program.
type familyProgram struct {
	ip nft.Family

	frontends, outside                          *nft.Set    // verdict maps: what a client addresses → the chain that serves it
	backends, localBackends                     [2]*nft.Set // a slot of a frontend → the backend in it; of small and of large size classes
	staged, restricted, sources                 *nft.Set
	affine, affinity, affineBackends, learn     *nft.Set
	learning                                    *nft.Set // what each frontend may still learn
	masquerade, hairpins                        *nft.Set
	clusterIPs, otherIPs                        *nft.Set
	serviceCIDRs, podCIDRs, keptCIDRs, ownCIDRs *nft.Set
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
// without affinity. So that one frontend cannot fill it, each learns a share of it at the most, see learnChain, and so that
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
	for i, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		p.fam[i] = p.addFamily(f, clients)
	}
	p.notes = p.addSet(&nft.Set{
		Name: "notes", Key: []nft.Field{nft.Mark},
		Comment: "what the agent needs to know when it starts: a digest of each set's content",
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
	return slices.ContainsFunc(p.chains, func(c nft.Chain) bool { return c.Name == name })
}

// ofPolicy reports whether the set is one of policy's, which come after all others.
func (p *program) ofPolicy(s *nft.Set) bool { return p.policy != nil && s.ID >= p.policy.podDevices.ID }

func (p *program) addSet(s *nft.Set) *nft.Set {
	s.ID = uint32(len(p.sets) + 1)
	p.sets = append(p.sets, s)
	return s
}

func (p *program) addFamily(f nft.Family, clients uint32) *familyProgram {
	name := func(s string) string { return f.Name + "-" + s }
	frontend := []nft.Field{f.Daddr, nft.L4Proto, nft.Dport}
	fp := &familyProgram{ip: f}
	fp.frontends = p.addSet(&nft.Set{Name: name("frontends"), Key: frontend, Verdict: true,
		Comment: "service address and port : the chain that serves it"})
	fp.staged = p.addSet(&nft.Set{Name: name("staged"), Key: frontend,
		Comment: "frontends that pass chain " + name("stages") + " first"})
	fp.outside = p.addSet(&nft.Set{Name: name("outside"), Key: frontend, Verdict: true,
		Comment: "externalTrafficPolicy Local: the chain that serves clients from outside"})
	slots := func(n, comment string) *nft.Set {
		return p.addSet(&nft.Set{Name: name(n), Typeof: true, Comment: comment,
			Key: []nft.Field{nft.Number, f.Daddr, nft.L4Proto, nft.Dport}, Data: []nft.Field{f.Daddr, nft.Dport}})
	}
	// An element of a map costs the kernel a check against each rule that uses the map, so
	// the small classes, which most services are in, have maps of their own.
	fp.backends = [2]*nft.Set{
		slots("backends", fmt.Sprintf("slot and service address : backend; up to %d of a service", smallClass)),
		slots("many-backends", "the same, for services with more"),
	}
	fp.localBackends = [2]*nft.Set{
		slots("local", "the same as backends, but those on this node"),
		slots("many-local", "the same as many-backends, but those on this node"),
	}
	fp.restricted = p.addSet(&nft.Set{Name: name("restricted"), Key: frontend,
		Comment: "frontends that only the sources in " + name("sources") + " may reach"})
	// nft 1.0.6 reads no typeof of five parts, and a mark is a number that it lists without.
	fp.sources = p.addSet(&nft.Set{Name: name("sources"), Key: []nft.Field{nft.Mark, f.Daddr, nft.L4Proto, nft.Dport, f.Saddr},
		Comment: "loadBalancerSourceRanges: length . service address . network"})
	fp.affine = p.addSet(&nft.Set{Name: name("affine"), Key: frontend,
		Comment: "frontends with session affinity"})
	fp.affinity = p.addSet(&nft.Set{Name: name("affinity"), Typeof: true, Dynamic: true, Size: clients,
		Key: []nft.Field{f.Saddr, f.Daddr, nft.L4Proto, nft.Dport}, Data: []nft.Field{f.Daddr, nft.Dport},
		Comment: "client and service address : the backend it was sent to"})
	fp.learning = p.addSet(&nft.Set{Name: name("learning"), Dynamic: true, Size: 1 << 16, Key: frontend,
		Comment: "service address and how many clients it may learn"})
	fp.affineBackends = p.addSet(&nft.Set{Name: name("affine-to"), Typeof: true,
		Key:     []nft.Field{f.Daddr, nft.L4Proto, nft.Dport, f.Daddr, nft.Dport},
		Comment: "service address and the backends that affinity may keep to"})
	fp.learn = p.addSet(&nft.Set{Name: name("learn"), Key: frontend, Verdict: true,
		Comment: "frontends with affinity : the chain that remembers, one for each time-out"})
	fp.masquerade = p.addSet(&nft.Set{Name: name("masquerade"), Key: frontend, Verdict: true,
		Comment: "external frontends : how their clients' addresses are treated"})
	fp.hairpins = p.addSet(&nft.Set{Name: name("hairpins"), Key: []nft.Field{f.Saddr, f.Daddr},
		Comment: "endpoints on this node, twice: balanced back to themselves"})
	fp.clusterIPs = p.addSet(&nft.Set{Name: name("cluster-ips"), Key: []nft.Field{f.Daddr},
		Comment: "addresses of services: a port that has no frontend is rejected"})
	fp.otherIPs = p.addSet(&nft.Set{Name: name("other-ips"), Key: []nft.Field{f.Daddr},
		Comment: "addresses of services that another program serves"})
	cidrs := func(n, comment string) *nft.Set {
		return p.addSet(&nft.Set{Name: name(n), Key: []nft.Field{f.Saddr}, Interval: true, Comment: comment})
	}
	fp.serviceCIDRs = cidrs("service-cidrs", "an address in here that no service has is dropped")
	fp.podCIDRs = cidrs("pod-cidrs", "sources that are pods")
	fp.keptCIDRs = cidrs("kept-cidrs", "sources that reach a cluster IP with their own address")
	fp.ownCIDRs = cidrs("own-cidrs", "sources that are this node's own pods")
	return fp
}

// create adds the program's sets and counters, but for those that are there, and its chains.
func (p *program) create(b *nft.Batch, there map[*nft.Set]bool, counted map[string]bool) {
	for _, name := range p.counters {
		if !counted[name] {
			b.AddCounter(name)
		}
	}
	for _, s := range p.sets {
		if !there[s] {
			b.AddSet(s)
		}
	}
	// All chains before the first rule, as rules refer to chains.
	for _, c := range p.chains {
		b.AddChain(c)
	}
	for _, c := range p.chains {
		b.AddRules(c)
	}
}

// addBaseChains adds the chains that the kernel calls, one for each place that
// matters to a new connection.
func (p *program) addBaseChains() {
	dispatch := func(to string) []nft.Rule {
		return []nft.Rule{
			nft.NewRule("").Family(nft.IPv4).Jump(nft.IPv4.Name + to),
			nft.NewRule("").Family(nft.IPv6).Jump(nft.IPv6.Name + to),
		}
	}
	p.chains = append(p.chains,
		nft.Chain{Name: "prerouting", Hook: nft.NATHook(unix.NF_INET_PRE_ROUTING, -100), Rules: append(p.beforeServices(), dispatch("-services")...),
			Comment: "new connections from pods and from outside"},
		nft.Chain{Name: "output", Hook: nft.NATHook(unix.NF_INET_LOCAL_OUT, -100), Rules: dispatch("-services"),
			Comment: "new connections of the node itself"},
		nft.Chain{Name: "input", Hook: nft.NATHook(unix.NF_INET_LOCAL_IN, 100),
			Rules:   append([]nft.Rule{nft.NewRule("").NotDNAT().Accept()}, dispatch("-remember")...),
			Comment: "new connections translated to the node itself"},
		nft.Chain{Name: "postrouting", Hook: nft.NATHook(unix.NF_INET_POST_ROUTING, 100),
			Rules:   append(append([]nft.Rule{nft.NewRule("").NotDNAT().Accept()}, dispatch("-remember")...), dispatch("-source")...),
			Comment: "new connections on their way out: remember the backend, masquerade"},
	)
}

func (p *program) addFamilyChains(fp *familyProgram) {
	f := fp.ip
	n := func(s string) string { return f.Name + "-" + s }
	frontend := []nft.Field{f.Daddr, nft.L4Proto, nft.Dport}
	fromClient := []nft.Field{f.Saddr, f.Daddr, nft.L4Proto, nft.Dport}
	p.chains = append(p.chains,
		nft.Chain{Name: n("services"), Comment: "where every new connection is looked up", Rules: []nft.Rule{
			// A rule of its own and not a verdict of the map. To validate a verdict the kernel walks
			// all that can be reached behind every element, the maps of the stages included; and a
			// packet for which the stages come or go at this moment is served either way.
			nft.NewRule("").Family(f).In(frontend, fp.staged).Jump(n("stages")),
			nft.NewRule("").Family(f).Vmap(frontend, fp.frontends),
			nft.NewRule("a port that the service does not have").Family(f).In([]nft.Field{f.Daddr}, fp.clusterIPs).Jump(n("reject")),
			nft.NewRule("an address that no service has").Family(f).
				In([]nft.Field{f.Daddr}, fp.serviceCIDRs).NotIn([]nft.Field{f.Daddr}, fp.otherIPs).Drop(),
		}},
		nft.Chain{Name: n("stages"), Comment: "what some frontends have before the choice of a backend", Rules: []nft.Rule{
			nft.NewRule("loadBalancerSourceRanges").Family(f).In(frontend, fp.restricted).Jump(n("sources")),
			nft.NewRule("session affinity").Family(f).In(frontend, fp.affine).
				DNAT(f, fp.affinity, fromClient),
			nft.NewRule("externalTrafficPolicy Local, seen from outside").Family(f).
				NotIn([]nft.Field{f.Saddr}, fp.podCIDRs).FromNode(false).Vmap(frontend, fp.outside),
		}},
		fp.sourcesChain(),
		nft.Chain{Name: n("reject"), Comment: "nobody serves this: say so at once", Rules: []nft.Rule{
			nft.NewRule("").Proto(unix.IPPROTO_TCP).RejectTCP(),
			nft.NewRule("").Reject(),
		}},
		nft.Chain{Name: n("remember"), Comment: "session affinity: learn or renew the chosen backend",
			Rules: []nft.Rule{nft.NewRule("").Vmap(origFrontend(f), fp.learn)}},
		nft.Chain{Name: n("forget"), Comment: "the remembered backend is no longer one: the client's next try chooses anew",
			Rules: []nft.Rule{nft.NewRule("").Family(f).Delete(fp.affinity, clientOf(f), []nft.Field{f.Daddr, nft.Dport}), nft.NewRule("").Drop()}},
		nft.Chain{Name: n("source"), Comment: "masquerade where the answer would not find its way back", Rules: fp.sourceRules()},
		nft.Chain{Name: n("masquerade"), Comment: "external frontends: always", Rules: []nft.Rule{nft.NewRule("").Masquerade()}},
		nft.Chain{Name: n("keep"), Comment: "externalTrafficPolicy Local: the client's address is kept, but for the node's own and for pods of other nodes", Rules: []nft.Rule{
			nft.NewRule("").FromNode(true).Masquerade(),
			nft.NewRule("").Family(f).In([]nft.Field{f.Saddr}, fp.podCIDRs).NotIn([]nft.Field{f.Saddr}, fp.ownCIDRs).Masquerade(),
			nft.NewRule("").Family(f).In([]nft.Field{f.Saddr, f.Daddr}, fp.hairpins).Masquerade(),
		}},
	)
	for _, size := range ladder {
		p.chains = append(p.chains, fp.pickChain(size, false), fp.pickChain(size, true))
	}
}

// sourceRules decide on the source address of a translated connection.
func (fp *familyProgram) sourceRules() []nft.Rule {
	f := fp.ip
	return []nft.Rule{
		nft.NewRule("").Vmap(origFrontend(f), fp.masquerade),
		nft.NewRule("balanced back to itself").Family(f).In([]nft.Field{f.Saddr, f.Daddr}, fp.hairpins).Masquerade(),
		// The source first: it is a pod's for most connections, and the set of a few prefixes is
		// at hand, while one of all cluster IPs is a trip to memory.
		nft.NewRule("a cluster IP, asked from outside the cluster").Family(f).NotIn([]nft.Field{f.Saddr}, fp.keptCIDRs).
			In([]nft.Field{f.OrigDaddr}, fp.clusterIPs).Masquerade(),
	}
}

// pickChain balances over a size class. Slots may be empty: a miss falls
// through to the next try, in the end to slot 0, which never is. A packet that
// is here while the last backend goes is dropped, never let through.
func (fp *familyProgram) pickChain(size int, local bool) nft.Chain {
	f := fp.ip
	c := nft.Chain{Name: fp.pickName(size, local), Comment: fmt.Sprintf("balance over %d slots", size)}
	slots := fp.slots(size, local)
	if local {
		c.Comment += ", this node's backends"
	}
	for range tries(size) {
		c.Rules = append(c.Rules, nft.NewRule("").Family(f).Pick(f, uint32(size), slots))
	}
	if size > 1 {
		c.Rules = append(c.Rules, nft.NewRule("").Family(f).Pick(f, 1, slots))
	}
	c.Rules = append(c.Rules, nft.NewRule("").Drop())
	return c
}

// slots is the map that holds the slots of the size class.
func (fp *familyProgram) slots(size int, local bool) *nft.Set {
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
		return fmt.Sprintf("%s-pick-local-%d", fp.ip.Name, size)
	}
	return fmt.Sprintf("%s-pick-%d", fp.ip.Name, size)
}

// learnName is the chain that remembers for the given time-out.
func (fp *familyProgram) learnName(d time.Duration) string {
	return fmt.Sprintf("%s-learn-%d", fp.ip.Name, int64(d/time.Second))
}

// learnChain remembers a connection's backend for the time-out. A rule has one
// time-out, so that there is a chain for each that services use.
func (fp *familyProgram) learnChain(d time.Duration) nft.Chain {
	f, client, backend := fp.ip, clientOf(fp.ip), []nft.Field{fp.ip.Daddr, nft.Dport}
	size := fp.affinity.Size
	return nft.Chain{Name: fp.learnName(d), Comment: fmt.Sprintf("remember for %s", d), Rules: []nft.Rule{
		nft.NewRule("").Family(f).NotIn(append(origFrontend(f), backend...), fp.affineBackends).Jump(fp.ip.Name + "-forget"),
		// An update renews an element's time and leaves its data, which is right: an element that is
		// there is where this connection was sent, or where another one of the client, just before it.
		nft.NewRule("").Family(f).HasData(fp.affinity, make([]byte, f.Bits/8), client).Update(fp.affinity, d, client, backend).Return(),
		nft.NewRule("").Family(f).OverLimit(fp.learning, max(1, uint64(size/learnRate)/uint64(d/time.Second)), size/learnBurst, d, origFrontend(f)).Return(),
		nft.NewRule("").Family(f).Update(fp.affinity, d, client, backend),
	}}
}

// Of a map of affinity, a frontend may fill 1/learnBurst at once, and 1/learnRate more over the time-out.
const (
	learnBurst = 16
	learnRate  = 2
)

// origFrontend is the key of the frontend that a translated connection's client asked for.
func origFrontend(f nft.Family) []nft.Field {
	return []nft.Field{f.OrigDaddr, nft.L4Proto, nft.CtOrigDport}
}

// clientOf is the key of the client and the frontend it asked for.
func clientOf(f nft.Family) []nft.Field { return append([]nft.Field{f.OrigSaddr}, origFrontend(f)...) }

// note identifies the program: a digest of all its messages.
func (p *program) note() string {
	var a nft.Attrs
	for _, s := range p.sets {
		if !p.resized(s) { // those have other names with other lists
			s.Write(&a, TableName)
		}
	}
	for _, c := range p.chains {
		c.Write(&a, TableName)
		for _, r := range c.Rules {
			r.Write(&a, TableName, c.Name)
		}
	}
	for _, fp := range p.fam {
		for _, r := range fp.learnChain(time.Second).Rules {
			r.Write(&a, TableName, "")
		}
	}
	return fmt.Sprintf("program %016x", xxhash.Sum64(a.B))
}
