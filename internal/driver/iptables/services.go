package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// The chains that are always there. Packets enter by our jumps in the built-in chains:
//
//	table   chain        jumps to             what is seen
//	raw     PREROUTING,  SLUICE-UNTRACKED     packets between tunnels, if they are not tracked
//	        OUTPUT
//	nat     PREROUTING,  SLUICE-SERVICES      new connections: services
//	        OUTPUT
//	nat     POSTROUTING  SLUICE-POSTROUTING   new connections on their way out: masquerade
//	filter  FORWARD      SLUICE-FORWARD       new connections that no backend serves, stray segments
//	filter  INPUT        SLUICE-INPUT         the same
//	filter  INPUT        SLUICE-TUNNELS       what tunnels of the pod network take
//	filter  OUTPUT       SLUICE-UNSERVED      new connections that no backend serves
//
// SLUICE-SERVICES leads into a tree of chains, SLUICE-TREE (tree.go), and that to the chains of
// frontends, SLUICE-F-… (frontend.go). iptables rejects and drops in table filter alone: what is
// not translated meets SLUICE-UNSERVED there.
const (
	prefix          = "SLUICE-"
	servicesChain   = prefix + "SERVICES"
	treeChain       = prefix + "TREE"
	keepChain       = prefix + "KEEP"
	postChain       = prefix + "POSTROUTING"
	masqueradeChain = prefix + "MASQUERADE"
	unservedChain   = prefix + "UNSERVED"
	refuseChain     = prefix + "REFUSE"
	rejectChain     = prefix + "REJECT"
	forwardChain    = prefix + "FORWARD"
	inputChain      = prefix + "INPUT"
	strayChain      = prefix + dropInfix + string(state.DropStray)
	tunnelsChain    = prefix + "TUNNELS"
	untrackedChain  = prefix + "UNTRACKED"
)

// mark is the bit of a packet's mark by which a connection is masqueraded. It is taken off there.
const mark = "0x1000/0x1000"

// proxied is the bit by which the driver userspace leads packets to its proxy, as it does while one
// mode follows another.
const proxied = "0x10/0x10"

// tables are those that we have chains in, in the order in which they are changed.
var tables = []string{"raw", "mangle", "filter", "nat"}

// family is what differs between IPv4 and IPv6.
type family struct {
	v6     bool
	fabric bool
	apart  bool // see Options.Apart
}

// holds reports whether an address is of the family.
func (f family) holds(a netip.Addr) bool { return a.IsValid() && a.Is6() == f.v6 }

func (f family) bits() int {
	if f.v6 {
		return 128
	}
	return 32
}

// name is that of a set of the family.
func (f family) name(of string) string {
	if f.v6 {
		return prefix + "6-" + of
	}
	return prefix + "4-" + of
}

// The sets, by what they are called in both families.
const (
	setFrontends  = "FRONTENDS"  // served: some connections are translated
	setMasquerade = "MASQUERADE" // whose connections are masqueraded always
	setRefused    = "REFUSED"    // refused, unless it is dropped
	setDropped    = "DROPPED"    // dropped where it is not translated
	setSources    = "SOURCES"    // whom frontends with source ranges are open to
	setIPs        = "CLUSTER-IPS"
	setOthers     = "OTHER-IPS"
	setEndpoints  = "ENDPOINTS" // on this node
	setPeers      = "PEERS"
	setServices   = "SERVICE-CIDRS"
	setCluster    = "CLUSTER-CIDRS"
	setOwn        = "LOCAL-CIDRS"
	setKept       = "KEPT-CIDRS" // sources that reach cluster IPs with their own address
	setOutgoing   = "OUTGOING-CIDRS"
	setPools      = "POOL-CIDRS"
)

// kinds are the types of the sets that are always there.
var kinds = map[string]string{
	setFrontends: "hash:ip,port", setMasquerade: "hash:ip,port", setRefused: "hash:ip,port", setDropped: "hash:ip,port",
	setSources: "hash:ip,port,net", setIPs: "hash:ip", setOthers: "hash:ip", setEndpoints: "hash:ip",
	setServices: "hash:net", setCluster: "hash:net", setOwn: "hash:net", setKept: "hash:net",
}

// fabricKinds are those that are there where the pod network is ours.
var fabricKinds = map[string]string{setPeers: "hash:ip", setOutgoing: "hash:net", setPools: "hash:net"}

// in matches packets whose fields a set has, and notIn all others.
func (f family) in(set, fields string) string {
	return "-m set --match-set " + f.name(set) + " " + fields
}
func (f family) notIn(set, fields string) string {
	return "-m set ! --match-set " + f.name(set) + " " + fields
}

