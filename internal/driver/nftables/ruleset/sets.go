package ruleset

import (
	"fmt"
	"math/bits"

	"sluice.dev/sluice/internal/kernel/nft"
)

// All sets and maps of the table are in this file.

// Family is one address family's half of the ruleset.
type Family struct {
	IP nft.Family

	Frontends, outside                          *nft.Set    // verdict maps: what a client addresses → the chain that serves it
	Backends, localBackends                     [2]*nft.Set // a slot of a frontend → the backend in it; of small and of large size classes
	staged, restricted, Sources                 *nft.Set
	Affinity, affineBackends, learn             *nft.Set
	learning                                    *nft.Set // what each frontend may still learn
	masquerade, hairpins                        *nft.Set
	clusterIPs, OtherIPs                        *nft.Set
	serviceCIDRs, PodCIDRs, keptCIDRs, ownCIDRs *nft.Set          // lists of networks, see lists.go
	outgoing, pools                             *nft.Set          // the same; nil: without Options.Fabric
	snat, peers, vxlan, ipip                    *nft.Set          // nil: without Options.Fabric
	Policy                                      *familyPolicySets // nil: without policy
}

// policySets are the sets of policy that both families share.
type policySets struct {
	PodDevices, HostDevices *nft.Set
	again, againAll         *nft.Set // families, see again.go
	Checked                 *nft.Set // interfaces from which only what is routed back may come
	ports                   *nft.Set // blocks of ports
	before                  *nft.Set // host endpoints, by interface
	input, output           *nft.Set
	forwardIn, forwardOut   *nft.Set
	rawIn, rawOut           *nft.Set
}

// familyPolicySets are the sets of policy of one family.
type familyPolicySets struct {
	from, To  *nft.Set // a pod's interface and address, a pod's address → its rules
	ownPods   *nft.Set // a list of networks
	again     *nft.Set // addresses, see again.go
	selves    *nft.Set
	members   *nft.Set // of groups and lists
	named     *nft.Set // ports by name
	denied    *nft.Set // addresses that deny lists hold
	Answering *nft.Set // connections, see again.go
}

