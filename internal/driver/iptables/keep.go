package iptables

import (
	"net/netip"
	"strings"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
)

// This file is about adopting policy without taking from the kernel what the wanted state may lack.

// slot is where rules judge: a pod, or at an interface.
type slot struct {
	table, chain string // of pods, the root of their tree
	addr         netip.Addr
	device       string // "-i eth0", of a host endpoint
}

// hostChains are those that lead to the rules of host endpoints.
var hostChains = map[string]bool{passChain: true, ownInputChain: true, outputChain: true, toServiceChain: true, beforeChain: true, rawInChain: true, rawOutChain: true}

// slots returns what judges where.
func (i *image) slots() map[slot]goal {
	found := map[slot]goal{}
	for c, rules := range i.chains {
		root := ""
		switch {
		case c.name == fromChain || strings.HasPrefix(c.name, policyPrefix+"F-"):
			root = fromChain
		case c.name == toChain || strings.HasPrefix(c.name, policyPrefix+"T-"):
			root = toChain
		}
		for _, r := range rules {
			words := strings.Fields(r)
			n := len(words)
			switch {
			case n < 4 || words[n-2] != "-g" && words[n-2] != "-j":
			case hostChains[c.name] && n == 4 && strings.HasPrefix(words[3], policyPrefix):
				found[slot{table: c.table, chain: c.name, device: words[0] + " " + words[1]}] = goal{chain: words[3]}
			case root != "" && !strings.HasPrefix(words[n-1], policyPrefix+"F-") && !strings.HasPrefix(words[n-1], policyPrefix+"T-"):
				if p, err := netip.ParsePrefix(words[1]); err == nil {
					g := goal{chain: words[n-1]}
					if n == 6 {
						g.device = " " + words[2] + " " + words[3]
					}
					found[slot{table: c.table, chain: root, addr: p.Addr()}] = g
				}
			}
		}
	}
	return found
}

// lead are the chains that a chain leads to, with itself.
func (i *image) lead(table, name string, to map[chain]bool) {
	at := chain{table, name}
	rules, is := i.chains[at]
	if to[at] || !is {
		return
	}
	to[at] = true
	for _, r := range rules {
		if _, next, leads := strings.Cut(r, "-g "); leads {
			i.lead(table, next, to)
		}
	}
}

// names reports whether one of the chains of a slot's rules names a policy.
func (i *image) names(s slot, g goal, keep driver.Keep) bool {
	all := map[chain]bool{}
	i.lead(s.table, g.chain, all)
	for c := range all {
		for _, r := range i.chains[c] {
			for _, k := range keep.Policies {
				if strings.HasPrefix(r, comment(k)) {
					return true
				}
			}
		}
	}
	return false
}

// keeping is what judges in the kernel and stays.
type keeping struct {
	slots map[slot]goal
	have  *image
}

// keeps returns what must stay of what judges in the kernel, though another policy is wanted. What
// the last want of this driver named was seen to change or go.
func (j *judge) keeps(have *image, want, last *state.Policy, keep driver.Keep) *keeping {
	k := &keeping{map[slot]goal{}, have}
	if !keep.Policy && len(keep.Policies) == 0 {
		return k
	}
	there, wanted, before := have.slots(), j.enforce(want, nil).slots(), map[slot]goal{}
	if last != nil {
		before = j.enforce(last, nil).slots()
	}
	for s, g := range there {
		now, is := wanted[s]
		was, named := before[s]
		sender := slot{table: s.table, chain: fromChain, addr: s.addr}
		switch {
		case is && now.equal(g), named && (!is || !was.equal(now)):
		case is && (g.chain == anyChain || s.addr.IsValid() && there[sender].device != wanted[sender].device): // no policy applied, or to another pod
		case !keep.Policy && (!is && !covered(want, s) || !have.names(s, g, keep)): // want says all of what it does not lack
		default:
			k.slots[s] = g
		}
	}
	return k
}

// covered reports whether a slot is of a host endpoint that is wanted.
func covered(p *state.Policy, s slot) bool {
	for _, h := range p.Hosts {
		if s.device == "-i "+h.Device || s.device == "-o "+h.Device {
			return true
		}
	}
	return false
}

// apply has what stays judge in an image.
func (k *keeping) apply(i *image) {
	all := map[chain]bool{}
	for s, g := range k.slots {
		k.have.lead(s.table, g.chain, all)
	}
	for c := range all {
		i.chains[c] = k.have.chains[c]
		for _, r := range k.have.chains[c] {
			for _, part := range strings.Split(r, "--match-set ")[1:] {
				if name, _, _ := strings.Cut(part, " "); i.sets[name] == nil && k.have.sets[name] != nil {
					i.sets[name] = k.have.sets[name]
				}
			}
		}
	}
}

// note tells what is kept.
func (k *keeping) note(kept *driver.Kept, names map[int]string) {
	for s := range k.slots {
		kept.Policy++
		switch {
		case s.chain == fromChain:
			kept.Senders[s.addr] = true
		case s.chain == toChain:
			kept.Receivers[s.addr] = true
		case s.table == "raw":
			kept.Untracked = true
		}
		for index, name := range names {
			if strings.HasSuffix(s.device, " "+name) && s.table != "raw" {
				kept.Hosts[index] = true
			}
		}
	}
}

// keepMembers leaves in the kernel's sets what a want that may lack something does not name, and
// none before it.
func (j *judge) keepMembers(c *imageDiff, last *state.Policy, kept *driver.Kept) {
	before := newImage()
	if last != nil {
		j.whole(last, nil, before)
	}
	var rest []membership
	for _, m := range c.remove {
		if s := before.sets[m.set]; lookupOf(m.set) == "" || s != nil && s.elements[m.element] {
			rest = append(rest, m)
			continue
		}
		kept.Policy++
		if m.net.IsValid() {
			kept.Members[m.net] = true
		} else {
			kept.Members[netip.PrefixFrom(m.addr, m.addr.BitLen())] = true
		}
	}
	c.remove = rest
}
