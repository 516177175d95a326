package preflight

import (
	"context"
	"errors"
	"os"

	"sluice.dev/sluice/internal/link"
	"sluice.dev/sluice/internal/sysctl"
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

// Obstacle is a chain of another program in which a packet that Sluice accepts can end.
type Obstacle struct {
	Hook string `json:"hook"`         // "forward", "input", …
	Seen string `json:"seen"`         // names the chain and, where it is known, whose it is
	Do   string `json:"do,omitempty"` // how to let pods through
}

// Obstacles reads the rules of other programs in the calling thread's network namespace, and
// returns the chains that drop or reject by default. An accept of ours cannot undo that.
func Obstacles(ctx context.Context) ([]Obstacle, error) {
	all, _, err := chains()
	if err != nil {
		return nil, err
	}
	found := obstacles("nftables", all)
	old := readLegacy(ctx)
	return append(found, obstacles("iptables-legacy", old.Chains)...), old.ReadErr
}

func obstacles(kind string, chains []Chain) []Obstacle {
	var found []Obstacle
	for _, c := range chains {
		if results := dropsByDefault("", kind, []Chain{c}, chains); len(results) > 0 {
			found = append(found, Obstacle{Hook: c.Hook, Seen: results[0].Seen, Do: results[0].Do})
		}
	}
	return found
}
