package takeover

import (
	"slices"
	"strings"
)

// The chains that kube-proxy makes with iptables, those of IPVS mode and of releases since 1.20 included. The kubelet's
// are not among them (KUBE-FIREWALL, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT, KUBE-MARK-DROP), nor those of other
// programs whose names begin alike (KUBE-ROUTER-…, KUBE-POD-FW-…, KUBE-NWPLCY-…).
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

// kept returns which of kube-proxy's chains of a table have to stay since rules of somebody else lead to them (some set-ups of
// the CNI plugin "portmap" use KUBE-MARK-MASQ, which works together with KUBE-POSTROUTING), and a note on each.
func kept(jumps []jump) (chains map[string]bool, notes []string) {
	chains = map[string]bool{}
	for _, j := range jumps {
		if j.builtin || chains[j.to] {
			continue
		}
		chains[j.to] = true
		notes = append(notes, "chain "+j.to+" stays: chain "+j.from+", which is not kube-proxy's, uses it")
		if j.to == "KUBE-MARK-MASQ" {
			chains["KUBE-POSTROUTING"] = true
		}
	}
	return chains, notes
}
