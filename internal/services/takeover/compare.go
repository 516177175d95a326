package takeover

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/state"
)

// missing names what kube-proxy serves and the agent's frontends do not. What is served by both may
// have other backends for a moment: both follow the cluster by themselves.
func missing(theirs []Frontend, ours map[state.FrontendKey]bool, host map[netip.Addr]bool) []string {
	ports := nodePorts(ours, host)
	var lacks []string
	for _, f := range theirs {
		served, there := ours[f.Key]
		if f.NodePort() {
			served, there = ports[f.Key]
		}
		switch {
		case !there:
			lacks = append(lacks, fmt.Sprintf("%s is served by kube-proxy and not by sluice%s", f, refusal(f, host)))
		case f.Served && !served:
			lacks = append(lacks, fmt.Sprintf("%s has endpoints in kube-proxy's rules and none in sluice's", f))
		}
	}
	return lacks
}

// refusal says why the agent may not serve what kube-proxy does, as far as that can be told from
// here.
func refusal(f Frontend, host map[netip.Addr]bool) string {
	switch {
	case f.NodePort():
		return " ('sluice status' says so if it is one of --reserved-ports)"
	case host[f.Key.Addr]:
		return ", which gives services no address of the node's own without --allow-node-addresses"
	}
	return " ('sluice status' says so if it refuses the address)"
}

// uncovered names what the agent's frontends serve and kube-proxy does not.
func uncovered(ours map[state.FrontendKey]bool, theirs []Frontend, host map[netip.Addr]bool) []string {
	byKey := map[state.FrontendKey]bool{}
	for _, f := range theirs {
		byKey[f.Key] = f.Served
	}
	var lacks []string
	for _, k := range slices.SortedFunc(maps.Keys(ours), state.FrontendKey.Compare) {
		served, there := byKey[k]
		if !there && host[k.Addr] {
			served, there = byKey[anyAddress(k)]
		}
		switch {
		case !there:
			lacks = append(lacks, fmt.Sprintf("%s is served by sluice and not by kube-proxy", k))
		case ours[k] && !served:
			lacks = append(lacks, fmt.Sprintf("%s has endpoints in sluice's table and none in kube-proxy's rules", k))
		}
	}
	return lacks
}

// unprogrammed names the families of which kube-proxy has programmed nothing, though the agent
// serves some of it.
func unprogrammed(ours map[state.FrontendKey]bool, theirs []Frontend) []string {
	var families []string
	for _, f := range []struct {
		name string
		is4  bool
	}{{"IPv4", true}, {"IPv6", false}} {
		of := func(k state.FrontendKey) bool { return k.Addr.Is4() == f.is4 }
		n := 0
		for k, served := range ours {
			if served && of(k) {
				n++
			}
		}
		if n > 0 && !slices.ContainsFunc(theirs, func(f Frontend) bool { return of(f.Key) }) {
			families = append(families, fmt.Sprintf("kube-proxy serves nothing of %s, sluice %s", f.name, frontendCount(n)))
		}
	}
	return families
}

// frontendCount is a number of frontends for people.
func frontendCount(n int) string {
	if n == 1 {
		return "1 address and port"
	}
	return fmt.Sprintf("%d addresses and ports", n)
}

// nodePorts are the frontends on the node's own addresses, under the family's unspecified address.
func nodePorts(ours map[state.FrontendKey]bool, host map[netip.Addr]bool) map[state.FrontendKey]bool {
	ports := map[state.FrontendKey]bool{}
	for k, served := range ours {
		if host[k.Addr] {
			ports[anyAddress(k)] = ports[anyAddress(k)] || served
		}
	}
	return ports
}

// anyAddress is the key of the same port on every address of the node.
func anyAddress(k state.FrontendKey) state.FrontendKey {
	k.Addr = unspecified(k.Addr.Is4())
	return k
}

func unspecified(is4 bool) netip.Addr {
	if is4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// elsewhere are the node's addresses on which kube-proxy serves node ports and we serve none.
// localnet: 127.0.0.1 may be one.
func elsewhere(theirs []Frontend, ours map[state.FrontendKey]bool, host map[netip.Addr]bool, localnet bool) []netip.Addr {
	families := map[bool]bool{} // with node ports
	loopback := false
	for _, f := range theirs {
		if f.NodePort() && f.Served {
			families[f.Key.Addr.Is4()] = true
			loopback = loopback || f.Loopback && localnet
		}
	}
	has := map[netip.Addr]bool{}
	for k := range ours {
		has[k.Addr] = true
	}
	var addrs []netip.Addr
	for a := range host {
		if families[a.Is4()] && !has[a] && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			addrs = append(addrs, a)
		}
	}
	if loopback {
		addrs = append(addrs, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}
