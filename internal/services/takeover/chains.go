package takeover

import (
	"slices"
	"strings"
)

// The chains that kube-proxy makes with iptables, those of IPVS mode and of releases since 1.20
// included. The kubelet's are not among them (KUBE-FIREWALL, KUBE-KUBELET-CANARY,
// KUBE-IPTABLES-HINT, KUBE-MARK-DROP), nor those of other programs whose names begin alike
// (KUBE-ROUTER-…, KUBE-POD-FW-…, KUBE-NWPLCY-…).
var (
	proxyChains = map[string][]string{
		"nat": {"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-PROXY-CANARY",
			"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER"},
		"filter": {"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
			"KUBE-SOURCE-RANGES-FIREWALL", "KUBE-NODE-PORT", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER"},
		"mangle": {"KUBE-PROXY-CANARY"},
	}
	// One for each service port or endpoint, in nat alone.
	proxyPrefixes = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-", "KUBE-XLB-"}
)

// isProxyChain reports whether kube-proxy makes a chain of that name in an iptables table.
func isProxyChain(table, chain string) bool {
	if slices.Contains(proxyChains[table], chain) {
		return true
	}
	return table == "nat" && slices.ContainsFunc(proxyPrefixes, func(p string) bool { return strings.HasPrefix(chain, p) })
}

// jump is a rule outside of kube-proxy's chains that leads into one of them.
type jump struct {
	from, to string
	builtin  bool // packets enter from by themselves: kube-proxy adds rules to such chains alone
}

// accepts reports whether forwarded packets come to the rules of kube-proxy that accept some.
func accepts(jumps []jump) bool {
	return slices.ContainsFunc(jumps, func(j jump) bool { return j.to == forwardChain })
}

// kept returns which of kube-proxy's chains of a table can't go since rules of somebody else lead
// to them, and a note on each. Some set-ups of the CNI plugin "portmap" use KUBE-MARK-MASQ, which
// works together with KUBE-POSTROUTING: those stay as they are. Others are to be emptied: what they
// lead to goes, and they would serve what nobody keeps up to date.
func kept(jumps []jump) (stay, emptied map[string]bool, notes []string) {
	stay, emptied = map[string]bool{}, map[string]bool{}
	for _, j := range jumps {
		if j.builtin || stay[j.to] || emptied[j.to] {
			continue
		}
		how := "stays, empty"
		switch j.to {
		case "KUBE-MARK-MASQ":
			stay[j.to], stay["KUBE-POSTROUTING"], how = true, true, "stays"
		case "KUBE-POSTROUTING":
			stay[j.to], how = true, "stays"
		default:
			emptied[j.to] = true
		}
		notes = append(notes, "chain "+j.to+" "+how+": chain "+j.from+", which is not kube-proxy's, uses it")
	}
	return stay, emptied, notes
}
