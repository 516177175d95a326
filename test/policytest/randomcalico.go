package policytest

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"sluice.dev/sluice/test/policytest/oracle"
)

// calico are random objects of Calico's: tiers before, between and after those that
// are always there.
func (d dice) calico() (c oracle.Calico) {
	tiers := []string{"default"}
	for i, order := range []float64{10, 5_000, 2_000_000} {
		if d.IntN(2) == 0 {
			t := oracle.CalicoTier{Name: fmt.Sprint("tier-", i), Order: order, DefaultAction: one(d, "Deny", "Pass")}
			c.Tiers, tiers = append(c.Tiers, t), append(tiers, t.Name)
		}
	}
	for i := range d.IntN(3) {
		c.Sets = append(c.Sets, oracle.CalicoSet{
			Namespace: one(d, append(randomNamespaces, "", "")...), Name: fmt.Sprint("set-", i), Labels: d.labels(),
			Nets: append(some(d, 1, d.net), d.net()),
		})
	}
	orders := d.Perm(10)
	for i := range d.IntN(5) {
		c.Policies = append(c.Policies, d.calicoPolicy(fmt.Sprint("p-", i), one(d, tiers...), float64(990+orders[i]*3)))
	}
	return c
}

func (d dice) calicoPolicy(name, tier string, order float64) oracle.CalicoPolicy {
	p := oracle.CalicoPolicy{Name: name, Tier: tier, Order: order, Selector: d.calicoSelector(1)}
	if d.IntN(2) == 0 {
		p.Namespace = one(d, randomNamespaces...)
	} else if d.IntN(3) == 0 {
		p.NamespaceSelector = d.calicoNamespaces()
	}
	p.Types = one(d, nil, []string{"Ingress"}, []string{"Egress"}, []string{"Ingress", "Egress"})
	global := p.Namespace == ""
	rule := func() oracle.CalicoRule { return d.calicoRule(global) }
	p.Ingress, p.Egress = some(d, 3, rule), some(d, 3, rule)
	for i := range p.Ingress {
		if d.IntN(5) == 0 {
			p.Ingress[i].Source = oracle.CalicoEnd{Service: one(d, randomNamespaces...) + "/service"}
		}
	}
	for i := range p.Egress {
		if d.IntN(5) == 0 {
			p.Egress[i].Destination = oracle.CalicoEnd{Service: one(d, randomNamespaces...) + "/service"}
		}
	}
	if p.Types != nil && !slices.Contains(p.Types, "Ingress") {
		p.Ingress = nil
	}
	if p.Types != nil && !slices.Contains(p.Types, "Egress") {
		p.Egress = nil
	}
	return p
}

var (
	ipv4Nets = []string{"10.244.1.0/30", "10.244.0.0/16", "198.51.100.7/32", "192.168.0.0/16"}
	ipv6Nets = []string{"fd00:10:244:1::/126", "fd00::/16", "2001:db8::/32"}
)

func (d dice) net() string { return one(d, slices.Concat(ipv4Nets, ipv6Nets)...) }

func (d dice) calicoRule(global bool) oracle.CalicoRule {
	nets := one(d, ipv4Nets, ipv6Nets) // of one family in a rule
	r := oracle.CalicoRule{Action: one(d, "Allow", "Allow", "Deny", "Pass", "Log"), Source: d.calicoEnd(global, nets), Destination: d.calicoEnd(global, nets)}
	switch d.IntN(4) {
	case 0:
		r.NotProtocol = string(one(d, Protocols...))
	case 1, 2:
		r.Protocol = string(one(d, Protocols...))
		r.Destination.Ports = some(d, 2, d.calicoPort)
		if d.IntN(4) == 0 {
			r.Destination.NotPorts = some(d, 2, d.calicoPort)
		}
	}
	return r
}

func (d dice) calicoPort() string {
	return one(d, "80", "53", "1", "65535", "50:90", "8000:8100", "web", "dns")
}

func (d dice) calicoEnd(global bool, nets []string) (e oracle.CalicoEnd) {
	switch d.IntN(6) {
	case 0:
		e.Selector = d.calicoSelector(2)
	case 1:
		e.Selector, e.NamespaceSelector = d.calicoSelector(1), d.calicoNamespaces()
	case 2:
		e.Nets = append(some(d, 1, func() string { return one(d, nets...) }), one(d, nets...))
	case 3:
		if global {
			e.NotSelector = d.calicoSelector(1)
		}
	}
	if d.IntN(6) == 0 {
		e.NotNets = []string{one(d, nets...)}
	}
	return e
}

func (d dice) calicoNamespaces() oracle.Selector {
	if d.IntN(2) == 0 {
		return d.comparison("projectcalico.org/name", randomNamespaces)
	}
	return d.calicoSelector(0)
}

// calicoSelector is a random expression, nested up to depth.
func (d dice) calicoSelector(depth int) oracle.Selector {
	if depth > 0 && d.IntN(2) == 0 {
		a, b := d.calicoSelector(depth-1), d.calicoSelector(depth-1)
		switch d.IntN(3) {
		case 0:
			return oracle.Selector{Text: "(" + a.Text + ") && (" + b.Text + ")", Means: func(l labels.Set) bool { return a.Means(l) && b.Means(l) }}
		case 1:
			return oracle.Selector{Text: "(" + a.Text + ") || (" + b.Text + ")", Means: func(l labels.Set) bool { return a.Means(l) || b.Means(l) }}
		}
		return oracle.Selector{Text: "!(" + a.Text + ")", Means: func(l labels.Set) bool { return !a.Means(l) }}
	}
	return d.comparison(one(d, "app", "tier", "env"), []string{"a", "b", "c"})
}

func (d dice) comparison(key string, values []string) oracle.Selector {
	v, w := one(d, values...), one(d, values...)
	has := func(test func(string) bool) func(labels.Set) bool {
		return func(l labels.Set) bool { got, ok := l[key]; return ok && test(got) }
	}
	not := func(f func(labels.Set) bool) func(labels.Set) bool { return func(l labels.Set) bool { return !f(l) } }
	equal := has(func(s string) bool { return s == v })
	either := has(func(s string) bool { return s == v || s == w })
	return one(d,
		oracle.Selector{Text: "all()", Means: func(labels.Set) bool { return true }},
		oracle.Selector{Text: "has(" + key + ")", Means: has(func(string) bool { return true })},
		oracle.Selector{Text: key + " == '" + v + "'", Means: equal},
		oracle.Selector{Text: key + " != \"" + v + "\"", Means: not(equal)},
		oracle.Selector{Text: key + " in {'" + v + "', '" + w + "'}", Means: either},
		oracle.Selector{Text: key + " not in { '" + v + "','" + w + "' }", Means: not(either)},
		oracle.Selector{Text: key + " contains '" + v[:1] + "'", Means: has(func(s string) bool { return strings.Contains(s, v[:1]) })},
		oracle.Selector{Text: key + " starts with '" + v + "'", Means: has(func(s string) bool { return strings.HasPrefix(s, v) })},
		oracle.Selector{Text: key + " ends with '" + v + "'", Means: has(func(s string) bool { return strings.HasSuffix(s, v) })},
	)
}
