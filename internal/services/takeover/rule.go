package takeover

import (
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// forwardChain holds the rules of iptables and IPVS mode that accept what is forwarded.
const forwardChain = "KUBE-FORWARD"

// nodePortsChain holds the node ports of iptables mode.
const nodePortsChain = "KUBE-NODEPORTS"

// xrule is what matters of a rule of iptables, from wherever it was read.
type xrule struct {
	is4      bool
	daddr    netip.Addr // asked for; invalid: any
	network  bool       // it asks for a whole network instead
	protocol model.Protocol
	dport    uint16         // 0: any
	target   string         // chain or verdict
	dnat     netip.AddrPort // where it sends connections; invalid: nowhere
	comment  string
}

// frontendTables are the tables in which the rules of a chain of kube-proxy name frontends.
var frontendTables = map[string][]string{
	"KUBE-SERVICES": {"nat", "filter"}, "KUBE-EXTERNAL-SERVICES": {"filter"},
	nodePortsChain: {"nat"}, // in filter it accepts health checks
}

// namesFrontends reports whether the rules of a chain of kube-proxy name frontends.
func namesFrontends(table, chain string) bool { return slices.Contains(frontendTables[chain], table) }

// frontend returns the frontend that a rule names, if namesFrontends holds for its chain. Rules of
// table nat lead to backends, those of filter refuse what has none.
func (x xrule) frontend(table, chain string) (Frontend, bool) {
	if x.dport == 0 || x.protocol == 0 || x.network {
		return Frontend{}, false
	}
	addr := x.daddr
	if !addr.IsValid() && chain != "KUBE-SERVICES" {
		addr = unspecified(x.is4)
	}
	service, _, _ := strings.Cut(x.comment, " ")
	return Frontend{
		Key:     state.FrontendKey{Addr: addr, Protocol: x.protocol, Port: x.dport},
		Service: service, Served: table == "nat" && strings.HasPrefix(x.target, "KUBE-"),
		Loopback: chain == nodePortsChain && x.is4,
	}, addr.IsValid()
}

// choosesAddress reports whether node ports are served on the address that the rule asks for, and
// on no other than such. Without --nodeport-addresses one rule leads to them from every local
// address.
func (x xrule) choosesAddress() bool { return x.target == nodePortsChain && x.daddr.IsValid() }

// dropsForwarded says what becomes of forwarded packets where the chain FORWARD drops or rejects
// what its rules don't accept.
func dropsForwarded(program, family string) string {
	return program + "'s chain FORWARD of family " + family + " refuses what its rules do not accept, and only kube-proxy's chain " + forwardChain +
		" is known to accept masqueraded and established connections of services there. It does not know those that sluice translates: add rules " +
		"before the agent starts, as 'sluice preflight' says"
}
