package compile

import (
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/admission"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/state"
)

// variants are those of all policies that apply to anything here. fill.go has how they get their
// sets, weigh.go which of them may.
type variants struct {
	budget
	objects *objects.Objects
	sets    *sets.Sets
	all     map[*variant]struct{}
	known   map[*policy]struct{} // their variants are filled at once: the sets are there, of a version that does not stand
	queue   []*variant           // that are not settled, in the order in which they came
	got     map[string]int       // elements for variants so far, by the namespaces of those in the queue
	stale   bool                 // some have other rules now
	limits  *admission.Limits
}

// variant is what the rules of a policy come to in one direction, for pods or for host endpoints,
// and the sets that they hold: neither rules nor sets while their selectors select too many
// addresses. Its rules are in force once it is filled.
type variant struct {
	from     []model.PolicyRule // the declared rules
	of       *version
	index    int // among those of the policy
	progress progress
	early    bool // it was refused as there was no room when it came, not in its turn

	sets.Rules               // with the sets that they hold
	tallies    []*sets.Tally // of as many selectors as are counted
	sum        int           // of the tallies when they were
	ready      int           // so many groups are filled

	since    time.Time          // when the change came that it is filled for
	spent    int                // on it so far, in elements
	resolved *state.PolicyRules // nil: not yet, or not with the present ids of the sets
	lookups  int                // that its rules come to when they were resolved
}

// progress is how far a variant is.
type progress uint8

const (
	unbuilt  progress = iota // its rules are not compiled yet
	counting                 // what its selectors select
	filling                  // it has groups, to which addresses are added
	filled
	refusedAlone    // its selectors select too many addresses
	refusedTogether // with those of others
)

// settled reports whether there is nothing more to do for it.
func (p progress) settled() bool { return p >= filled }

// variantOf numbers the variants of a policy: by direction, whether it is for pods, where named
// ports at the pod's own end are those of this node's pods, and whether others of its tier allow
// after it.
func variantOf(at checkpoint, allowed bool) int {
	return one(at.ingress()) + 2*one(at.host()) + 4*one(allowed)
}

// ingress and host report the direction, and whether it is for host endpoints.
func (v *variant) ingress() bool { return v.index&1 != 0 }
func (v *variant) host() bool    { return v.index&2 != 0 }

// follow follows a change of an object. Limits are checked for each rather than once for an update,
// so that what one update brings cannot fill groups far beyond them.
func (vs *variants) follow(ch objects.ItemChange) {
	if !ch.Renewed() {
		vs.room -= vs.sets.Follow(ch)
		vs.weigh()
	}
}

// local is the end of a rule whose ports by name are those of this node's pods: the pod's own.
func (v *variant) local(r *model.PolicyRule) *model.RuleEnd {
	switch {
	case v.host():
		return nil
	case v.ingress():
		return &r.Destination
	}
	return &r.Source
}

// hold holds a variant of a policy for its use at a checkpoint. A new one is filled as far as there
// is room for it; the rest is left to fill.
func (vs *variants) hold(p *policy, at checkpoint, allowed bool) *variant {
	i := variantOf(at, allowed)
	if p.refs[i]++; p.variants[i] != nil {
		return p.variants[i]
	}
	rules := p.refused.cautious(p.rules(at.ingress()), allowed)
	v := &variant{from: rules, of: &p.version, index: i, since: vs.since}
	p.variants[i] = v
	vs.all[v] = struct{}{}
	room := vs.room
	if _, known := vs.known[p]; known || at.host() {
		room = all // the node itself is not shut while variants are filled
	}
	if vs.advance(v, room); !v.progress.settled() {
		vs.queue = append(vs.queue, v)
	}
	return v
}

// release ends a use of the i-th variant.
func (vs *variants) release(p *policy, i int) {
	if p.refs[i]--; p.refs[i] > 0 {
		return
	}
	vs.sets.Release(&p.variants[i].Rules)
	vs.releaseTallies(p.variants[i])
	delete(vs.all, p.variants[i])
	p.variants[i] = nil
	if vs.limits.Crowded {
		vs.limits.Soon()
	}
}

func (vs *variants) releaseTallies(v *variant) {
	for _, t := range v.tallies {
		vs.sets.Tallies.Release(t)
	}
	v.tallies, v.sum = nil, 0
}

// unresolve has the rules written anew whose sets have other ids or lists now, or that were settled
// since. It reports whether there may be any.
func (vs *variants) unresolve() bool {
	some, all := vs.sets.Stale()
	if !some && !vs.stale {
		return false
	}
	for v := range vs.all {
		if all || v.Rules.Stale() {
			v.resolved = nil
		}
	}
	vs.stale = false
	return true
}

// resolve returns the rules with the present ids of their sets. Those whose selectors select too
// many addresses, or so many network sets that they come to too many look-ups, or that name a
// Service with too many endpoints, allow nothing; nor do those of a variant that is not filled yet:
// a NetworkPolicy isolates, one of another kind denies.
func (vs *variants) resolve(v *variant) *state.PolicyRules {
	if v.resolved == nil {
		r := &state.PolicyRules{Policy: v.of.obj.Key}
		switch v.lookups = v.Lookups(); {
		case v.lookups <= admission.MaxSize && v.progress == filled && vs.sets.Refused(&v.Rules) == "":
			r.Rules = v.Rules.Resolve()
		case r.Policy.Kind != model.NetworkPolicy:
			r.Rules = []state.Rule{{Name: "refused", Action: model.Deny}}
		}
		r.ID = digestOf(r)
		v.resolved = r
	}
	return v.resolved
}
