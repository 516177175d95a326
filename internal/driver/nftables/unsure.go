package nftables

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/nft"
	"sluice.dev/sluice/internal/model"
)

// This file is about what the kernel may do otherwise than the state says, while it keeps something.

func newKept() driver.Kept {
	return driver.Kept{Senders: map[netip.Addr]bool{}, Receivers: map[netip.Addr]bool{}, Hosts: map[int]bool{}, Members: map[netip.Prefix]bool{}}
}

// noteKept takes in an element of policy that is kept.
func (p *program) noteKept(k *driver.Kept, e *nft.Element) {
	if isHosts(e.Set) {
		k.Hosts[int(nft.NativeUint32(e.Key[:4]))] = true
	}
	for _, fp := range p.fam {
		address := func(at int) netip.Addr {
			a, _ := netip.AddrFromSlice(e.Key[at : at+fp.ip.Bits/8])
			return a
		}
		switch e.Set {
		case fp.policy.from:
			k.Senders[address(4)] = true
		case fp.policy.to:
			k.Receivers[address(0)] = true
		case fp.policy.members, fp.policy.named:
			bits := fp.ip.Bits
			if number := int(nft.NativeUint32(e.Key[:4]) & 0xff); e.Set == fp.policy.members && number < bits {
				bits = number
			}
			k.Members[netip.PrefixFrom(address(4), bits)] = true
		}
	}
}

// mentioning are the chains that name one of the policies, in a counter or a comment, and those that lead to
// one of them.
func (d *Driver) mentioning(ctx context.Context, policies []model.PolicyKey) (map[string]bool, error) {
	names := map[string]bool{}
	for _, k := range policies {
		names[counterName(allowed, k)], names[counterName(denied, k)], names[k.String()] = true, true, true
	}
	mentioned, leads := map[string]bool{}, map[string][]string{}
	var found []string
	err := d.sock.ReadRules(ctx, TableName, func(r nft.RuleInfo) {
		words := strings.SplitN(r.Comment, " ", 3)
		if len(words) > 1 && names[words[0]+" "+words[1]] || slices.ContainsFunc(r.Counters, func(c string) bool { return names[c] }) {
			found = append(found, r.Chain)
		}
		for _, to := range r.To {
			leads[to] = append(leads[to], r.Chain)
		}
	})
	for len(found) > 0 {
		chain := found[0]
		found = found[1:]
		if !mentioned[chain] {
			mentioned[chain] = true
			found = append(found, leads[chain]...)
		}
	}
	return mentioned, err
}
