package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
)

// TableName is the table, of family inet, that the driver owns.
const TableName = "sluice-farms"

const tableComment = "Sluice's farms. It is kept in step by sluice balance and removed by sluice cleanup."

// ruleset is what the table holds whatever the farms are: its sets, and the chains that packets
// enter by.
type ruleset struct {
	table.Layout
	families [2]*family
	// arrivals are what packets meet as they arrive by an interface, in this order.
	arrivals []arrival
	// answering are, by kind, the chains for answers of stateless farms' backends.
	answering [kinds][]nft.Chain
	covered   *nft.Set // interfaces whose packets meet lists as they arrive
	clients   uint32   // how many clients each of the sets that packets fill may hold
}

// kind is how a virtual address is looked up. All virtual addresses of a farm are of one kind.
type kind uint8

const (
	exact  kind = iota // an address and a port
	ranged             // a range of addresses, and one of ports
	kinds
)

// String is what names of sets and chains end in.
func (k kind) String() string { return [...]string{"", "-range"}[k] }

// family is the half of the ruleset for IPv4 or IPv6.
type family struct {
	ip nft.Family

	// By kind, keyed by virtual address: address . protocol . port.
	farms   [kinds]*nft.Set // the chain that serves
	slots   [kinds]*nft.Set // slot . virtual address : backend
	hosts   [kinds]*nft.Set // the same where the port stays
	out     [kinds]*nft.Set // what becomes of the client's address
	sources [kinds]*nft.Set // the address in place of the client's
	proxied [kinds]*nft.Set // where clients are answered in backends' place
	guards  [kinds]*nft.Set // what is asked of every packet
	after   [kinds]*nft.Set // what is left to be done for a connection with a backend
	numbers [kinds]*nft.Set // the farm's number, where virtual addresses share what is remembered

	stateless [kinds]*nft.Set // the chain that rewrites each packet
	answers   [kinds]*nft.Set // where a backend answers from : the address (and port) that clients asked

	listed  [kinds]*nft.Set // virtual address : the chain of the lists that its farm names
	owned   [kinds]*nft.Set // the same, of farms at every address of the machine
	members *nft.Set        // list . network
	errors  [kinds]*nft.Set // as listed, for ICMP errors that ingress leads to backends

	// Of ingress, by kind.
	direct [kinds]*nft.Set // virtual address : the chain that forwards each packet
	ways   [kinds]*nft.Set // slot . virtual address : interface and address of the backend
	common []*nft.Set      // the same for farms that are found by one look-up, by commonKeys

	backendSources *nft.Set // virtual address . backend : the address in place of the client's

	stages *nft.Set // stage . farm : what the farm does in it
	rates  *nft.Set // farm . source : new connections
	counts *nft.Set // farm . source : connections at once
	// backendLimits are how many connections a backend may have, by farm and backend, and
	// backendCounts these.
	backendLimits, backendCounts *nft.Set
	resets                       *nft.Set // address . port . source : resets
	refusals                     *nft.Set // where a backend answers from : how often it refuses
	memories                     []memory // of clients that stay on their backends
}

func newRuleset(clients uint32, mayMiss bool) *ruleset {
	rs := &ruleset{Layout: table.Layout{NFProto: unix.NFPROTO_INET, MayMiss: mayMiss}, clients: clients}
	for i, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		rs.families[i] = rs.newFamily(f)
		for k := range kinds {
			rs.arrivals = append(rs.arrivals, arrival{chain: listedName(rs.families[i], k), at: rs.families[i]})
		}
	}
	for k := range kinds {
		rs.answering[k] = rs.answersChains(k)
	}
	rs.covered = rs.set("covered", "interfaces with a chain of their own", nft.Set{Key: []nft.Field{nft.IIF}, Late: true})
	rs.Notes = rs.set("notes", "what the agent needs to know when it starts", nft.Set{Key: []nft.Field{nft.Mark}})
	return rs
}

func (rs *ruleset) family(is4 bool) *family { return rs.families[familyIndex(is4)] }

