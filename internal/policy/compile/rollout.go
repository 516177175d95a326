package compile

import (
	"slices"

	"sluice.dev/sluice/internal/model"
)

// rollout brings new versions of policies into force. What stood before a policy came or changed
// stands until its variants are filled. Only a pod that comes, or changes so that other policies
// select it, does not wait: until then they allow it nothing.
type rollout struct {
	variants *variants
	fresh    map[*policy]struct{}
}

// begin begins the rollout of new versions, and ends that of those which they replace. It returns
// all of them.
func (r *rollout) begin(changed []replacement) (list []*policy) {
	for _, c := range changed {
		old, next := c.old, c.next
		filled := old != nil && !old.fresh
		if old != nil {
			r.end(old)
			list = append(list, old)
		}
		if next == nil {
			continue
		}
		list = append(list, next)
		if old == nil || !old.outdated {
			next.fresh = true
			r.fresh[next] = struct{}{}
		} else if filled && old.obj == next.obj {
			r.variants.known[next] = struct{}{}
		}
	}
	return list
}

// inForce returns the policies of the list, except for those whose variants are not filled yet: of
// these the version that the endpoint has had, or none.
func (r *rollout) inForce(before, list []*policy) []*policy {
	if !slices.ContainsFunc(list, func(p *policy) bool { return p.fresh }) {
		return list
	}
	had := make(map[model.PolicyKey]*policy, len(before))
	for _, p := range before {
		had[p.obj.Key] = p
	}
	waiting := map[*policy]struct{}{}
	for _, at := range []checkpoint{podIngress, podEgress} {
		held := at.held(list)
		for i, p := range held {
			if !p.fresh {
				continue
			}
			if v := r.prepare(p, at, allowsAfter(held, i, at)); !v.progress.settled() || !r.decided(v) && had[p.obj.Key] != nil {
				waiting[p], p.awaited = struct{}{}, true
			}
		}
	}
	if len(waiting) == 0 {
		return list
	}
	var stands []*policy
	for _, p := range list {
		if _, waits := waiting[p]; !waits {
			stands = append(stands, p)
		} else if old := had[p.obj.Key]; old != nil {
			stands = append(stands, old)
		}
	}
	slices.SortFunc(stands, comparePolicies)
	return stands
}

// prepare has the variant of a policy filled before anyone uses it.
func (r *rollout) prepare(p *policy, at checkpoint, allowed bool) *variant {
	i := variantOf(at, allowed)
	if !slices.Contains(p.prepared, i) {
		r.variants.hold(p, at, allowed)
		p.prepared = append(p.prepared, i)
	}
	return p.variants[i]
}

// decided reports whether a variant's rules may take the place of others. A variant that was
// refused early is to be weighed first: if others go for it, what stood before goes on.
func (r *rollout) decided(v *variant) bool {
	return v.progress.settled() && (!v.early || r.variants.whole)
}

// complete reports whether all variants of a policy that anyone uses are decided.
func (r *rollout) complete(p *policy) bool {
	return !slices.ContainsFunc(p.variants[:], func(v *variant) bool { return v != nil && !r.decided(v) })
}

// ready returns the policies that somebody waits for and whose variants are filled now.
func (r *rollout) ready() (list []*policy) {
	for p := range r.fresh {
		if p.awaited && r.complete(p) {
			p.awaited = false
			list = append(list, p)
		}
	}
	return list
}

// finish ends the rollout of policies for which nobody waits any more.
func (r *rollout) finish() {
	for p := range r.fresh {
		if !p.awaited && r.complete(p) {
			r.end(p)
		}
	}
	clear(r.variants.known)
}

// end releases what was prepared for a policy.
func (r *rollout) end(p *policy) {
	p.fresh = false
	delete(r.fresh, p)
	for _, i := range p.prepared {
		r.variants.release(p, i)
	}
	p.prepared = nil
}