// settings adds what is there without any service.
func (f family) settings(s state.Settings, i *image) {
	for name, kind := range kinds {
		i.set(f.name(name), kind)
	}
	f.services(i)
	f.postrouting(s, i)
	f.filter(i)
	f.networks(i, setServices, s.ServiceCIDRs)
	f.networks(i, setCluster, s.ClusterCIDRs)
	f.networks(i, setOwn, s.LocalCIDRs)
	f.networks(i, setKept, f.keptSources(s))
	if !f.fabric {
		return
	}
	for name, kind := range fabricKinds {
		i.set(f.name(name), kind)
	}
	f.networks(i, setOutgoing, s.OutgoingCIDRs)
	f.networks(i, setPools, s.PoolCIDRs)
	f.tunnels(s, i)
}

func (f family) services(i *image) {
	i.rule("nat", "PREROUTING", "-j "+servicesChain)
	i.rule("nat", "OUTPUT", "-j "+servicesChain)
	setMark := "-j MARK --set-xmark " + mark
	i.rule("nat", servicesChain,
		f.notIn(setFrontends, "dst,dst")+" -j RETURN",
		f.in(setMasquerade, "dst,dst")+" "+setMark,
		f.notIn(setKept, "src")+" "+f.in(setIPs, "dst")+" "+setMark,
		"-g "+treeChain)
	// externalTrafficPolicy Local: the client's address is kept, except for the node's own and for
	// pods of other nodes.
	i.rule("nat", keepChain,
		"-m addrtype --src-type LOCAL "+setMark,
		f.in(setCluster, "src")+" "+f.notIn(setOwn, "src")+" "+setMark)
}

func (f family) postrouting(s state.Settings, i *image) {
	i.rule("nat", "POSTROUTING", "-j "+postChain)
	outgoing := f.in(setOutgoing, "src") + " " + f.notIn(setPools, "dst") + " -j MASQUERADE"
	translated := "-m conntrack --ctstate DNAT "
	i.rule("nat", postChain,
		translated+"-m bpf --bytecode "+f.hairpin()+" -j MASQUERADE",
		translated+"-m mark --mark "+mark+" -g "+masqueradeChain)
	if f.fabric {
		i.rule("nat", postChain, outgoing)
	}
	i.rule("nat", masqueradeChain, "-j MARK --set-xmark 0x0/0x1000")
	for _, a := range s.SNAT {
		if f.fabric && f.holds(a.Addr) {
			i.rule("nat", masqueradeChain, "-o "+a.Device+" -j SNAT --to-source "+a.Addr.String())
		}
	}
	i.rule("nat", masqueradeChain, "-j MASQUERADE")
}

// hairpin is a program for packets that go to where they come from. Only those of a backend that
// was balanced back to itself are so, and what a pod sends to itself.
func (f family) hairpin() string {
	if f.v6 {
		return f.equal(8, 24)
	}
	return f.equal(12, 16)
}

// equal is a program for packets in which the addresses at two places are equal, word by word.
func (f family) equal(one, other int) string {
	words := f.bits() / 32
	const load, toX, jumpIfX, ret = 0x20, 0x07, 0x1d, 0x06
	code := []string{fmt.Sprint(4*words + 2)}
	for w := range words {
		code = append(code, fmt.Sprintf("%d 0 0 %d", load, one+4*w), fmt.Sprintf("%d 0 0 0", toX),
			fmt.Sprintf("%d 0 0 %d", load, other+4*w), fmt.Sprintf("%d 0 %d 0", jumpIfX, 4*(words-1-w)+1))
	}
	code = append(code, fmt.Sprintf("%d 0 0 65535", ret), fmt.Sprintf("%d 0 0 0", ret))
	return `"` + strings.Join(code, ",") + `"`
}

