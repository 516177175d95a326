package kubelet

import (
	"fmt"
	"net/netip"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// pools hands out a node's pod addresses, one of each prefix. It goes round: an
// address that was given back is the last to be given again, so that what still
// remembers its last owner has time to forget. It is safe for concurrent use.
type pools struct {
	mu    sync.Mutex
	pools []*pool
}

type pool struct {
	prefix netip.Prefix
	next   netip.Addr // where to look first
	owners map[netip.Addr]types.UID
}

func newPools(prefixes []netip.Prefix) *pools {
	ps := &pools{}
	for _, p := range prefixes {
		ps.pools = append(ps.pools, &pool{prefix: p.Masked(), next: p.Masked().Addr(), owners: map[netip.Addr]types.UID{}})
	}
	return ps
}

// take returns a free address of each prefix, in their order, and remembers whose they are.
func (ps *pools) take(owner types.UID) ([]netip.Addr, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var taken []netip.Addr
	for _, p := range ps.pools {
		a, ok := p.find()
		if !ok {
			ps.forget(owner)
			return nil, fmt.Errorf("take an address of %s: all %d are in use", p.prefix, len(p.owners))
		}
		p.set(a, owner)
		taken = append(taken, a)
	}
	return taken, nil
}

// claim remembers whose addresses are that were taken in an earlier life. It reports
// false, and claims none, if one is of no prefix or belongs to someone else.
func (ps *pools) claim(owner types.UID, addrs []netip.Addr) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, a := range addrs {
		p := ps.of(a)
		if p == nil {
			return false
		}
		if o, ok := p.owners[a]; ok && o != owner {
			return false
		}
	}
	for _, a := range addrs {
		ps.of(a).set(a, owner)
	}
	return len(addrs) > 0
}

// release gives back all that the owner has.
func (ps *pools) release(owner types.UID) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.forget(owner)
}

func (ps *pools) forget(owner types.UID) {
	for _, p := range ps.pools {
		for a, o := range p.owners {
			if o == owner {
				delete(p.owners, a)
			}
		}
	}
}

func (ps *pools) of(a netip.Addr) *pool {
	for _, p := range ps.pools {
		if p.prefix.Contains(a) {
			return p
		}
	}
	return nil
}

func (p *pool) set(a netip.Addr, owner types.UID) { p.owners[a], p.next = owner, a.Next() }

// find looks for a free address from next on, once round.
func (p *pool) find() (netip.Addr, bool) {
	a := p.next
	for range len(p.owners) + 3 { // those that are taken, and up to two that nobody may have
		if !a.IsValid() || !p.prefix.Contains(a) {
			a = p.prefix.Addr()
		}
		if _, taken := p.owners[a]; !taken && p.usable(a) {
			return a, true
		}
		a = a.Next()
	}
	return netip.Addr{}, false
}

// usable leaves out a prefix's first address, and of IPv4 the broadcast address.
func (p *pool) usable(a netip.Addr) bool {
	next := a.Next()
	return a != p.prefix.Addr() && (a.Is6() || next.IsValid() && p.prefix.Contains(next))
}
