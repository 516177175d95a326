package nftables

import (
	"context"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
	policy "sluice.dev/sluice/internal/verdict"
)

// This file is about what the kernel may do otherwise than the state says, while it keeps something.

// unsure is whom the kernel may judge otherwise than the state says.
type unsure struct {
	senders, receivers map[netip.Addr]bool // pods, by whose programs the kernel judges what they send, and what reaches them
	hosts              map[int]bool        // interfaces of host endpoints
	untracked          bool                // doNotTrack policies
	members            map[netip.Prefix]bool
	lengths            [2][129]bool // of the members
}

func newUnsure() *unsure {
	return &unsure{senders: map[netip.Addr]bool{}, receivers: map[netip.Addr]bool{}, hosts: map[int]bool{}, members: map[netip.Prefix]bool{}}
}

// note takes in an element that is kept.
func (u *unsure) note(p *program, e *element) {
	if isHosts(e.set) {
		u.hosts[int(nativeUint32(e.key[:4]))] = true
	}
	for i, fp := range p.fam {
		address := func(at int) netip.Addr {
			a, _ := netip.AddrFromSlice(e.key[at : at+fp.ip.bits/8])
			return a
		}
		switch e.set {
		case fp.policy.from:
			u.senders[address(4)] = true
		case fp.policy.to:
			u.receivers[address(0)] = true
		case fp.policy.members, fp.policy.named:
			bits := fp.ip.bits
			if number := int(nativeUint32(e.key[:4]) & 0xff); e.set == fp.policy.members && number < bits {
				bits = number
			}
			u.members[netip.PrefixFrom(address(4), bits)], u.lengths[i][bits] = true, true
		}
	}
}

// mayBeMember reports whether the address may be in a group or on a list of which the state does not know it.
func (u *unsure) mayBeMember(a netip.Addr) bool {
	family := 0
	if a.Is6() {
		family = 1
	}
	for bits := range a.BitLen() + 1 {
		if !u.lengths[family][bits] {
			continue
		}
		if p, err := a.Prefix(bits); err == nil && u.members[p] {
			return true
		}
	}
	return false
}

// judges reports whether the kernel's program for the step may be another than the state's.
func (u *unsure) judges(stage policy.Stage, flow policy.Flow, in, out int) bool {
	switch stage {
	case policy.Egress:
		return u.senders[flow.Source]
	case policy.Ingress:
		return u.receivers[flow.Destination]
	case policy.HostOutput, policy.HostForwardOut:
		return u.hosts[out]
	case policy.UntrackedIn, policy.UntrackedOut:
		return u.untracked
	}
	return u.hosts[in]
}

// concerns reports whether a program that may be another than the state's judges the flow.
func (u *unsure) concerns(flow policy.Flow, in, out int) bool {
	return u.untracked || u.senders[flow.Source] || u.receivers[flow.Destination] || u.hosts[in] || u.hosts[out]
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
