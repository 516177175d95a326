package preflight

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/model"
)

// dropping finds the chains of other programs that can drop our traffic. An accept in our table
// cannot undo a drop in theirs.
func dropping(f *Facts) []Result {
	const name = "other rules"
	if f.ChainsErr != nil {
		return cannotTell(name, f.ChainsErr)
	}
	results := byDefault(name, f.Chains)
	if len(results) == 0 {
		return one(name, OK, "no other nftables chain drops by default", "")
	}
	return results
}

// legacy does the same for rules that are in no nftables table.
func legacy(f *Facts) []Result {
	const name = "iptables-legacy"
	if len(f.Legacy.Tables) == 0 && f.Legacy.ReadErr == nil {
		return one(name, OK, "not in use", "")
	}
	results := byDefault(name, f.Legacy.Chains)
	if f.Legacy.ReadErr != nil {
		results = append(results, Result{name, Warn, fmt.Sprintf("tables in use (%s), not read: %v", list(f.Legacy.Tables), f.Legacy.ReadErr),
			"install iptables and look at `iptables-legacy-save` for rules that drop forwarded packets"})
	}
	if len(results) == 0 {
		return one(name, OK, "in use ("+list(f.Legacy.Tables)+"), no chain drops by default", "")
	}
	return results
}

// byDefault reports the chains that drop by default, and what that means.
func byDefault(check string, chains []foreign.Chain) (results []Result) {
	for _, d := range foreign.Defaults(chains) {
		switch {
		case d.AcceptsTranslated:
			results = append(results, Result{Check: check, Status: OK, Seen: d.Seen + "; it accepts connections to services"})
			continue
		case d.Hook == "input":
			// Service traffic for pods is forwarded and never comes here.
			d.Seen += "; this concerns pods on the node's own address, and health checks from outside"
		}
		results = append(results, Result{check, Warn, d.Seen, d.Do})
	}
	return results
}

// mixed finds rules of both of iptables' backends.
func mixed(f *Facts) []Result {
	c, ok := foreign.IPTables(f.Chains)
	if !ok || len(f.Legacy.Tables) == 0 || f.Legacy.Empty() {
		return nil
	}
	return one("iptables backends", Warn, fmt.Sprintf("both are in use: iptables-legacy (%s) and iptables-nft (%s %s); packets pass both, and `iptables` shows the rules of one alone",
		list(f.Legacy.Tables), c.Family, c.Table),
		"have all programs use one (update-alternatives --config iptables), and look at the other's with iptables-legacy-save or iptables-nft-save")
}

// kubeProxy says by what it is seen that kube-proxy is on the node, or was.
func kubeProxy(f *Facts) (seen []string) {
	if slices.Contains(f.Processes, kubeProxyProcess) {
		seen = append(seen, "kube-proxy runs")
	}
	all := append(slices.Clone(f.Chains), f.Legacy.Chains...)
	if slices.ContainsFunc(all, func(c foreign.Chain) bool { return c.Name == "KUBE-SERVICES" }) {
		seen = append(seen, "kube-proxy's iptables rules (chain KUBE-SERVICES)")
	}
	if slices.ContainsFunc(f.Chains, func(c foreign.Chain) bool { return c.Table == "kube-proxy" }) {
		seen = append(seen, "kube-proxy's nftables rules (table kube-proxy)")
	}
	return seen
}

// otherProxies finds another program that translates service addresses.
func otherProxies(f *Facts) []Result {
	const name = "other proxies"
	seen := kubeProxy(f)
	if f.IPVS > 0 {
		seen = append(seen, model.Count(f.IPVS, "IPVS service"))
	}
	if len(seen) == 0 {
		return one(name, OK, "none", "")
	}
	return one(name, Warn, strings.Join(seen, ", ")+": until that goes, each new connection is translated by the one or the other",
		"start the agent beside it, then have it take over without a dropped connection: sluice takeover --from kube-proxy")
}
