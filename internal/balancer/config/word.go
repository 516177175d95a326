package config

import (
	"net/netip"

	"sluice.dev/sluice/internal/model"
)

// word is a value of an attribute and how it is written.
type word[E comparable] struct {
	text  string
	value E
}

type (
	family    uint8
	protocol  uint8
	logPlaces uint8
	verdict   uint8
)

const (
	ipv4 family = iota
	ipv6
	bothFamilies
)

const (
	tcp protocol = iota
	udp
	sctp
	allProtocols
)

const (
	up   = model.BackendUp
	down = model.BackendDown
	off  = model.BackendDraining
)

const (
	logInput logPlaces = 1 << iota
	logForward
	logOutput
)

const (
	logVerdict verdict = 1 << iota
	dropVerdict
	acceptVerdict
	everyVerdict = logVerdict | dropVerdict | acceptVerdict
)

// The first word of a value is the one that is printed.
var (
	familyWords   = []word[family]{{"ipv4", ipv4}, {"ipv6", ipv6}, {"inet", bothFamilies}, {"dual", bothFamilies}}
	protocolWords = []word[protocol]{{"tcp", tcp}, {"udp", udp}, {"sctp", sctp}, {"all", allProtocols}}
	helperWords   = []word[string]{{"none", ""}, {"ftp", "ftp"}, {"pptp", "pptp"}, {"sip", "sip"}, {"snmp", "snmp"}, {"tftp", "tftp"}}
	logWords      = []word[logPlaces]{{"input", logInput}, {"forward", logForward}, {"output", logOutput}}
	verdictWords  = []word[verdict]{{"log", logVerdict}, {"drop", dropVerdict}, {"accept", acceptVerdict}}
	modeWords     = []word[model.FarmMode]{
		{"snat", model.SNAT}, {"dnat", model.DNAT}, {"dsr", model.DSR}, {"stlsdnat", model.StatelessDNAT}, {"local", model.Local},
	}
	keyWords = []word[model.FlowKey]{
		{"srcip", model.SrcIP}, {"dstip", model.DstIP}, {"srcport", model.SrcPort}, {"dstport", model.DstPort}, {"srcmac", model.SrcMAC}, {"dstmac", model.DstMAC},
	}
	// What is printed of a state and says nothing of what was configured is read as up.
	stateWords     = []word[model.BackendState]{{"up", up}, {"down", down}, {"off", off}, {"draining", off}, {"config_error", up}}
	policyWords    = []word[bool]{{"blacklist", false}, {"whitelist", true}}
	routeWords     = []word[bool]{{"in", false}, {"out", true}}
	switchWords    = []word[bool]{{"off", false}, {"on", true}}
	allDownWords   = []word[bool]{{"refuse", false}, {"keep", true}}
	limitFullWords = []word[bool]{{"pass", false}, {"drop", true}}
)

func textOf[E comparable](words []word[E], value E) string {
	for _, w := range words {
		if w.value == value {
			return w.text
		}
	}
	return ""
}

func valueOf[E comparable](words []word[E], text string) (value E, ok bool) {
	for _, w := range words {
		if w.text == text {
			return w.value, true
		}
	}
	return value, false
}

// is4 and is6 report whether the family holds IPv4 and IPv6.
func (f family) is4() bool { return f != ipv6 }
func (f family) is6() bool { return f != ipv4 }

// holds reports whether an address is of the family.
func (f family) holds(a netip.Addr) bool { return a.Is4() && f.is4() || a.Is6() && f.is6() }

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// transports are the protocols, sorted.
func (p protocol) transports() []model.Protocol {
	switch p {
	case tcp:
		return []model.Protocol{model.TCP}
	case udp:
		return []model.Protocol{model.UDP}
	case sctp:
		return []model.Protocol{model.SCTP}
	}
	return []model.Protocol{model.TCP, model.UDP, model.SCTP}
}
