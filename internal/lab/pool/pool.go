// Package pool hands out addresses of a prefix: a node's to its pods, a load balancer's to
// Services.
package pool

import (
	"fmt"
	"net/netip"
	"sync"
)

// Pool hands out the addresses of one prefix, but for its first and, of IPv4, its last, which are
// no host's. It goes round: an address that was given back is the last to be given again, so that
// what still remembers its last owner has time to forget. It is safe for concurrent use.
type Pool[Owner comparable] struct {
	prefix netip.Prefix

	mu     sync.Mutex
	next   netip.Addr // where to look first
	owners map[netip.Addr]Owner
	has    map[Owner]netip.Addr
}

// New makes a pool of which all is free.
func New[Owner comparable](prefix netip.Prefix) *Pool[Owner] {
	prefix = prefix.Masked()
	return &Pool[Owner]{
		prefix: prefix, next: prefix.Addr(), owners: map[netip.Addr]Owner{}, has: map[Owner]netip.Addr{},
	}
}

// Prefix is what the addresses are of.
func (p *Pool[Owner]) Prefix() netip.Prefix { return p.prefix }

// Take returns the owner's address: the one that it has, or else one that is free.
func (p *Pool[Owner]) Take(owner Owner) (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, ok := p.has[owner]; ok {
		return a, nil
	}
	a := p.next
	for range len(p.owners) + 3 { // those that are taken, and up to two that nobody may have
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

// Claim gives the owner this very address, in place of the one that it has. It reports false, and
// changes nothing, if the address is someone else's or not one that the pool may give.
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

// Release takes back what the owner has, if it has one.
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
