package nftables

import "sluice.dev/sluice/internal/driver/nftables/nft"

import (
	"maps"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// roster lists the chains and counters that come and go with the state, beside
// the constant program: learn chains, and those of policy. Each lasts as long as something leads to it.
type roster struct {
	chains   map[string]enrolled
	counters map[string]int // uses, by name
}

// enrolled is a chain with the number of its uses: map elements, base chains and other chains.
type enrolled struct {
	*ruling     // without its rules, once the kernel has them
	rules   int // how many it has
	uses    int
}

func newRoster() *roster { return &roster{map[string]enrolled{}, map[string]int{}} }

func (r *roster) clone() *roster {
	return &roster{maps.Clone(r.chains), maps.Clone(r.counters)}
}

// only is the part of a roster whose chains are of interest: as if nothing else had ever been used.
func (r *roster) only(is func(chain string) bool) *roster {
	part := newRoster()
	for name, e := range r.chains {
		if !is(name) {
			continue
		}
		part.chains[name] = e
		for _, counter := range e.counters {
			part.counters[counter]++
		}
	}
	return part
}

// use counts another use of the chain of that name. If there is none yet, it is written, and uses the chains that it leads to.
func (r *roster) use(name string, write func() *ruling) {
	e, known := r.chains[name]
	if !known {
		e.ruling = write()
		e.rules = len(e.ruling.Rules)
		for _, counter := range e.counters {
			r.counters[counter]++
		}
		for _, next := range e.next {
			r.use(next.Name, func() *ruling { return next })
		}
	}
	e.uses++
	r.chains[name] = e
}

// release takes back a use of the chain; the last one takes it off the roster, and its own uses with it.
func (r *roster) release(name string) {
	e := r.chains[name]
	if e.uses--; e.uses > 0 {
		r.chains[name] = e
		return
	}
	delete(r.chains, name)
	for _, counter := range e.counters {
		if r.counters[counter]--; r.counters[counter] == 0 {
			delete(r.counters, counter)
		}
	}
	for _, next := range e.next {
		r.release(next.Name)
	}
}

// forgetRules drops what is in the kernel.
func (r *roster) forgetRules() {
	for _, e := range r.chains {
		e.ruling.Rules = nil
	}
}

// ruleCount is the number of rules in all chains.
func (r *roster) ruleCount() (n int) {
	for _, e := range r.chains {
		n += e.rules
	}
	return n
}

// create adds the counters and chains that are not there yet.
func (r *roster) create(b *nft.Batch, there func(chain string) bool, counted func(counter string) bool) {
	for _, name := range slices.Sorted(maps.Keys(r.counters)) {
		if !counted(name) {
			b.AddCounter(name)
		}
	}
	var added []nft.Chain
	for _, name := range slices.Sorted(maps.Keys(r.chains)) {
		if !there(name) {
			added = append(added, r.chains[name].Chain)
		}
	}
	// Chains before rules, as those refer to chains.
	for _, c := range added {
		b.AddChain(c)
	}
	for _, c := range added {
		b.AddRules(c)
	}
}

// deleteChains removes the chains and then the counters, which nothing else uses any more.
func deleteChains(b *nft.Batch, chains, counters []string) {
	slices.Sort(chains)
	slices.Sort(counters)
	for _, name := range chains {
		b.DeleteRules(&b.After, name)
	}
	for _, name := range chains {
		b.DeleteChain(&b.After, name)
	}
	for _, name := range counters {
		b.DeleteCounter(name)
	}
}

// changeFrom plans what leads from the roster before to this one.
func (r *roster) changeFrom(before *roster, b *nft.Batch) {
	b.Stepwise = !b.AtOnce && len(missing(r.chains, before.chains))+len(missing(before.chains, r.chains)) > 0
	r.create(b,
		func(name string) bool { _, ok := before.chains[name]; return ok },
		func(name string) bool { return before.counters[name] > 0 })
	deleteChains(b, missing(before.chains, r.chains), missing(before.counters, r.counters))
}

// missing are the keys of one map that another has not.
func missing[V, W any](from map[string]V, in map[string]W) (names []string) {
	for name := range from {
		if _, ok := in[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// What the names of counters begin with.
const (
	allowed = "allowed"
	denied  = "denied"
	dropped = "dropped/" // and the reason
)

// maxName is the longest name that the kernel takes.
const maxName = 200

// counterName names the counter of what a policy allowed or denied, as nft can type it:
// "denied/NetworkPolicy/shop/db".
func counterName(verdict string, key model.PolicyKey) string {
	name := verdict + "/" + string(key.Kind)
	for _, s := range []string{key.Name.Namespace, key.Name.Name} {
		if s != "" {
			name += "/" + s
		}
	}
	if len(name) > maxName {
		digest := digestName(name)
		name = name[:maxName-len(digest)-1] + "-" + digest
	}
	return name
}
