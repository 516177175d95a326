package policy

import (
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// parts are those of all policies that apply to anything here. fill.go has how they get their sets,
// limit.go which of them may.
type parts struct {
	*budget
	objects *objects
	sets    *sets
	tallies *tallies
	all     map[*part]struct{}
	known   map[*policy]struct{} // their parts are filled at once: the sets are there, of a version that does not stand
	queue   []*part              // that are not settled, in the order in which they came
	got     map[string]int       // elements for parts so far, by the namespaces of those in the queue
	stale   bool                 // some have other rules now
	limits  limits
}

// part is what the rules of a policy for one direction come to, and the sets that they hold:
// neither rules nor sets while their selectors select too many addresses. Its rules are in force
// once it is filled.
type part struct {
	from     []model.PolicyRule // the declared rules
	of       *policy
	index    int // among those of the policy
	progress progress
	early    bool // it was refused as there was no room when it came, not in its turn

	rules     []rule
	units     int // that its rules count for
	selectors []model.Selector
	tallies   []*tally // of as many selectors as are counted
	sum       int      // of the tallies when they were
	groups    []*group
	ready     int // so many groups are filled
	lists     []*list
	named     []*namedPorts
	ranges    []*ranges

	since    time.Time          // when the change came that it is filled for
	spent    int                // on it so far, in elements
	resolved *state.PolicyRules // nil: not yet, or not with the present ids of the sets
	lookups  int                // that its rules come to when they were resolved
}

// progress is how far a part is.
type progress uint8

const (
	unbuilt  progress = iota // its rules are not compiled yet
	counting                 // what its selectors select
	filling                  // it has groups, to which addresses are added
	filled
	refusedAlone    // its selectors select too many addresses
	refusedTogether // with those of others
)

func (p progress) refused() bool { return p >= refusedAlone }

// settled reports whether there is nothing more to do for it.
func (p progress) settled() bool { return p >= filled }

// partOf numbers the parts of a policy: by direction, whether it is for pods, where named ports at
// the pod's own end are those of this node's pods, and whether others of its tier allow after it.
func partOf(s stage, allowed bool) int {
	return one(s.ingress()) + 2*one(s.host()) + 4*one(allowed)
}

// ingress and host report the direction, and whether it is for host endpoints.
func (p *part) ingress() bool { return p.index&1 != 0 }
func (p *part) host() bool    { return p.index&2 != 0 }

// namespace is that of its policy; "": it is of none.
func (p *part) namespace() string { return p.of.obj.Key.Name.Namespace }

// hold holds a part of a policy for its use at a stage. A new one is filled as far as there is room
// for it; the rest is left to fill.
func (ps *parts) hold(p *policy, s stage, allowed bool) *part {
	i := partOf(s, allowed)
	if p.refs[i]++; p.parts[i] != nil {
		return p.parts[i]
	}
	rules := p.rules(s.ingress())
	if len(p.refused) > 0 {
		rules = ps.objects.refused.cautious(rules, allowed)
	}
	o := &part{from: rules, of: p, index: i, since: ps.since}
	p.parts[i] = o
	ps.all[o] = struct{}{}
	room := ps.room
	if _, known := ps.known[p]; known || s.host() {
		room = all // the node itself is not shut while parts are filled
	}
	if ps.advance(o, room); !o.progress.settled() {
		ps.queue = append(ps.queue, o)
	}
	return o
}

// release ends a use of the i-th part.
func (ps *parts) release(p *policy, i int) {
	if p.refs[i]--; p.refs[i] > 0 {
		return
	}
	ps.sets.release(p.parts[i])
	ps.releaseTallies(p.parts[i])
	delete(ps.all, p.parts[i])
	p.parts[i] = nil
	if ps.limits.crowded {
		ps.limits.soon()
	}
}

func (ps *parts) releaseTallies(p *part) {
	for _, t := range p.tallies {
		ps.tallies.release(t)
	}
	p.tallies, p.sum = nil, 0
}

// unresolve has the rules written anew whose sets have other ids or lists now, or that were settled
// since. It reports whether there may be any.
func (ps *parts) unresolve() bool {
	moved := ps.sets.ids.moved
	if !moved && !ps.sets.groups.stale && !ps.stale {
		return false
	}
	for p := range ps.all {
		if moved || p.stale() {
			p.resolved = nil
		}
	}
	ps.stale = false
	return true
}
