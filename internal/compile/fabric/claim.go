package fabric

import (
	"cmp"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// claims are who claims what only one node can have. The oldest of them has it.
type claims[K comparable] map[K][]*model.Node

// add adds a claim, and to again those whose claims are the same if another has it now.
func (c claims[K]) add(k K, n *model.Node, again map[string]bool) {
	rivals := c[k]
	i, _ := slices.BinarySearchFunc(rivals, n, older)
	if i == 0 {
		name(rivals, again)
	}
	c[k] = slices.Insert(rivals, i, n)
}

// drop takes a node's claim back.
func (c claims[K]) drop(k K, n *model.Node, again map[string]bool) {
	i, _ := slices.BinarySearchFunc(c[k], n, older)
	rest := slices.Delete(c[k], i, i+1)
	if i == 0 {
		name(rest, again)
	}
	if c[k] = rest; len(rest) == 0 {
		delete(c, k)
	}
}

func name(nodes []*model.Node, into map[string]bool) {
	for _, n := range nodes {
		into[n.Name] = true
	}
}

// winner is the node that has what is claimed.
func (c claims[K]) winner(k K) string { return c[k][0].Name }

// older orders nodes by age; the zero time is the newest.
func older(a, b *model.Node) int {
	if a.Created.IsZero() != b.Created.IsZero() {
		if a.Created.IsZero() {
			return 1
		}
		return -1
	}
	return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
}