func (rs *Ruleset) addFamily(f nft.Family, clients uint32) *Family {
	name := func(s string) string { return f.Name + "-" + s }
	frontend := []nft.Field{f.Daddr, nft.L4Proto, nft.Dport}
	fp := &Family{IP: f}
	fp.Frontends = rs.AddSet(&nft.Set{Name: name("frontends"), Key: frontend, Verdict: true,
		Comment: "service address and port : the chain that serves it"})
	fp.staged = rs.AddSet(&nft.Set{Name: name("staged"), Key: frontend,
		Comment: "frontends that pass chain " + name("stages") + " first"})
	fp.outside = rs.AddSet(&nft.Set{Name: name("outside"), Key: frontend, Verdict: true,
		Comment: "externalTrafficPolicy Local: the chain that serves clients from outside"})
	slots := func(n, comment string) *nft.Set {
		return rs.AddSet(&nft.Set{Name: name(n), Typeof: true, Comment: comment,
			Key: []nft.Field{nft.Number, f.Daddr, nft.L4Proto, nft.Dport}, Data: []nft.Field{f.Daddr, nft.Dport}})
	}
	// An element of a map costs the kernel a check against each rule that uses the map, so
	// the small classes, which most services are in, have maps of their own.
	fp.Backends = [2]*nft.Set{
		slots("backends", fmt.Sprintf("slot and service address : backend; up to %d of a service", smallClass)),
		slots("many-backends", "the same, for services with more"),
	}
	fp.localBackends = [2]*nft.Set{
		slots("local", "the same as backends, but those on this node"),
		slots("many-local", "the same as many-backends, but those on this node"),
	}
	fp.restricted = rs.AddSet(&nft.Set{Name: name("restricted"), Key: frontend,
		Comment: "frontends that only the sources in " + name("sources") + " may reach"})
	// nft 1.0.6 reads no typeof of five parts, and a mark is a number that it lists without.
	fp.Sources = rs.AddSet(&nft.Set{Name: name("sources"), Key: []nft.Field{nft.Mark, f.Daddr, nft.L4Proto, nft.Dport, f.Saddr},
		Comment: "loadBalancerSourceRanges: length . service address . network"})
	fp.Affinity = rs.AddSet(&nft.Set{Name: name("affinity"), Typeof: true, Dynamic: true, Size: clients,
		Key: []nft.Field{f.Saddr, f.Daddr, nft.L4Proto, nft.Dport}, Data: []nft.Field{f.Daddr, nft.Dport},
		Comment: "client and service address : the backend it was sent to"})
	fp.learning = rs.AddSet(&nft.Set{Name: name("learning"), Dynamic: true, Size: 1 << 16, Key: frontend,
		Comment: "service address and how many clients it may learn"})
	fp.affineBackends = rs.AddSet(&nft.Set{Name: name("affine-to"), Typeof: true,
		Key:     []nft.Field{f.Daddr, nft.L4Proto, nft.Dport, f.Daddr, nft.Dport},
		Comment: "service address and the backends that affinity may keep to"})
	fp.learn = rs.AddSet(&nft.Set{Name: name("learn"), Key: frontend, Verdict: true,
		Comment: "frontends with affinity : the chain that remembers, one for each time-out"})
	fp.masquerade = rs.AddSet(&nft.Set{Name: name("masquerade"), Key: frontend, Verdict: true,
		Comment: "external frontends : how their clients' addresses are treated"})
	fp.hairpins = rs.AddSet(&nft.Set{Name: name("hairpins"), Key: []nft.Field{f.Saddr, f.Daddr},
		Comment: "endpoints on this node, twice: balanced back to themselves"})
	fp.clusterIPs = rs.AddSet(&nft.Set{Name: name("cluster-ips"), Key: []nft.Field{f.Daddr},
		Comment: "addresses of services: a port that has no frontend is rejected"})
	fp.OtherIPs = rs.AddSet(&nft.Set{Name: name("other-ips"), Key: []nft.Field{f.Daddr}, Early: true,
		Comment: "addresses of services that another program serves"})
	fp.serviceCIDRs = rs.addList(f, "service-cidrs", "an address in here that no service has is dropped")
	fp.PodCIDRs = rs.addList(f, "pod-cidrs", "sources that are pods")
	fp.keptCIDRs = rs.addList(f, "kept-cidrs", "sources that reach a cluster IP with their own address")
	fp.ownCIDRs = rs.addList(f, "own-cidrs", "sources that are this node's own pods")
	return fp
}

// addFabric adds what decides on connections to the outside, and between nodes.
func (rs *Ruleset) addFabric(fp *Family) {
	fp.outgoing = rs.addList(fp.IP, "outgoing", "sources that reach the outside with the node's address")
	fp.pools = rs.addList(fp.IP, "pools", "addresses of pods: not the outside")
	fp.snat = rs.AddSet(&nft.Set{Name: fp.IP.Name + "-snat", Key: []nft.Field{nft.OIFName}, Data: []nft.Field{fp.IP.Saddr},
		Comment: "interface : the address that connections leave it with; by others they are masqueraded"})
	fp.peers = rs.AddSet(&nft.Set{Name: fp.IP.Name + "-peers", Key: []nft.Field{fp.IP.Saddr},
		Comment: "addresses of other nodes"})
	fp.vxlan = rs.AddSet(&nft.Set{Name: fp.IP.Name + "-vxlan", Key: []nft.Field{nft.L4Proto, nft.Dport},
		Comment: "ports where VXLAN from other nodes arrives"})
	fp.ipip = rs.AddSet(&nft.Set{Name: fp.IP.Name + "-ipip", Key: []nft.Field{fp.IP.Daddr},
		Comment: "addresses where IPIP from other nodes arrives"})
}

