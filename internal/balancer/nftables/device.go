package nftables

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
)

// Packets meet a table as they arrive by an interface in a chain of that interface, which is there
// from when farms need it for as long as they are served there. It jumps to those of the ruleset's
// arrivals that are in use: chains that exist while a farm uses them.

const (
	devicePrefix     = "device-"
	beforeForwarding = -1 // of lists: the other table forwards at 0
)

// devices has the chains of interfaces be those that are needed.
func (c *tableChange) devices(indexes map[int]struct{}) {
	var to []string
	changed := false
	for _, name := range c.rs.arrivals {
		_, used := c.Refs.Chains[name]
		_, was := c.before.Chains[name]
		if used {
			to = append(to, name)
		}
		changed = changed || used != was
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
		device, err := c.t.links.Name(index)
		if !was && err != nil {
			continue // it has gone already
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

func (rs *ruleset) deviceChain(name, device string, to []string) nft.Chain {
	c := nft.Chain{Name: name, Comment: "what arrives by " + device, Hook: nft.IngressHook(device, beforeForwarding), Rules: rs.before}
	if rs.NFProto == unix.NFPROTO_NETDEV {
		c.Hook = nft.NetdevHook(device, 0)
	}
	for _, chain := range to {
		c.Rules = append(c.Rules[:len(c.Rules):len(c.Rules)], rule().Jump(chain))
	}
	return c
}
