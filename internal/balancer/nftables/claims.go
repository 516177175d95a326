package nftables

import (
	"slices"
	"strings"

	"sluice.dev/sluice/internal/kernel/nft"
)

// elementClaims are the elements that several farms may want with different values, and who wants
// them: of the farms with one backend, its answers can be led back to one alone. The first by name
// has it. Sources refuse such farms; here no more than that must come of them.
type elementClaims map[elementKey][]elementClaim // sorted by farm

type elementClaim struct {
	farm    string
	element nft.Element
}

// elementKey identifies an element of the table.
type elementKey struct {
	set *nft.Set
	nft.ElementKey
}

// claimChange is a change of claims.
type claimChange struct{ held, next elementClaims } // next has those that change

func begin(held elementClaims) *claimChange { return &claimChange{held, elementClaims{}} }

// find returns the claims to an element, and where the farm's is or would be.
func (c *claimChange) find(farm string, k elementKey) (all []elementClaim, at int, there bool) {
	all, ok := c.next[k]
	if !ok {
		all = c.held[k]
	}
	at, there = slices.BinarySearchFunc(all, farm, func(c elementClaim, farm string) int { return strings.Compare(c.farm, farm) })
	return all, at, there
}

// claim has a farm want an element. Where it wants it with several values, the first counts.
func (c *claimChange) claim(farm string, e *nft.Element) {
	k := elementKey{e.Set, e.ElementKey}
	if all, at, there := c.find(farm, k); !there {
		c.next[k] = slices.Insert(slices.Clone(all), at, elementClaim{farm, *e})
	}
}

// withdraw takes a claim back.
func (c *claimChange) withdraw(farm string, e *nft.Element) {
	k := elementKey{e.Set, e.ElementKey}
	if all, at, there := c.find(farm, k); there {
		c.next[k] = slices.Delete(slices.Clone(all), at, at+1)
	}
}

// settle has the change be done.
func (c *claimChange) settle() elementClaims {
	for k, all := range c.next {
		if len(all) == 0 {
			delete(c.held, k)
		} else {
			c.held[k] = all
		}
	}
	return c.held
}

// claimed plans what comes of the claims that change.
func (c *tableChange) claimed() {
	of := func(claims elementClaims) func(yield func(*nft.Element)) {
		return func(yield func(*nft.Element)) {
			for k := range c.claims.next {
				if all := claims[k]; len(all) > 0 {
					yield(&all[0].element)
				}
			}
		}
	}
	c.Replace(of(c.claims.held), of(c.claims.next))
}
