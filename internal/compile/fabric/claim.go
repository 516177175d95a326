package fabric

import (
	"cmp"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// claims are who claims what only one node can have. The oldest of them has it.
type claims[K comparable] map[K][]*model.Node

// add adds a claim, and to again those whose claims are the same.
func (c claims[K]) add(k K, n *model.Node, again map[string]bool) {
	rivals := c[k]
	i, _ := slices.BinarySearchFunc(rivals, n, older)
	name(rivals, again)
	c[k] = slices.Insert(rivals, i, n)
}

// drop takes a node's claim back.
func (c claims[K]) drop(k K, node string, again map[string]bool) {
	rest := slices.DeleteFunc(c[k], func(n *model.Node) bool { return n.Name == node })
	name(rest, again)
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

// other names another node that claims the same; "" if there is none.
func (c claims[K]) other(k K, node string) string {
	for _, n := range c[k] {
		if n.Name != node {
			return n.Name
		}
	}
	return ""
}

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
