package peer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/netns"
)

// Blocker is a program that drops packets from the addresses of a list.
type Blocker interface {
	Name() string
	// Limit is the greatest practical number of entries, and why; 0: any number.
	Limit() (entries int, why string)
	// Block programs an empty kernel to drop what device receives from the list's networks (sorted,
	// unique), and returns when that is done. Without a list it does what it would do with others.
	Block(ctx context.Context, node *netns.NS, device string, list []netip.Prefix) (*Blocked, error)
}

// Blocked is a list in the kernel. The embedded Took is from the list, in the form of the program's
// own input, to the kernel's acknowledgement.
type Blocked struct {
	Loaded
	Programming time.Duration // the part of Took that talks to the kernel; 0: not known
	Memory      int           // bytes of the kernel's that the list takes; 0: not known
}

// Name implements Blocker.
func (Forwarding) Name() string { return "forwarding" }

// Forwarding blocks nothing: the least that forwarding costs.
type Forwarding struct{}

// Limit implements Blocker.
func (Forwarding) Limit() (int, string) { return 0, "" }

// Block implements Blocker; the list must be empty.
func (Forwarding) Block(_ context.Context, _ *netns.NS, _ string, list []netip.Prefix) (*Blocked, error) {
	if len(list) > 0 {
		return nil, errors.New("block a list: plain forwarding cannot")
	}
	return &Blocked{Loaded: *loaded(0, "nothing to load")}, nil
}

// Rules is iptables-legacy with a rule for each entry.
type Rules struct{}

// Name implements Blocker.
func (Rules) Name() string { return "iptables, a rule each" }

// Limit implements Blocker.
func (Rules) Limit() (int, string) { return 100_000, "every packet walks all of them" }

// Block implements Blocker.
func (Rules) Block(ctx context.Context, node *netns.NS, device string, list []netip.Prefix) (*Blocked, error) {
	if err := need("iptables-legacy-restore", "iptables"); err != nil {
		return nil, err
	}
	s, err := newScript()
	if err != nil {
		return nil, err
	}
	s.add("*filter")
	for _, p := range list {
		s.add("-A FORWARD -i %s -s %s -j DROP", device, p)
	}
	s.add("COMMIT")
	took, err := s.run(ctx, node, "iptables-legacy-restore", "-w", "--noflush")
	return &Blocked{Loaded: *loaded(took, "iptables-restore")}, err
}

// Ipset is iptables-legacy with one rule that looks in an ipset.
type Ipset struct{}

// Name implements Blocker.
func (Ipset) Name() string { return "iptables with ipset" }

// Limit implements Blocker.
func (Ipset) Limit() (int, string) { return 0, "" }

// Block implements Blocker. Took is that of `ipset restore` alone.
func (Ipset) Block(ctx context.Context, node *netns.NS, device string, list []netip.Prefix) (*Blocked, error) {
	if err := errors.Join(need("iptables-legacy", "iptables"), need("ipset", "ipset")); err != nil {
		return nil, err
	}
	if len(list) == 0 { // the table, so that its hooks are there
		_, err := node.Run("iptables-legacy", "-w", "-S", "FORWARD")
		return &Blocked{Loaded: *loaded(0, "nothing to load")}, err
	}
	s, err := newScript()
	if err != nil {
		return nil, err
	}
	writeIpset(s, list)
	took, err := s.run(ctx, node, "ipset", "restore")
	if err != nil {
		return nil, err
	}
	_, err = node.Run("iptables-legacy", "-w", "-A", "FORWARD", "-i", device, "-m", "set", "--match-set", ipsetName, "src", "-j", "DROP")
	if err != nil {
		return nil, err
	}
	size, err := ipsetsSize(node)
	return &Blocked{Loaded: *loaded(took, "ipset restore"), Memory: size}, err
}

// ipsetsSize returns the memory that the node's ipsets say they take.
func ipsetsSize(node *netns.NS) (size int, err error) {
	out, err := node.Run("ipset", "list", "-t")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(out)) {
		if s, ok := strings.CutPrefix(line, "Size in memory: "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(s))
			if err != nil {
				return 0, fmt.Errorf("read size of ipset: %w", err)
			}
			size += n
		}
	}
	if size == 0 {
		return 0, errors.New("read size of ipsets: they do not tell")
	}
	return size, nil
}

// ipsetName is the name of the set that Ipset makes.
const ipsetName = "listed"

// writeIpset writes what `ipset save` would: hash:ip, or hash:net where there are networks.
func writeIpset(s *script, list []netip.Prefix) {
	kind := "hash:ip"
	for _, p := range list {
		if !p.IsSingleIP() {
			kind = "hash:net"
			break
		}
	}
	s.add("create %s %s family inet maxelem %d", ipsetName, kind, max(65_536, len(list)))
	for _, p := range list {
		s.add("add %s %s", ipsetName, cluster.Entry(p))
	}
}

// NftSet is a set of an nftables table, loaded by the nft command: a hash set of addresses, or an
// interval set where there are networks, which must not overlap.
type NftSet struct{}

// Name implements Blocker.
func (NftSet) Name() string { return "nft set" }

// Limit implements Blocker.
func (NftSet) Limit() (int, string) { return 0, "" }

// Block implements Blocker.
func (NftSet) Block(ctx context.Context, node *netns.NS, device string, list []netip.Prefix) (*Blocked, error) {
	if err := need("nft", "nftables"); err != nil {
		return nil, err
	}
	s, err := newScript()
	if err != nil {
		return nil, err
	}
	s.add("table ip block {")
	if len(list) > 0 {
		s.add("set listed {")
		s.add("type ipv4_addr")
		for _, p := range list {
			if !p.IsSingleIP() {
				s.add("flags interval")
				break
			}
		}
		s.add("elements = {")
		for _, p := range list {
			s.add("%s,", cluster.Entry(p))
		}
		s.add("}")
		s.add("}")
	}
	s.add("chain forward {")
	s.add("type filter hook forward priority 0")
	if len(list) > 0 {
		s.add("iifname %s ip saddr @listed drop", device)
	}
	s.add("}")
	s.add("}")
	took, err := s.run(ctx, node, "nft", "-f", "-")
	if err != nil {
		return nil, fmt.Errorf("load nft set: %w", err)
	}
	return &Blocked{Loaded: *loaded(took, "nft -f")}, nil
}

// Blockers returns all blockers.
func Blockers() []Blocker {
	return []Blocker{DenyList{}, DenyList{IptablesLegacy}, Ipset{}, Rules{}, NftSet{}, XDP{}}
}
