package hostile

import (
	"encoding/json"
	"fmt"

	"sluice.dev/sluice/test/bench/cluster"
)

// MostSelected is how many addresses a policy's selectors may select in one direction, see
// docs/limits.md.
const MostSelected = 1 << 20

// MaxSelectors is how many selectors a policy may have in one direction if each selects so many
// addresses.
func MaxSelectors(addresses int) int { return MostSelected / max(1, addresses) }

// The following policies have many different selectors, each of which selects most of all pods, so
// that their size is the product of both. A list of peers counts as one selector, so each selector
// has a rule of its own.

// wideCount is a number of selectors: few, or now and then about as many as a policy may have.
// Adding and removing those takes seconds.
func (d *dice) wideCount(each int) int {
	n := one(d, 1, 1, 2, 4)
	if d.IntN(8) == 0 {
		n = one(d, d.maxSelectors/2, d.maxSelectors-1, d.maxSelectors, d.maxSelectors, d.maxSelectors+1, 2*d.maxSelectors, 8*d.maxSelectors)
	}
	n = max(1, min(n, d.room/each))
	d.room -= n * each
	return n
}

// nobody is a name that no label has as key or value, either the policy's own or the same in many
// policies.
func (d *dice) nobody(own bool, i int) string {
	if own {
		return fmt.Sprintf("x%d-%d", d.number, i)
	}
	return fmt.Sprint("x", i)
}

// nearlyAll selects everything without a certain label value, or most of it.
func (d *dice) nearlyAll(name string) object {
	without := object{"key": one(d, "app", "role", "version", "kubernetes.io/metadata.name", name), "operator": "NotIn", "values": []string{name}}
	switch d.IntN(4) {
	case 0:
		without = object{"key": name, "operator": "DoesNotExist"}
	case 1:
		return object{"matchExpressions": []object{without, {"key": one(d, "app", "team", "kubernetes.io/metadata.name"), "operator": "Exists"}}}
	}
	return object{"matchExpressions": []object{without}}
}

// widePeer is a peer with a selector like nearlyAll.
func (d *dice) widePeer(plain bool, name string) object {
	if plain {
		return Wide("app", name)
	}
	switch d.IntN(4) {
	case 0:
		return object{"namespaceSelector": d.nearlyAll(name)}
	case 1:
		return object{"podSelector": d.nearlyAll(name)}
	case 2:
		return object{"namespaceSelector": d.nearlyAll(name), "podSelector": object{}}
	}
	return object{"namespaceSelector": object{}, "podSelector": d.nearlyAll(name)}
}

// Wide is a peer of a NetworkPolicy: all pods but those with a value of a label.
func Wide(key, value string) object {
	return object{"namespaceSelector": object{}, "podSelector": object{"matchExpressions": []object{{"key": key, "operator": "NotIn", "values": []string{value}}}}}
}

// WidePolicy is a tenant's NetworkPolicy for all of its pods, with so many selectors that no other
// policy has.
func WidePolicy(namespace, number, selectors int) cluster.File {
	d := &dice{number: number}
	rules := make([]object, selectors)
	for i := range rules {
		rules[i] = object{"from": []object{Wide("app", d.nobody(true, i))}}
	}
	meta := object{"name": fmt.Sprint("wide-", number), "namespace": tenant(namespace % tenants)}
	return file(fmt.Sprintf("wide-%04d.json", number), networkPolicy(meta, object{"podSelector": object{}, "ingress": rules}))
}

func (d *dice) wideNetworkPolicy() object {
	spec := object{"podSelector": one(d, object{}, object{}, object{"matchLabels": object{"tenant": "hostile"}}, d.nearlyAll(d.nobody(true, 0)))}
	own, plain := d.IntN(2) == 0, d.IntN(2) == 0
	which := d.IntN(3) // one side, the other, or both
	var types []string
	for i, side := range sides {
		if which == i {
			continue
		}
		types = append(types, []string{"Ingress", "Egress"}[i])
		rules := make([]object, d.wideCount(180))
		for j := range rules {
			rules[j] = object{side[1]: []object{d.widePeer(plain, d.nobody(own, j))}}
		}
		spec[side[0]] = rules
	}
	spec["policyTypes"] = types
	return spec
}

func (d *dice) wideClusterPeer(i int) object {
	name := d.nobody(true, i)
	if d.IntN(3) == 0 {
		return object{"namespaces": d.nearlyAll(name)}
	}
	return object{"pods": object{"namespaceSelector": object{}, "podSelector": d.nearlyAll(name)}}
}

// wideCalico makes a policy apply to all pods that it can select.
func (d *dice) wideCalico(spec object) {
	spec["selector"] = one(d, "all()", "!has(nobody)", "tenant != 'x'")
	own := d.IntN(2) == 0
	for i := range 1 + d.IntN(2) {
		side := sides[(i+d.number)%2][0]
		rules := make([]object, d.wideCount(150))
		for j := range rules {
			rules[j] = object{"action": one(d, "Allow", "Allow", "Deny", "Pass"), one(d, "source", "destination"): d.wideEnd(d.nobody(own, j))}
		}
		spec[side] = rules
	}
}

func (d *dice) wideEnd(name string) object {
	all := one(d, fmt.Sprintf("!has(%s)", name), fmt.Sprintf("app != '%s'", name), fmt.Sprintf("all() && role not in {'%s'}", name))
	e := object{"selector": all, "namespaceSelector": "all()"}
	switch d.IntN(8) {
	case 0:
		e["notSelector"] = fmt.Sprintf("!has(%s)", name)
	case 1:
		e = object{"namespaceSelector": fmt.Sprintf("!has(%s)", name)}
	case 2:
		delete(e, "namespaceSelector") // a namespaced policy then selects in its own namespace
	}
	return e
}

// ruled are the fields that all kinds of policies share.
type ruled struct {
	Spec struct{ Ingress, Egress []ruledRule }
}

type ruledRule struct {
	From, To            []ruledPeer
	Source, Destination ruledEnd
}

type ruledPeer struct{ PodSelector, NamespaceSelector, Pods, Namespaces any }

type ruledEnd struct {
	Selector, NamespaceSelector, NotSelector string
	ServiceAccounts                          any
}

// Selectors returns how many selectors a policy has in each direction, counted as for its limit;
// none for objects of other kinds.
func Selectors(f cluster.File) (ingress, egress int) {
	var r ruled
	if json.Unmarshal(f.JSON, &r) != nil {
		return 0, 0 // its fields of these names mean something else
	}
	return selectorsOf(r.Spec.Ingress), selectorsOf(r.Spec.Egress)
}

func selectorsOf(rules []ruledRule) (n int) {
	for _, r := range rules {
		for _, peers := range [][]ruledPeer{r.From, r.To} {
			for _, p := range peers {
				if p != (ruledPeer{}) {
					n++
					break
				}
			}
		}
		for _, e := range []ruledEnd{r.Source, r.Destination} {
			if e.Selector+e.NamespaceSelector != "" || e.ServiceAccounts != nil {
				n++
			}
			if e.NotSelector != "" {
				n++
			}
		}
	}
	return n
}
