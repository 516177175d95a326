package admission

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// MaxSize bounds what one policy may ask for, in the units of sizeOf: about the number of set
// elements that it takes. An API server accepts objects of 1.5 MB, some of which would come to many
// times that in the kernel.
const MaxSize = 1 << 19

// What parts of a policy count for.
const (
	ruleSize     = 64  // the kernel goes through all rules when a verdict changes, of a service too
	selectorSize = 128 // whatever it selects: Limits bound that
	rangeSize    = 4   // of ports
	nameSize     = 32  // of a port: a look-up of the kernel's for each family
)

// LookupSize is what each length of prefix counts for at an end of a rule, and in each network set
// that a selector selects: it is a rule of the kernel's.
const LookupSize = 64

// TooManyLookups says why a policy that was read is not applied.
func TooManyLookups(n int) string {
	return fmt.Sprintf("its selectors select network sets of so many lengths of prefix, or so many host endpoints with many addresses, that its rules count for %d, and a policy may have %d; it allows nothing until then: select fewer, or make the sets of fewer lengths", n, MaxSize)
}

// Excess says why a policy is too large to be applied; "" if it is not.
func Excess(p *model.Policy) string {
	if n := sizeOf(p); n > MaxSize {
		return fmt.Sprintf("it is too large: its rules, networks, exceptions, selectors and ports count for %d, and a policy may have %d (a rule counts for %d, a selector for %d, each length of prefix at an end of a rule for %d, a port's name for %d; docs/limits.md has the rest); make it several policies",
			n, MaxSize, ruleSize, selectorSize, LookupSize, nameSize)
	}
	return ""
}

func sizeOf(p *model.Policy) (n int) {
	for _, rules := range [][]model.PolicyRule{p.IngressRules, p.EgressRules} {
		for i := range rules {
			n += RuleSize(&rules[i])
		}
	}
	return n
}

// RuleSize is what a rule counts for.
func RuleSize(r *model.PolicyRule) int {
	return ruleSize + endSize(&r.Source) + endSize(&r.Destination)
}

func endSize(e *model.RuleEnd) int {
	n := 0
	for _, p := range slices.Concat(e.Ports, e.NotPorts) {
		if p.Name != "" || p.Service != (model.Name{}) {
			n += nameSize
		} else {
			n += rangeSize
		}
	}
	for _, peers := range e.Peers {
		n += peersSize(peers)
	}
	return n + peersSize(e.NotPeers)
}

func peersSize(peers []model.Peer) (n int) {
	var lengths [2][129]bool // by family
	note := func(p netip.Prefix, from int) {
		family := 0
		if p.Addr().Is6() {
			family = 1
		}
		for bits := max(from, 0); bits <= p.Bits(); bits++ {
			if !lengths[family][bits] {
				lengths[family][bits] = true
				n += LookupSize
			}
		}
	}
	for _, p := range peers {
		for _, c := range p.Nets {
			note(c, c.Bits())
		}
		for _, e := range p.Except { // what is left around it has the lengths between
			for _, c := range p.Nets {
				if c.Overlaps(e) {
					note(e, c.Bits())
				}
			}
		}
		if !p.Selector.IsZero() || p.Service != (model.Name{}) {
			n += selectorSize
		}
		n += len(p.Nets)
		for _, e := range p.Except {
			longer := e.Bits()
			if len(p.Nets) == 1 {
				longer -= p.Nets[0].Bits()
			}
			n += max(longer, 0)
		}
	}
	return n
}