// set adds a set.
func (rs *ruleset) set(name, comment string, s nft.Set) *nft.Set {
	s.Name, s.Comment = name, comment
	s.Early = s.Early || !s.Verdict && !s.Dynamic && !s.Late
	rs.AddSet(&s)
	if rs.MayMiss && s.Verdict && s.Ranges {
		next := s
		next.Name, next.Comment = name+"-next", "the same, while it changes"
		next.Late = true // what a change that did not end has left there goes before what comes
		s.StandIn = rs.AddSet(&next)
	}
	return &s
}

func (rs *ruleset) newFamily(ip nft.Family) *family {
	fp := &family{ip: ip}
	set := func(name, comment string, s nft.Set) *nft.Set { return rs.set(ip.Name+"-"+name, comment, s) }
	for k := range kinds {
		byDest := func(name, comment string, s nft.Set) *nft.Set {
			s.Key, s.Ranges = append(s.Key[:len(s.Key):len(s.Key)], fp.dest()...), k != exact
			return set(name+k.String(), comment, s)
		}
		slot := []nft.Field{nft.Mark}
		fp.slots[k] = byDest("slots", "slot . place : backend", nft.Set{Key: slot, Data: []nft.Field{ip.Daddr, nft.Dport}, Counted: true})
		fp.hosts[k] = byDest("hosts", "slot . place : backend, at the port that the client asked for", nft.Set{Key: slot, Data: []nft.Field{ip.Daddr}, Counted: true})
		fp.numbers[k] = byDest("numbers", "place : number of the farm", nft.Set{Data: []nft.Field{nft.Mark}})
		fp.sources[k] = byDest("sources", "place : address in place of the client's", nft.Set{Data: []nft.Field{ip.Saddr}})
		fp.after[k] = byDest("after", "place : what is left to be done for a connection with a backend", nft.Set{Verdict: true})
		fp.out[k] = byDest("out", "place : what becomes of the client's address", nft.Set{Verdict: true})
		fp.proxied[k] = byDest("proxied", "places where clients are answered in backends' place", nft.Set{})
		fp.guards[k] = byDest("guards", "place : what is asked of every packet", nft.Set{Verdict: true})
		fp.stateless[k] = byDest("stateless", "place where clients find a stateless farm : the chain that serves it", nft.Set{Verdict: true})
		fp.listed[k] = byDest("listed", "place : the chain of the lists that its farm names", nft.Set{Verdict: true})
		if k == ranged {
			fp.owned[k] = byDest("owned", "the same, for farms at every address of the machine", nft.Set{Verdict: true})
		}
		fp.errors[k] = byDest("errors", "place that an ICMP error is about : the chain of the lists that its farm names", nft.Set{Verdict: true})
		fp.answers[k] = fp.answersSet(set, k)
		fp.farms[k] = byDest("farms", "place where clients find a farm : the chain that serves it", nft.Set{Verdict: true})
	}
	fp.backendSources = set("backend-sources", "place . backend : address in place of the client's",
		nft.Set{Key: append(fp.dest(), ip.Daddr), Data: []nft.Field{ip.Saddr}})
	fp.members = set("members", "list . network", nft.Set{Key: []nft.Field{nft.Mark, ip.Saddr}})
	fp.addMemory(rs, set)
	return fp
}

// addMemory adds what is known of clients.
func (fp *family) addMemory(rs *ruleset, set func(name, comment string, s nft.Set) *nft.Set) {
	number, backend := []nft.Field{nft.Mark}, []nft.Field{fp.ip.Daddr, nft.Dport}
	source := append(number[:1:1], fp.ip.Saddr)
	fp.stages = set("stages", "stage . farm : what it does in the stage", nft.Set{Key: []nft.Field{nft.Mark, nft.Mark}, Verdict: true, Early: true})
	fp.rates = set("rates", "farm . source : how often it connects", nft.Set{Key: source, Dynamic: true, Size: rs.clients})
	fp.counts = set("counts", "farm . source : its connections", nft.Set{Key: source, Dynamic: true, Counts: true, Size: rs.clients})
	fp.backendLimits = set("backend-limits", "farm . backend : how many connections it may have", nft.Set{Key: append(number[:1:1], backend...), Verdict: true})
	fp.backendCounts = set("backend-counts", "farm . backend : its connections",
		nft.Set{Key: append(number[:1:1], backend...), Dynamic: true, Counts: true, Size: rs.clients})
	fp.resets = set("resets", "address . port . source : how often it resets",
		nft.Set{Key: []nft.Field{fp.ip.Daddr, nft.Dport, fp.ip.Saddr}, Dynamic: true, Size: rs.clients})
	fp.refusals = set("refusals", "where a backend answers from : how often it refuses connections",
		nft.Set{Key: []nft.Field{fp.ip.Saddr, nft.L4Proto, nft.Sport}, Dynamic: true, Size: rs.clients})
	for i, parts := range forms {
		key, suffix := number[:1:1], [...]string{"", "-ether"}[i]
		for _, part := range parts {
			key = append(key, fp.flow(part)...)
		}
		fp.memories = append(fp.memories, memory{
			parts:    parts,
			sessions: set("sessions"+suffix, "farm . client : the backend that it was given", nft.Set{Key: key, Data: backend}),
			clients:  set("clients"+suffix, "farm . client : the backend that it stays on", nft.Set{Key: key, Data: backend, Dynamic: true, Size: rs.clients}),
		})
	}
}

