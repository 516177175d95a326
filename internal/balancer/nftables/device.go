package nftables

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
)

// Packets meet a table as they arrive by an interface in a chain of that interface, which is there
// from when farms need it for as long as they are served there. It jumps to those of the program's
// arrivals that are in use: chains that exist while a farm uses them.

const (
	devicePrefix     = "device-"
	beforeForwarding = -1 // of lists: the other table forwards at 0
)

// devices has the chains of interfaces be those that are needed, and returns the interfaces that
// have one.
func (c *change) devices(indexes map[int]struct{}) (have []int) {
	for name, r := range c.refs {
		if strings.HasPrefix(name, devicePrefix) {
			r.uses = 0
			c.refs[name] = r
		}
	}
	var to []string
	changed := false
	for _, name := range c.p.arrivals {
		r := c.refs[name]
		if r.uses > 0 {
			to = append(to, name)
		}
		changed = changed || (r.uses > 0) != (r.was > 0)
	}
	c.served = map[string]bool{}
	for index := range indexes {
		name := fmt.Sprintf("%s%d", devicePrefix, index)
		c.served[name] = true
		if len(to) == 0 {
			continue
		}
		device, err := c.t.links.Name(index)
		r := c.refs[name]
		if r.was == 0 && err != nil {
			continue // it has gone already
		}
		chain := c.p.deviceChain(name, device, to)
		c.refs.use(name, 1, func() nft.Chain { return chain })
		if r.was > 0 && !r.idle && (changed || r.rules != len(chain.Rules)) {
			c.turn(name, chain)
		}
		have = append(have, index)
	}
	c.covers = have
	return have
}

func (p *program) deviceChain(name, device string, to []string) nft.Chain {
	c := nft.Chain{Name: name, Comment: "what arrives by " + device, Hook: nft.IngressHook(device, beforeForwarding), Rules: p.before}
	if p.of == unix.NFPROTO_NETDEV {
		c.Hook = nft.NetdevHook(device, 0)
	}
	for _, chain := range to {
		c.Rules = append(c.Rules[:len(c.Rules):len(c.Rules)], rule().Jump(chain))
	}
	return c
}

// vanished forgets chains of interfaces that went with their interface, where the change would
// remove them.
func (c *change) vanished(ctx context.Context) error {
	var have map[string]bool
	for name, r := range c.refs {
		if !strings.HasPrefix(name, devicePrefix) && !strings.HasPrefix(name, tunnelPrefix) || r.uses > 0 || r.was == 0 {
			continue
		}
		if have == nil {
			have = map[string]bool{}
			err := c.t.sock.ReadChains(ctx, TableName, func(chain string, _ *nft.Hook) { have[chain] = true })
			if err != nil {
				return fmt.Errorf("list chains: %w", err)
			}
		}
		if !have[name] {
			delete(c.refs, name)
		}
	}
	return nil
}
