package preflight

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// dropping finds the chains of other programs that can drop our traffic. An accept in our table
// cannot undo a drop in theirs.
func dropping(f *Facts) []Result {
	const name = "other rules"
	if f.ChainsErr != nil {
		return cannotTell(name, f.ChainsErr)
	}
	results := dropsByDefault(name, "nftables", f.Chains, f.Chains)
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
	results := dropsByDefault(name, "iptables-legacy", f.Legacy.Chains, f.Legacy.Chains)
	if f.Legacy.ReadErr != nil {
		results = append(results, Result{name, Warn, fmt.Sprintf("tables in use (%s), not read: %v", list(f.Legacy.Tables), f.Legacy.ReadErr),
			"install iptables and look at `iptables-legacy-save` for rules that drop forwarded packets"})
	}
	if len(results) == 0 {
		return one(name, OK, "in use ("+list(f.Legacy.Tables)+"), no chain drops by default", "")
	}
	return results
}

// dropsByDefault reports the chains that drop by default, and what that means. The other
// chains of a table, among all, tell which program made it.
func dropsByDefault(check, kind string, chains, all []Chain) []Result {
	var results []Result
	for _, c := range chains {
		if c.Hook == "" || !c.PolicyDrop && c.EndsIn == "" {
			continue
		}
		how := "drops what its rules do not accept"
		if c.EndsIn != "" {
			how = c.EndsIn + "s what its rules before do not accept"
		}
		who := ownerOf(c, all)
		seen := fmt.Sprintf("%s%s chain %s %s %s (%s) %s", who.prefix(), kind, c.Family, c.Table, c.Name, c.Hook, how)
		if c.AcceptsTranslated {
			results = append(results, Result{Check: check, Status: OK, Seen: seen + "; it accepts connections to services"})
			continue
		}
		do := who.advice(c)
		if c.Hook == "input" {
			// Service traffic for pods is forwarded and never comes here.
			seen += "; this concerns pods on the node's own address, and health checks from outside"
		}
		results = append(results, Result{check, Warn, seen, do})
	}
	return results
}

// owner is a program that is known to write such chains.
type owner string

const (
	docker    owner = "Docker"
	ufw       owner = "ufw"
	firewalld owner = "firewalld"
	unknown   owner = ""
)

// ownerOf guesses whose a chain is from the names beside it in its table.
func ownerOf(c Chain, all []Chain) owner {
	if c.Table == "firewalld" {
		return firewalld
	}
	found := unknown
	for _, other := range all {
		if other.Family != c.Family || other.Table != c.Table {
			continue
		}
		switch {
		case strings.HasPrefix(other.Name, "ufw-"), strings.HasPrefix(other.Name, "ufw6-"):
			return ufw // sets the policies even where Docker has chains too
		case strings.HasPrefix(other.Name, "DOCKER"):
			found = docker
		}
	}
	return found
}

func (o owner) prefix() string {
	if o == unknown {
		return ""
	}
	return string(o) + ": "
}

// advice says how to let pods and services through; PODS stands for the cluster's pod network.
func (o owner) advice(c Chain) string {
	iptables := "iptables"
	if c.Family == "ip6" {
		iptables = "ip6tables"
	}
	switch o {
	case docker:
		if c.Hook == "forward" {
			return fmt.Sprintf("let the pod network through: %s -I DOCKER-USER -d PODS -j ACCEPT; %s -I DOCKER-USER -s PODS -j ACCEPT", iptables, iptables)
		}
	case ufw:
		if c.Hook == "forward" {
			return "let the pod network through: ufw route allow to PODS; ufw route allow from PODS"
		}
		return "where that is wanted: ufw allow PORT"
	case firewalld:
		return "trust the pod network: firewall-cmd --permanent --zone=trusted --add-source=PODS; firewall-cmd --reload"
	}
	if c.Hook == "forward" {
		return fmt.Sprintf("add rules before that accept packets to and from the pod network in chain %s %s %s", c.Family, c.Table, c.Name)
	}
	return fmt.Sprintf("see that the rules of chain %s %s %s accept service traffic", c.Family, c.Table, c.Name)
}

// mixed finds rules of both of iptables' backends.
func mixed(f *Facts) []Result {
	i := slices.IndexFunc(f.Chains, func(c Chain) bool {
		return (c.Family == "ip" || c.Family == "ip6") && slices.Contains([]string{"filter", "nat", "mangle", "raw"}, c.Table) && c.Name == strings.ToUpper(c.Hook)
	})
	if i < 0 || len(f.Legacy.Tables) == 0 {
		return nil
	}
	return one("iptables backends", Warn, fmt.Sprintf("both are in use: iptables-legacy (%s) and iptables-nft (%s %s); packets pass both, and `iptables` shows the rules of one alone",
		list(f.Legacy.Tables), f.Chains[i].Family, f.Chains[i].Table),
		"have all programs use one (update-alternatives --config iptables), and look at the other's with iptables-legacy-save or iptables-nft-save")
}

// kubeProxy says by what it is seen that kube-proxy is on the node, or was.
func kubeProxy(f *Facts) (seen []string) {
	if slices.Contains(f.Processes, kubeProxyProcess) {
		seen = append(seen, "kube-proxy runs")
	}
	all := append(slices.Clone(f.Chains), f.Legacy.Chains...)
	if slices.ContainsFunc(all, func(c Chain) bool { return c.Name == "KUBE-SERVICES" }) {
		seen = append(seen, "kube-proxy's iptables rules (chain KUBE-SERVICES)")
	}
	if slices.ContainsFunc(f.Chains, func(c Chain) bool { return c.Table == "kube-proxy" }) {
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
