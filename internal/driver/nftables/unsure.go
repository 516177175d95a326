package nftables

import (
	"context"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
)

// This file is about what the kernel may do otherwise than the state says, while it keeps something.

func newKept() driver.Kept {
	return driver.Kept{Senders: map[netip.Addr]bool{}, Receivers: map[netip.Addr]bool{}, Hosts: map[int]bool{}, Members: map[netip.Prefix]bool{}}
}

// noteKept takes in an element of policy that is kept.
func (p *program) noteKept(k *driver.Kept, e *element) {
	if isHosts(e.set) {
		k.Hosts[int(nativeUint32(e.key[:4]))] = true
	}
	for _, fp := range p.fam {
		address := func(at int) netip.Addr {
			a, _ := netip.AddrFromSlice(e.key[at : at+fp.ip.bits/8])
			return a
		}
		switch e.set {
		case fp.policy.from:
			k.Senders[address(4)] = true
		case fp.policy.to:
			k.Receivers[address(0)] = true
		case fp.policy.members, fp.policy.named:
			bits := fp.ip.bits
			if number := int(nativeUint32(e.key[:4]) & 0xff); e.set == fp.policy.members && number < bits {
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
	err := d.sock.get(ctx, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, unix.NFPROTO_INET, inTable(unix.NFTA_RULE_TABLE), func(b []byte) {
		chain := cString(findAttr(b, unix.NFTA_RULE_CHAIN))
		words := strings.SplitN(udataString(findAttr(b, unix.NFTA_RULE_USERDATA), udataComment), " ", 3)
		if len(words) > 1 && names[words[0]+" "+words[1]] {
			found = append(found, chain)
		}
		eachAttr(findAttr(b, unix.NFTA_RULE_EXPRESSIONS), func(_ uint16, e []byte) bool {
			data := findAttr(e, unix.NFTA_EXPR_DATA)
			switch cString(findAttr(e, unix.NFTA_EXPR_NAME)) {
			case "objref":
				if names[cString(findAttr(data, unix.NFTA_OBJREF_IMM_NAME))] {
					found = append(found, chain)
				}
			case "immediate":
				verdict := findAttr(findAttr(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
				if to := cString(findAttr(verdict, unix.NFTA_VERDICT_CHAIN)); to != "" {
					leads[to] = append(leads[to], chain)
				}
			}
			return true
		})
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
