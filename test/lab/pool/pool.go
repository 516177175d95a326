// Package pool assigns addresses of a prefix: a node's to its pods, a load balancer's to Services.
package pool

import (
	"fmt"
	"net/netip"
	"sync"
)

// Pool assigns the addresses of one prefix, except its first and, for IPv4, its last. It goes
// round: a released address is the last to be assigned again, so that whatever remembers its last
// owner has time to forget it. It is safe for concurrent use.
type Pool[Owner comparable] struct {
	prefix netip.Prefix

	mu     sync.Mutex
	next   netip.Addr // where to search first
	owners map[netip.Addr]Owner
	has    map[Owner]netip.Addr
}

// New makes a pool with all addresses free.
func New[Owner comparable](prefix netip.Prefix) *Pool[Owner] {
	prefix = prefix.Masked()
	return &Pool[Owner]{
		prefix: prefix, next: prefix.Addr(), owners: map[netip.Addr]Owner{}, has: map[Owner]netip.Addr{},
	}
}

// Prefix is the pool's prefix.
func (p *Pool[Owner]) Prefix() netip.Prefix { return p.prefix }

// Take returns the owner's address: its present one, or else a free one.
func (p *Pool[Owner]) Take(owner Owner) (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, ok := p.has[owner]; ok {
		return a, nil
	}
	a := p.next
	for range len(p.owners) + 3 { // those that are taken, and up to two that are never assigned
		if !a.IsValid() || !p.prefix.Contains(a) {
			a = p.prefix.Addr()
		}
		if _, taken := p.owners[a]; !taken && p.usable(a) {
			p.give(a, owner)
			return a, nil
		}
		a = a.Next()
	}
	return netip.Addr{}, fmt.Errorf("take an address of %s: all %d are in use", p.prefix, len(p.owners))
}

// Claim gives the owner exactly this address instead of its present one. It returns false, and
// changes nothing, if the address has another owner or cannot be assigned.
func (p *Pool[Owner]) Claim(owner Owner, a netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o, taken := p.owners[a]; taken {
		return o == owner
	}
	if !p.prefix.Contains(a) || !p.usable(a) {
		return false
	}
	p.release(owner)
	p.give(a, owner)
	return true
}

// Release releases the owner's address, if it has one.
func (p *Pool[Owner]) Release(owner Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(owner)
}

func (p *Pool[Owner]) give(a netip.Addr, owner Owner) {
	p.owners[a], p.has[owner], p.next = owner, a, a.Next()
}

func (p *Pool[Owner]) release(owner Owner) {
	if a, ok := p.has[owner]; ok {
		delete(p.owners, a)
		delete(p.has, owner)
	}
}

// usable leaves out a prefix's first address, and of IPv4 the broadcast address.
func (p *Pool[Owner]) usable(a netip.Addr) bool {
	return a != p.prefix.Addr() && (a.Is6() || p.prefix.Contains(a.Next()))
}
