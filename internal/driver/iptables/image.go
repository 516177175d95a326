package iptables

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/model"
)

// image is what the kernel holds of ours in one family, or shall hold, or a part of that.
type image struct {
	chains map[chain][]string // of built-in chains, our rules alone
	sets   map[string]*set
}

// chain is a chain of a table.
type chain struct{ table, name string }

// set is an ipset. What packets put into one with a time-out is not looked at.
type set struct {
	kind     string // "hash:ip,port"
	timeout  bool
	most     uint32 // elements; 0: maxElements
	elements map[element]bool
}

// element is one of a set. What the set's type does not have is zero.
type element struct {
	addr     netip.Addr
	protocol model.Protocol
	port     uint16
	net      netip.Prefix
}

// String prints the element as ipset does.
func (e element) String() string {
	var parts []string
	if e.addr.IsValid() {
		parts = append(parts, e.addr.String())
	}
	if e.protocol != 0 {
		parts = append(parts, fmt.Sprintf("%s:%d", protocol(e.protocol), e.port))
	}
	if e.net.IsValid() {
		parts = append(parts, e.net.String())
	}
	return strings.Join(parts, ",")
}

func newImage() *image { return &image{chains: map[chain][]string{}, sets: map[string]*set{}} }

// rule adds rules to a chain, which is there then even if there are none.
func (i *image) rule(table, name string, rules ...string) {
	c := chain{table, name}
	i.chains[c] = append(i.chains[c], rules...)
}

// set returns a set, new if it was not there.
func (i *image) set(name, kind string) *set {
	if i.sets[name] == nil {
		i.sets[name] = &set{kind: kind, elements: map[element]bool{}}
	}
	return i.sets[name]
}

// late is before a rule of policy in a built-in chain that has rules of others before it: what
// those accept, it would not see. It is not where it should be.
const late = "late: "

// same reports whether the rules of a chain are the same. Chains of endpoints' rules are
// named after theirs.
func (c chain) same(rules, others []string) bool {
	for _, at := range sites {
		if strings.HasPrefix(c.name, prefix+at.kind+"-") {
			return len(rules) == len(others)
		}
	}
	return slices.Equal(rules, others)
}

// of returns what the image has of some parts of the state.
func (i *image) of(p parts) *image {
	part := newImage()
	for c, rules := range i.chains {
		if !c.builtin() && p.has(isPolicy(c.name)) {
			part.rule(c.table, c.name, rules...)
		}
		for _, r := range rules {
			if c.builtin() && p.has(strings.Contains(r, " "+policyPrefix)) {
				part.rule(c.table, c.name, r)
			}
		}
	}
	for name, s := range i.sets {
		if p.has(isPolicy(name)) {
			part.sets[name] = s
		}
	}
	return part
}

func (p parts) has(policy bool) bool { return policy && p.policy || !policy && p.services }

// isPolicy reports whether a chain or a set is of policy.
func isPolicy(name string) bool {
	for _, p := range []string{prefix, prefix + "4-", prefix + "6-"} {
		if strings.HasPrefix(name, p+"P-") {
			return true
		}
	}
	return false
}

// builtin reports whether the chain is the kernel's own.
func (c chain) builtin() bool { return !strings.HasPrefix(c.name, prefix) }

// imageDiff is the difference between two images.
type imageDiff struct {
	v6      bool
	create  map[string]*set
	add     []membership
	restore string          // for iptables-restore; "": no rule differs
	rules   int             // lines of it that change something
	chains  map[string]bool // of ours, that they are about
	remove  []membership
	destroy []string
}

type membership struct {
	set string
	element
	left time.Duration // for which it is there; 0: for good
}

// diffImages returns what leads from what there is to what is wanted.
func diffImages(v6 bool, have, want *image) *imageDiff {
	c := &imageDiff{v6: v6, create: map[string]*set{}, chains: map[string]bool{}}
	for name, s := range want.sets {
		old := have.sets[name]
		if old == nil {
			c.create[name] = s
			old = &set{}
		}
		for e := range s.elements {
			if !old.elements[e] {
				c.add = append(c.add, membership{set: name, element: e})
			}
		}
	}
	for name, s := range have.sets {
		if want.sets[name] == nil {
			c.destroy = append(c.destroy, name)
			continue
		}
		for e := range s.elements {
			if !want.sets[name].elements[e] {
				c.remove = append(c.remove, membership{set: name, element: e})
			}
		}
	}
	slices.Sort(c.destroy)
	var b strings.Builder
	for _, table := range tables {
		b.WriteString(c.table(table, have, want))
	}
	c.restore = b.String()
	return c
}

// table writes what iptables-restore shall do in a table. All chains that differ are emptied before
// any is filled, so that those which go are not in use any more.
func (c *imageDiff) table(table string, have, want *image) string {
	var declared, filled, gone []string
	names := map[chain]bool{}
	for name := range have.chains {
		names[name] = true
	}
	for name := range want.chains {
		names[name] = true
	}
	for _, n := range slices.SortedFunc(maps.Keys(names), func(a, b chain) int { return strings.Compare(a.name, b.name) }) {
		before, had := have.chains[n]
		after, wanted := want.chains[n]
		switch {
		case n.table != table || had == wanted && n.same(before, after):
			continue
		case n.builtin():
			for _, r := range before {
				if !slices.Contains(after, r) {
					filled = append(filled, "-D "+n.name+" "+strings.TrimPrefix(r, late))
				}
			}
			for _, r := range slices.Backward(after) {
				if !slices.Contains(before, r) {
					filled = append(filled, "-I "+n.name+" 1 "+r)
				}
			}
			continue
		}
		c.chains[n.name] = true
		declared = append(declared, ":"+n.name+" - [0:0]")
		for _, r := range after {
			filled = append(filled, "-A "+n.name+" "+r)
		}
		if !wanted {
			gone = append(gone, "-X "+n.name)
		}
	}
	lines := slices.Concat(declared, filled, gone)
	if len(lines) == 0 {
		return ""
	}
	c.rules += len(lines)
	return "*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
}

// operations is how many there are.
func (c *imageDiff) operations() int {
	return len(c.create) + len(c.add) + c.rules + len(c.remove) + len(c.destroy)
}

// String prints the change as lines for ipset and iptables-restore.
func (c *imageDiff) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.create)) {
		fmt.Fprintf(&b, "create %s %s\n", name, c.create[name].kind)
	}
	print := func(verb string, all []membership) {
		lines := make([]string, len(all))
		for i, m := range all {
			lines[i] = fmt.Sprintf("%s %s %s\n", verb, m.set, m.element)
		}
		slices.Sort(lines)
		b.WriteString(strings.Join(lines, ""))
	}
	print("add", c.add)
	if c.restore != "" {
		program := "iptables-restore"
		if c.v6 {
			program = "ip6tables-restore"
		}
		b.WriteString("# " + program + "\n" + c.restore)
	}
	print("del", c.remove)
	for _, name := range c.destroy {
		fmt.Fprintf(&b, "destroy %s\n", name)
	}
	return b.String()
}
