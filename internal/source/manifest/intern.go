package manifest

// maxInterned bounds what an interner remembers; past it, it starts over.
const maxInterned = 1 << 16

// interner keeps one copy of strings that come again and again: names of
// nodes, zones and ports, keys of labels. The zero value is ready to use.
type interner struct {
	seen map[string]*string
}

// intern returns the one copy of a string.
func (n *interner) intern(b []byte) *string {
	if s, ok := n.seen[string(b)]; ok {
		return s
	}
	if n.seen == nil || len(n.seen) >= maxInterned {
		n.seen = make(map[string]*string)
	}
	s := string(b)
	n.seen[s] = &s
	return &s
}