// slots is the map that holds the slots of the size class.
func (fp *Family) slots(size int, local bool) *nft.Set {
	maps := fp.Backends
	if local {
		maps = fp.localBackends
	}
	if size > smallClass {
		return maps[1]
	}
	return maps[0]
}

// addPolicySets adds what policy looks packets up in.
func (rs *Ruleset) addPolicySets() {
	devices := func(name, comment string) *nft.Set {
		return rs.AddSet(&nft.Set{Name: name, Key: []nft.Field{nft.IIF}, Comment: comment})
	}
	hosts := func(name, comment string) *nft.Set {
		return rs.AddSet(&nft.Set{Name: name, Key: []nft.Field{nft.IIF}, Verdict: true, Comment: comment})
	}
	rs.Policy = &policySets{
		PodDevices:  devices("pod-devices", "interfaces that lead to one pod each"),
		HostDevices: devices("host-devices", "the node's own interfaces"),
		Checked:     devices("checked-devices", "interfaces that lead to pods, bridges too: what comes by them must be routed back by them"),
		ports: rs.AddSet(&nft.Set{Name: "ports", Typeof: true, Early: true,
			Key: []nft.Field{nft.Number, nft.L4Proto, nft.Dport}, Comment: "set . protocol . port, or first of a block of ports"}),
		before:     hosts("host-before", "interface : its host endpoint's preDNAT policies"),
		input:      hosts("host-input", "interface : its host endpoint's policies towards the node"),
		output:     hosts("host-output", "interface : its host endpoint's policies from the node"),
		forwardIn:  hosts("host-forward-in", "interface : its host endpoint's policies for what it passes on"),
		forwardOut: hosts("host-forward-out", "interface : the same, on the way out"),
		rawIn:      hosts("host-raw-in", "interface : its host endpoint's doNotTrack policies"),
		rawOut:     hosts("host-raw-out", "interface : the same, on the way out"),
	}
	for _, fp := range rs.Families {
		rs.addFamilyPolicy(fp)
	}
	rs.addAgain()
}

func (rs *Ruleset) addFamilyPolicy(fp *Family) {
	f := fp.IP
	add := func(name, comment string, s nft.Set) *nft.Set {
		s.Name, s.Comment, s.Early = f.Name+"-"+name, comment, !s.Verdict && len(s.Key) > 1
		return rs.AddSet(&s)
	}
	fp.Policy = &familyPolicySets{
		from: add("from", "interface and address of a pod of this node : what it may send",
			nft.Set{Key: []nft.Field{nft.IIF, f.Saddr}, Verdict: true}),
		To: add("to", "address of a pod of this node : what may reach it",
			nft.Set{Key: []nft.Field{f.Daddr}, Verdict: true}),
		ownPods: rs.addList(f, "own-pods", "addresses of this node's pods, known or not"),
		selves: add("selves", "pods of this node, twice: what a pod sends to itself passes",
			nft.Set{Key: []nft.Field{f.Saddr, f.Daddr}}),
		members: add("members", "set . address, or set . network",
			nft.Set{Key: []nft.Field{nft.Number, f.Saddr}, Typeof: true}),
		named: add("named-ports", "set . address . protocol . port",
			nft.Set{Key: []nft.Field{nft.Number, f.Daddr, nft.L4Proto, nft.Dport}, Typeof: true}),
	}
	fp.Policy.denied = rs.AddSet(newDeniedSet(f, 0))
}

// smallestDenied is the size of the set for the shortest lists.
const smallestDenied = 1024

// deniedSize is the size of the set for so many addresses: a power of two.
func deniedSize(n int) uint32 {
	if n <= smallestDenied {
		return smallestDenied
	}
	return 1 << bits.Len(uint(n-1))
}

func newDeniedSet(f nft.Family, addresses int) *nft.Set {
	size := deniedSize(addresses)
	return &nft.Set{Name: fmt.Sprintf("%s-denied-%d", f.Name, size), Size: size, Key: []nft.Field{f.Saddr}, Early: true,
		Comment: "addresses on deny lists; networks are in " + f.Name + "-members, with numbers up to 128"}
}