// dest are the fields by which a farm is found.
func (fp *family) dest() []nft.Field { return []nft.Field{fp.ip.Daddr, fp.ip.Transport, fp.ip.Dport} }

// quoted is the family as ICMP errors have it that are about what backends have sent to clients:
// farms and backends are found by it as for what these clients send.
func (fp *family) quoted() *family {
	q := *fp
	q.ip = fp.ip.Quoted()
	return &q
}

// origDest are the same of a connection that has been translated.
func (fp *family) origDest() []nft.Field {
	return []nft.Field{fp.ip.OrigDaddr, nft.L4Proto, nft.CtOrigDport}
}

// flow are the fields of a key of flows.
func (fp *family) flow(key model.FlowKey) (fields []nft.Field) {
	all := []nft.Field{fp.ip.Saddr, fp.ip.Daddr, fp.ip.Sport, fp.ip.Dport, nft.SrcMAC, nft.DstMAC}
	for i, f := range all {
		if key&(1<<i) != 0 {
			fields = append(fields, f)
		}
	}
	return fields
}

// virtualAddr is where clients find a farm. An invalid address stands for all.
type virtualAddr struct {
	kind  kind
	addr  netip.Addr
	proto model.Protocol
	ports model.PortSpan
}

// at is an element of a set of virtual addresses of its kind; a slot comes first where the set has
// slots.
func (fp *family) at(sets [kinds]*nft.Set, p virtualAddr, slot ...uint32) nft.Element {
	e := nft.Element{Set: sets[p.kind]}
	put := func(addr netip.Addr, port uint16) {
		for _, s := range slot {
			e.AppendUint32(s)
		}
		e.AppendDestination(fp.ip, addr, uint8(p.proto), port)
	}
	first, last := p.addr, p.addr
	if !p.addr.IsValid() {
		first, last = fp.ends()
	}
	put(first, p.ports.First)
	if p.kind != exact {
		put(last, p.ports.Last)
	}
	return e
}

// ends are the first and the last address of the family.
func (fp *family) ends() (first, last netip.Addr) {
	first = netip.IPv6Unspecified()
	if fp.is4() {
		first = netip.IPv4Unspecified()
	}
	return first, model.Last(netip.PrefixFrom(first, 0))
}

func (fp *family) is4() bool { return fp.ip.Bits == nft.IPv4.Bits }

// numbers are what stands for farms in keys: hashes of their names. Where two are the same, the
// later farm has another one.
type numbers struct {
	of    map[string]uint32
	farms map[uint32]string
}

func newNumbers() *numbers { return &numbers{map[string]uint32{}, map[uint32]string{}} }

// number is that of a farm; it has one from now on.
func (n *numbers) number(farm string) uint32 {
	if number, has := n.of[farm]; has {
		return number
	}
	for try := 0; ; try++ {
		number := uint32(xxhash.Sum64String(farm + strconv.Itoa(try)))
		if n.farms[number] == "" && number != 0 {
			n.of[farm], n.farms[number] = number, farm
			return number
		}
	}
}

// forget has a farm have no number any more.
func (n *numbers) forget(farm string) {
	delete(n.farms, n.of[farm])
	delete(n.of, farm)
}

// digest is a short name for a text.
func digest(text string) string { return fmt.Sprintf("%08x", uint32(xxhash.Sum64String(text))) }

func uint32Bytes(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
