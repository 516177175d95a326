package model

import (
	"fmt"
	"net/netip"
	"strings"
)

// IssueLines writes sorted issues. Those of more than a few Nodes that differ only in the Node and
// in addresses are one line with the addresses of the first: "Node a and 16 alike (b, c, d and 13
// more): what is wrong".
func IssueLines(issues []Issue) (lines []string) {
	const few = 3
	nodes := map[Issue][]string{}
	for _, i := range issues {
		if name := i.Object.Name.Name; i.Object.Kind == NodeKind {
			kind := i.alike()
			if n := len(nodes[kind]); n == 0 || nodes[kind][n-1] != name {
				nodes[kind] = append(nodes[kind], name)
			}
		}
	}
	said := map[Issue]bool{}
	for _, i := range issues {
		if i.Object.Kind != NodeKind {
			lines = append(lines, i.String())
			continue
		}
		kind := i.alike()
		switch names := nodes[kind]; {
		case len(names) <= few:
			lines = append(lines, i.String())
		case !said[kind]:
			said[kind] = true
			lines = append(lines, Printable(fmt.Sprintf("%s and %d alike (%s): %s", i.head(), len(names)-1, FirstFew(names[1:], few), i.Text())))
		}
	}
	return lines
}

// alike is what an issue has in common with those that differ only in the object and in addresses.
func (i Issue) alike() Issue {
	words := strings.Fields(i.Reason)
	for at, word := range words {
		word = strings.Trim(word, "(),;")
		if isAddress(word) || isAddress(strings.TrimSuffix(word, ":")) {
			words[at] = ""
		}
	}
	return Issue{Reason: strings.Join(words, " "), InForce: i.InForce}
}

// isAddress reports whether a text is an IP address, a prefix or a MAC.
func isAddress(text string) bool {
	_, noAddr := netip.ParseAddr(text)
	_, noPrefix := netip.ParsePrefix(text)
	const mac = len("66:01:02:03:04:05")
	return noAddr == nil || noPrefix == nil || len(text) == mac && strings.Count(text, ":") == 5
}
