package nftables

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/nft"
)

// Packets meet a table as they arrive by an interface in a chain of that interface, which is there
// from when farms need it for as long as they are served there. It has rules for those of the
// ruleset's arrivals that are in use.

// arrival is what packets meet as they arrive: a chain that exists while a farm uses it.
type arrival struct {
	chain string
	at    *family
	// shortcut does in the interface's own chain what the chain does, for farms that use it, and
	// nothing for others, which the arrivals after it serve; nil: packets are led to the chain.
	shortcut func(nft.Rule) nft.Rule
}

const (
	devicePrefix     = "device-"
	beforeForwarding = -1 // of lists: the other table forwards at 0
)

// devices has the chains of interfaces be those that are needed.
func (c *tableChange) devices(indexes map[int]struct{}) {
	var to []arrival
	changed := false
	for _, a := range c.rs.arrivals {
		_, used := c.Refs.Chains[a.chain]
		_, was := c.before.Chains[a.chain]
		changed = changed || used != was
		if !used || a.shortcut != nil && slices.ContainsFunc(to, func(o arrival) bool { return o.at == a.at }) {
			continue // one shortcut a family
		}
		to = append(to, a)
	}
	served := map[string]bool{}
	for index := range indexes {
		name := fmt.Sprintf("%s%d", devicePrefix, index)
		served[name] = true
		found, was := c.before.Chains[name]
		if len(to) == 0 {
			if was {
				c.OwnRefs().Idle(name, *found.Hook)
			}
			continue
		}
		device, err := c.t.links.Interface(index)
		switch {
		case err == nil:
		case was: // it has just gone
			c.OwnRefs().Chains[name] = found
			continue
		default:
			continue
		}
		if was && changed && len(found.Chain.Rules) != found.Rules { // not known: they are written anew
			found.Rules = -1
			c.before.Chains[name] = found
		}
		c.OwnRefs().Put(c.rs.deviceChain(name, device, to))
		c.covers = append(c.covers, index)
	}
	for name := range c.before.Chains {
		if strings.HasPrefix(name, devicePrefix) && !served[name] {
			c.leaving = append(c.leaving, name)
		}
	}
}

func (rs *ruleset) deviceChain(name string, device link.Interface, to []arrival) nft.Chain {
	c := nft.Chain{Name: name, Comment: "what arrives by " + device.Name, Hook: nft.IngressHook(device.Name, beforeForwarding)}
	if rs.NFProto == unix.NFPROTO_NETDEV {
		c.Hook = nft.NetdevHook(device.Name, 0)
	}
	for _, a := range to {
		r := rule()
		if rs.NFProto == unix.NFPROTO_NETDEV {
			r = arriving(a.at, device.Ethernet)
		}
		if a.shortcut != nil {
			r = a.shortcut(r)
		} else {
			r = r.Jump(a.chain)
		}
		c.Rules = append(c.Rules, r)
	}
	return c
}
