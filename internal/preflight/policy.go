package preflight

import (
	"errors"
	"os"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/sysctl"
)

// policyFeatures says whether the kernel can carry out network policy.
func policyFeatures(f *Facts) []Result {
	const name = "policy"
	switch {
	case f.PolicyErr != nil:
		return cannotTell(name, f.PolicyErr)
	case len(f.PolicyFeatures) == 0:
		return nil
	}
	return supported(name, f.PolicyFeatures, "load the modules that are named, or use a kernel that has them (Debian's stock kernel does), or leave policy out: sluice run --policy=false")
}

// bridged reports traffic that policy cannot see. Pods behind one bridge reach each other without
// passing the rules of IP, unless br_netfilter hands their packets over.
func bridged(f *Facts) []Result {
	const name = "bridged pods"
	switch {
	case len(f.Bridges) == 0:
		return nil
	case f.BridgeCalls:
		return one(name, OK, "behind "+list(f.Bridges)+": they are judged by their addresses alone, as nobody can tell which of them sent a packet", "")
	}
	return one(name, Warn, "behind "+list(f.Bridges)+": packets between them do not pass the node's rules, so policy between them has no effect",
		"modprobe br_netfilter; sysctl -w net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1; or use a CNI that routes its pods")
}

// bridges names the bridges that have the host's end of a veth, and tells whether what they
// forward meets the rules of IP.
func bridges() (names []string, calls bool, err error) {
	interfaces, err := link.Here.Interfaces()
	if err != nil {
		return nil, false, err
	}
	ports := map[int]bool{}
	for _, i := range interfaces {
		if i.Type == "veth" {
			ports[i.Master] = true
		}
	}
	for _, i := range interfaces {
		if i.Type == "bridge" && ports[i.Index] {
			names = append(names, i.Name)
		}
	}
	value, err := sysctl.Read("net.bridge.bridge-nf-call-iptables")
	if errors.Is(err, os.ErrNotExist) { // br_netfilter is not loaded
		return names, false, nil
	}
	return names, value == "1", err
}
