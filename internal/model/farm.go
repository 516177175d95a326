package model

import (
	"net/netip"
	"slices"
	"time"
)

// The kinds of what a balancer without Kubernetes declares.
const (
	FarmKind     Kind = "Farm"
	FarmListKind Kind = "FarmList"
)

// Farm is a virtual service of a balancer: where clients find it, and the backends that serve it.
// It is what nftlb calls a farm, with what nftlb lacks.
type Farm struct {
	Name string
	// Addresses are where clients find it. None: it serves nobody.
	Addresses []FarmAddress
	Mode      FarmMode
	// SourceAddrs are the addresses that connections get in place of their clients' (SNAT), at
	// most one of each family. A family without one is masqueraded.
	SourceAddrs []netip.Addr
	Backends    []FarmBackend
	// Checked: whoever checks the backends wants to be told of connections that they refuse.
	Checked bool
	// Refuse has a connection that no backend serves be refused at once (TCP reset, ICMP port
	// unreachable); otherwise it is dropped.
	Refuse bool

	Scheduler FarmScheduler
	// HashBy is what Hash and Maglev choose by, and what the stateless modes do.
	HashBy FlowKey

	// Persist is what a client is remembered by, for PersistFor after its last new connection; 0:
	// it is not. Sessions are clients whose backend is given.
	Persist    FlowKey
	PersistFor time.Duration
	Sessions   []FarmSession

	// Mark is the mark of its connections; 0: none is given.
	Mark uint32
	// Helper is the helper of connection tracking for its connections: "ftp", "pptp", "sip",
	// "snmp" or "tftp"; "": none.
	Helper string
	// Limits bound what its clients may do.
	Limits FarmLimits
	// Lists name the FarmLists that its clients are looked up in, in this order; the first that has
	// one decides.
	Lists []string
	// Log has new connections be logged, with LogPrefix.
	Log       bool
	LogPrefix string
}

// HelperProtocols are the protocols that a helper of connection tracking is for; none: there is no
// such helper.
func HelperProtocols(helper string) []Protocol {
	switch helper {
	case "ftp", "pptp":
		return []Protocol{TCP}
	case "sip":
		return []Protocol{TCP, UDP}
	case "snmp", "tftp":
		return []Protocol{UDP}
	}
	return nil
}

// FarmAddress is one place where clients find a farm.
type FarmAddress struct {
	// Addr is invalid for every address of the machine.
	Addr netip.Addr
	// IPv4 and IPv6 are the families: that of Addr, or those that an invalid one stands for.
	IPv4, IPv6 bool
	Protocols  []Protocol // sorted
	// Ports are sorted and do not overlap; none: all ports.
	Ports []PortSpan
}

// PortSpan is a range of ports, both ends included.
type PortSpan struct{ First, Last uint16 }

// FarmMode is how packets get from clients to backends and back.
type FarmMode uint8

// The modes. All but the last two translate addresses by connection tracking.
const (
	// SNAT replaces the destination and the source, so that answers come back through the balancer.
	SNAT FarmMode = iota
	// DNAT replaces the destination alone: the backends' route to clients leads through the
	// balancer.
	DNAT
	// Local balances nothing: limits, lists and marks for a program on the machine itself.
	Local
	// DSR (direct server return) hands packets to backends on the same network, which have the
	// farm's address themselves and answer clients directly.
	DSR
	// StatelessDNAT replaces destinations packet by packet, and sources of answers, without
	// connection tracking.
	StatelessDNAT
)

// Stateless reports whether connection tracking has no part in the mode.
func (m FarmMode) Stateless() bool { return m == DSR || m == StatelessDNAT }

// String returns nftlb's word for the mode.
func (m FarmMode) String() string {
	return [...]string{"snat", "dnat", "local", "dsr", "stlsdnat"}[m]
}

// FlowKey is a set of parts of a packet.
type FlowKey uint8

// The parts.
const (
	SrcIP FlowKey = 1 << iota
	DstIP
	SrcPort
	DstPort
	SrcMAC
	DstMAC
)

// FarmBackend is one server of a farm.
type FarmBackend struct {
	Name string
	Addr netip.Addr
	Port uint16 // 0: the port that the client asked for
	// SourceAddr stands for the farm's SourceAddrs at this backend, if it is valid.
	SourceAddr netip.Addr
	// Weight is its share, 1 at the least.
	Weight int
	// Priority is 1 for backends that serve, and higher for backups: those of a priority serve
	// once as many of lower ones are out of service.
	Priority int
	Mark     uint32 // a number for people; 0: none
	State    BackendState
	// Why says to people why State is what it is; empty: as it was configured.
	Why string
	// EstLimit is the most connections that it may have at once; 0: any number.
	EstLimit uint32
}

// BackendState says what a backend gets.
type BackendState uint8