func (f family) filter(i *image) {
	i.rule("filter", "FORWARD", "-m conntrack --ctstate INVALID,NEW -j "+forwardChain)
	i.rule("filter", "INPUT", "-m conntrack --ctstate INVALID,NEW -j "+inputChain)
	i.rule("filter", "OUTPUT", "-m conntrack --ctstate NEW -j "+unservedChain)
	// Connection tracking can make nothing of a stray segment. One of a backend would arrive
	// untranslated and be answered with a reset. Others are not ours.
	const stray = "-p tcp -m conntrack --ctstate INVALID "
	i.drop("filter", strayChain, state.DropStray)
	i.rule("filter", forwardChain, stray+f.in(setEndpoints, "src")+" -g "+strayChain, "-g "+unservedChain)
	i.rule("filter", inputChain, stray+f.in(setCluster, "src")+" -g "+strayChain, "-g "+unservedChain)
	i.rule("filter", unservedChain,
		"-m conntrack --ctstate INVALID,DNAT -j RETURN",
		"-m mark --mark "+proxied+" -j RETURN",
		f.in(setRefused, "dst,dst")+" -g "+refuseChain,
		f.in(setDropped, "dst,dst")+" -j DROP",
		f.in(setIPs, "dst")+" -m addrtype ! --dst-type LOCAL -g "+rejectChain, // IPVS has services at local addresses
		f.in(setServices, "dst")+" "+f.notIn(setOthers, "dst")+" -j DROP")
	i.rule("filter", refuseChain,
		f.in(setDropped, "dst,dst")+" "+f.notIn(setSources, "dst,dst,src")+" -j DROP",
		"-g "+rejectChain)
	unreachable := "icmp-port-unreachable"
	if f.v6 {
		unreachable = "icmp6-port-unreachable"
	}
	i.rule("filter", rejectChain, "-p tcp -j REJECT --reject-with tcp-reset", "-j REJECT --reject-with "+unreachable)
}

// tunnels has the node's own ends of tunnels take packets from nodes alone, and leaves those
// between nodes out of connection tracking if that is wanted.
func (f family) tunnels(s state.Settings, i *image) {
	for _, t := range s.Tunnels {
		if !f.holds(t.Addr) {
			continue
		}
		match := "-p 4 " // IPIP
		if t.Port > 0 {
			match = "-p udp -m udp --dport " + fmt.Sprint(t.Port) + " -m u32 --u32 " + f.vni() + " "
		}
		i.rule("filter", tunnelsChain, match+f.notIn(setPeers, "src")+" -j DROP")
		if s.Untracked {
			i.rule("raw", untrackedChain, match+f.in(setPeers, "src")+" -j CT --notrack", match+f.in(setPeers, "dst")+" -j CT --notrack")
		}
	}
	if i.chains[chain{"filter", tunnelsChain}] != nil {
		i.rule("filter", "INPUT", "-j "+tunnelsChain)
	}
	if i.chains[chain{"raw", untrackedChain}] != nil {
		i.rule("raw", "PREROUTING", "-j "+untrackedChain)
		i.rule("raw", "OUTPUT", "-j "+untrackedChain)
	}
}

// vni matches the number of the pod network in a VXLAN header, which follows that of UDP.
func (f family) vni() string {
	at := "0x0>>0x16&0x3c@0xc>>0x8"
	if f.v6 {
		at = "0x34>>0x8"
	}
	return fmt.Sprintf(`"%s=0x%x"`, at, state.VNI)
}

// keptSources are the sources that reach a cluster IP with their own address: the cluster's; all,
// where the cluster's are not known; none with --masquerade-all.
func (f family) keptSources(s state.Settings) []netip.Prefix {
	if s.MasqueradeAll {
		return nil
	}
	for _, c := range s.ClusterCIDRs {
		if f.holds(c.Addr()) {
			return s.ClusterCIDRs
		}
	}
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}

// networks adds the family's prefixes to a set.
func (f family) networks(i *image, of string, prefixes []netip.Prefix) {
	for _, p := range prefixes {
		if f.holds(p.Addr()) {
			for _, p := range halves(p) {
				i.set(f.name(of), "hash:net").elements[element{net: p}] = true
			}
		}
	}
}

// halves is the prefix, or the two halves of all addresses: ipset has no prefix of length 0.
func halves(p netip.Prefix) []netip.Prefix {
	if p.Bits() > 0 {
		return []netip.Prefix{p.Masked()}
	}
	upper := p.Addr().AsSlice()
	upper[0] = 0x80
	half, _ := netip.AddrFromSlice(upper)
	return []netip.Prefix{netip.PrefixFrom(p.Masked().Addr(), 1), netip.PrefixFrom(half, 1)}
}

// address adds an address to a set, if it is of the family.
func (f family) address(i *image, of string, a netip.Addr) {
	if f.holds(a) {
		i.set(f.name(of), "hash:ip").elements[element{addr: a}] = true
	}
}

// named is a name for what is told from others by a text: a chain's rules, or its prefix in a tree.
func named(kind, text string) string {
	sum := sha256.Sum256([]byte(text))
	return prefix + kind + "-" + base32.StdEncoding.EncodeToString(sum[:10])
}

func protocol(p model.Protocol) string { return strings.ToLower(p.String()) }