// The states.
const (
	BackendUp       BackendState = iota
	BackendDraining              // no new connections; those that are there go on
	BackendDown                  // nothing: its connections are cut
)

// FarmSession is a client whose backend is given.
type FarmSession struct {
	Client  FlowValues
	Backend string
}

// LiveSession is a client that a farm remembers, and for how long it still does.
type LiveSession struct {
	FarmSession
	Left time.Duration
}

// FlowValues are values of the parts of a FlowKey; those of others are zero.
type FlowValues struct {
	SrcIP, DstIP     netip.Addr
	SrcPort, DstPort uint16
	SrcMAC, DstMAC   [6]byte
}

// Field is the value of one part: a *netip.Addr, *uint16 or *[6]byte.
func (v *FlowValues) Field(part FlowKey) any {
	switch part {
	case SrcIP:
		return &v.SrcIP
	case DstIP:
		return &v.DstIP
	case SrcPort:
		return &v.SrcPort
	case DstPort:
		return &v.DstPort
	case SrcMAC:
		return &v.SrcMAC
	}
	return &v.DstMAC
}

// FarmLimits bound what the clients of a farm may do. The zero value bounds nothing.
type FarmLimits struct {
	// New is the rate of new connections of each source address, and RST that of resets.
	New, RST FarmRate
	// Established is the most connections that a source address may have at once; 0: any number.
	Established uint32
	// Strict drops packets that belong to no connection and begin none.
	Strict bool
	// SYNProxy answers for the backends until a client has shown that it is there.
	SYNProxy bool
	// Forget is how long a source address is remembered after its last packet; 0: for good.
	Forget time.Duration
	// DropWhenFull has connections of sources that nobody can remember any more be dropped;
	// otherwise they pass without a limit.
	DropWhenFull bool
	// Report has what a limit drops be logged, with Prefixes by limit: "new", "rst", "est",
	// "strict". ReportRate bounds these messages; zero: any number.
	Report     bool
	ReportRate FarmRate
	Prefixes   map[string]string
	// Pass has what is over a limit be logged and not dropped.
	Pass bool
}

// FarmRate is a number of packets in a unit of time, and how many may come at once; zero: any.
type FarmRate struct {
	Packets uint64
	Per     time.Duration // a second, minute, hour, day or week
	Burst   uint32        // 0: 5
}

// FarmList is a list of source addresses for farms.
type FarmList struct {
	Name string
	// Allow lets its members pass, whatever later lists say; otherwise they are dropped.
	Allow  bool
	Ranges []AddressRange // sorted; they do not overlap
	// Log has what the list drops be logged, with LogPrefix.
	Log       bool
	LogPrefix string
}

// Ref implements Object.
func (f *Farm) Ref() Ref { return Ref{FarmKind, Name{Name: f.Name}} }

// Ref implements Object.
func (l *FarmList) Ref() Ref { return Ref{FarmListKind, Name{Name: l.Name}} }

// InRanges reports whether clients find the farm at a range of ports or at every address, and not
// at single addresses and ports alone.
func (f *Farm) InRanges() bool {
	return slices.ContainsFunc(f.Addresses, func(a FarmAddress) bool {
		return !a.Addr.IsValid() || len(a.Ports) == 0 ||
			slices.ContainsFunc(a.Ports, func(p PortSpan) bool { return p.First != p.Last })
	})
}

// HasPorts reports whether packets get to backends at the ports that these have: where a backend of
// a farm that is found at a range of ports has none, all keep the port that the client asked for.
func (f *Farm) HasPorts() bool {
	return !f.InRanges() || !slices.ContainsFunc(f.Backends, func(b FarmBackend) bool { return b.Port == 0 })
}

// Each yields the addresses and protocols at which the farm is found, with each span of ports; an
// invalid address stands for all of the machine's.
func (f *Farm) Each(yield func(addr netip.Addr, is4 bool, p Protocol, ports PortSpan)) {
	for _, a := range f.Addresses {
		ports := a.Ports
		if len(ports) == 0 {
			ports = []PortSpan{{First: 0, Last: 65535}}
		}
		for _, p := range a.Protocols {
			for _, span := range ports {
				if a.IPv4 {
					yield(a.Addr, true, p, span)
				}
				if a.IPv6 {
					yield(a.Addr, false, p, span)
				}
			}
		}
	}
}

// Level is the priority up to which backends serve. It starts at 1 and grows by the backends of
// just that priority that are not up, again and again, as nftlb has it.
func Level(backends []FarmBackend) int {
	out := map[int]int{} // how many are not up, by priority
	for _, b := range backends {
		if b.State != BackendUp {
			out[max(b.Priority, 1)]++
		}
	}
	level := 1
	for p := 1; p <= level; p++ {
		level += out[p]
	}
	return level
}
