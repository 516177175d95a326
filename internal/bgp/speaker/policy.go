package speaker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
)

// The names of the server's two policies.
const (
	importPolicy = "import"
	exportPolicy = "export"
)

// setUpPolicies has the server go by two policies, which accept all as yet.
func (v *server) setUpPolicies(ctx context.Context) error {
	if err := v.SetPolicies(ctx, newPolicySet(0).request()); err != nil {
		return err
	}
	for name, direction := range map[string]api.PolicyDirection{
		importPolicy: api.PolicyDirection_POLICY_DIRECTION_IMPORT,
		exportPolicy: api.PolicyDirection_POLICY_DIRECTION_EXPORT,
	} {
		err := v.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
			Name: "global", Direction: direction, DefaultAction: api.RouteAction_ROUTE_ACTION_ACCEPT,
			Policies: []*api.Policy{{Name: name}},
		}})
		if err != nil {
			return fmt.Errorf("assign the policy %s: %w", name, err)
		}
	}
	return nil
}

// party is what the policies have to know of a peer.
type party struct {
	name     string
	address  netip.Addr
	external bool
	keepHop  bool
	// loop matches the paths that lead through this node's AS more often than they may.
	loop    string
	imports []bgp.Rule
	exports []bgp.Rule
	// other is the family that the session's address is not of, and hop this node's address of it;
	// if there is none, routes of the family are not announced to the peer, unless it takes those
	// of IPv4 by way of IPv6 (RFC 8950).
	other gobgp.Family
	hop   netip.Addr
	cross bool
}

// policySet is what the server filters and changes routes by.
type policySet struct {
	peers   int // how many there are
	sets    []*api.DefinedSet
	imports statements
	exports statements
	names   map[string]string // of sets, by what is in them
}

func newPolicySet(peers int) *policySet {
	return &policySet{peers: peers, imports: statements{name: importPolicy}, exports: statements{name: exportPolicy}, names: map[string]string{}}
}

// statements are those of one policy, in order.
type statements struct {
	name string
	all  []*api.Statement
}

// add appends a statement for the routes that meet all conditions.
func (s *statements) add(c *api.Conditions, a *api.Actions) {
	s.all = append(s.all, &api.Statement{Name: fmt.Sprintf("%s-%d", s.name, len(s.all)), Conditions: c, Actions: a})
}

func (p *policySet) request() *api.SetPoliciesRequest {
	return &api.SetPoliciesRequest{DefinedSets: p.sets, Policies: []*api.Policy{
		{Name: importPolicy, Statements: p.imports.all}, {Name: exportPolicy, Statements: p.exports.all},
	}}
}

// compile makes the policies. Learned routes that are not passed on are done with at once; then
// comes what is said with a route, and with which next hop, and at last the peers' own rules, of
// which the first one that holds has the last word.
func compile(parties []*party, passOn []netip.Prefix, known map[uint32]*saying) *policySet {
	p := newPolicySet(len(parties))
	p.addLoops(parties)
	p.addPassOn(parties, passOn)
	for _, mark := range slices.Sorted(maps.Keys(known)) {
		p.addSaying(mark, known[mark], parties)
	}
	p.addNextHops(parties)
	p.addRules(parties)
	return p
}

var (
	acceptIt = &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT}
	rejectIt = &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_REJECT}
)

// loopOf is an expression for the paths with an AS more often than max.
func loopOf(as uint32, max uint8) string { return fmt.Sprintf(`(_%d\b.*){%d}`, as, int(max)+1) }

// addLoops rejects routes that have been through this node's AS. The server (gobgp v4.8.0) would
// pass over such a route, so that the one before it, with the same prefix, stays learned.
func (p *policySet) addLoops(parties []*party) {
	same := map[string][]*party{}
	for _, x := range parties {
		same[x.loop] = append(same[x.loop], x)
	}
	for _, loop := range sortedKeys(same) {
		paths := p.set(api.DefinedType_DEFINED_TYPE_AS_PATH, []string{loop})
		p.imports.add(&api.Conditions{AsPathSet: paths, NeighborSet: p.to(same[loop])}, rejectIt)
	}
}

// foreign are the types of routes that are learned.
var foreign = []api.Conditions_RouteType{api.Conditions_ROUTE_TYPE_INTERNAL, api.Conditions_ROUTE_TYPE_EXTERNAL}

// addSaying puts what a mark stands for in its place.
func (p *policySet) addSaying(mark uint32, y *saying, parties []*party) {
	marked := func(peers *api.MatchSet) *api.Conditions {
		return &api.Conditions{
			RouteType:    api.Conditions_ROUTE_TYPE_LOCAL,
			CommunitySet: p.set(api.DefinedType_DEFINED_TYPE_COMMUNITY, []string{fmt.Sprintf("0:%d", mark)}),
			NeighborSet:  peers,
		}
	}
	groups := map[string][]*party{}
	what := map[string]*said{}
	var without []*party
	for _, party := range parties {
		x := cmp.Or(y.named[party.name], y.all)
		if x == nil {
			without = append(without, party)
			continue
		}
		groups[x.text()], what[x.text()] = append(groups[x.text()], party), x
	}
	if len(without) > 0 {
		p.exports.add(marked(p.to(without)), rejectIt)
	}
	for _, key := range sortedKeys(groups) {
		x := what[key]
		a := &api.Actions{Community: &api.CommunityAction{Type: api.CommunityAction_TYPE_REPLACE, Communities: x.communities}}
		if len(x.large) > 0 {
			a.LargeCommunity = &api.CommunityAction{Type: api.CommunityAction_TYPE_REPLACE, Communities: x.large}
		}
		if x.localPref > 0 {
			a.LocalPref = &api.LocalPrefAction{Value: x.localPref}
		}
		p.exports.add(marked(p.to(groups[key])), a)
	}
}

// addNextHops sets the next hops that the server does not get right by itself.
func (p *policySet) addNextHops(parties []*party) {
	type group struct {
		family gobgp.Family
		hop    netip.Addr
	}
	own, passed := map[group][]*party{}, map[group][]*party{}
	var keep []*party
	for _, x := range parties {
		if x.external && x.keepHop {
			keep = append(keep, x)
		}
		if x.other == 0 || x.cross {
			continue
		}
		g := group{x.other, x.hop}
		own[g] = append(own[g], x)
		if x.external && !x.keepHop {
			passed[g] = append(passed[g], x)
		}
	}
	order := func(a, b group) int { return cmp.Or(cmp.Compare(a.family, b.family), a.hop.Compare(b.hop)) }
	set := func(g group, to []*party, kind api.Conditions_RouteType) {
		c := &api.Conditions{RouteType: kind, NeighborSet: p.to(to), AfiSafiIn: []*api.Family{apiFamily(g.family)}}
		if !g.hop.IsValid() {
			p.exports.add(c, rejectIt)
			return
		}
		p.exports.add(c, &api.Actions{Nexthop: &api.NexthopAction{Address: g.hop.String()}})
	}
	for _, g := range slices.SortedFunc(maps.Keys(own), order) {
		set(g, own[g], api.Conditions_ROUTE_TYPE_LOCAL)
	}
	for _, g := range slices.SortedFunc(maps.Keys(passed), order) {
		for _, kind := range foreign {
			set(g, passed[g], kind)
		}
	}
	if len(keep) > 0 {
		for _, kind := range foreign {
			p.exports.add(&api.Conditions{RouteType: kind, NeighborSet: p.to(keep)}, &api.Actions{Nexthop: &api.NexthopAction{Unchanged: true}})
		}
	}
}

// addPassOn withholds the learned routes that are not to be passed on, or that those who announced
// them do not want to be (RFC 1997).
func (p *policySet) addPassOn(parties []*party, passOn []netip.Prefix) {
	if len(parties) == 0 {
		return
	}
	var external []*party
	for _, x := range parties {
		if x.external {
			external = append(external, x)
		}
	}
	for _, kind := range foreign {
		for _, family := range []gobgp.Family{gobgp.RF_IPv4_UC, gobgp.RF_IPv6_UC} {
			c := &api.Conditions{RouteType: kind, AfiSafiIn: []*api.Family{apiFamily(family)}}
			if within := within(passOn, family); len(within) > 0 {
				c.PrefixSet = p.prefixes(within)
				c.PrefixSet.Type = api.MatchSet_TYPE_INVERT
			}
			p.exports.add(c, rejectIt)
		}
		if len(passOn) == 0 {
			continue
		}
		p.exports.add(&api.Conditions{RouteType: kind, CommunitySet: p.set(api.DefinedType_DEFINED_TYPE_COMMUNITY, []string{"no-advertise"})}, rejectIt)
		if len(external) > 0 {
			p.exports.add(&api.Conditions{RouteType: kind, NeighborSet: p.to(external),
				CommunitySet: p.set(api.DefinedType_DEFINED_TYPE_COMMUNITY, []string{"no-export", "no-export-subconfed"})}, rejectIt)
		}
	}
}

func within(ranges []netip.Prefix, family gobgp.Family) []*api.Prefix {
	var all []*api.Prefix
	for _, r := range ranges {
		if r.Addr().Is4() == (family == gobgp.RF_IPv4_UC) {
			all = append(all, lengths(r, r.Bits(), r.Addr().BitLen()))
		}
	}
	return all
}

// addRules adds the peers' rules, once for all peers with the same.
func (p *policySet) addRules(parties []*party) {
	add := func(to *statements, rules func(*party) []bgp.Rule) {
		same := map[string][]*party{}
		for _, x := range parties {
			if len(rules(x)) > 0 {
				key := fmt.Sprint(rules(x))
				same[key] = append(same[key], x)
			}
		}
		for _, key := range sortedKeys(same) {
			for _, r := range rules(same[key][0]) {
				p.addRule(to, same[key], r)
			}
		}
	}
	add(&p.imports, func(x *party) []bgp.Rule { return x.imports })
	add(&p.exports, func(x *party) []bgp.Rule { return x.exports })
}

func (p *policySet) addRule(to *statements, parties []*party, r bgp.Rule) {
	kinds := []api.Conditions_RouteType{api.Conditions_ROUTE_TYPE_UNSPECIFIED}
	if r.Learned && to == &p.exports {
		kinds = foreign
	}
	action := rejectIt
	if r.Accept {
		action = acceptIt
	}
	peers := p.neighbors(parties) // all of them, too: own routes go through the import policy as well
	if to == &p.exports {
		peers = p.to(parties)
	}
	for _, kind := range kinds {
		c := &api.Conditions{RouteType: kind, NeighborSet: peers}
		if r.Prefix.IsValid() {
			c.PrefixSet = p.match(r)
		}
		switch r.Family {
		case 4:
			c.AfiSafiIn = []*api.Family{apiFamily(gobgp.RF_IPv4_UC)}
		case 6:
			c.AfiSafiIn = []*api.Family{apiFamily(gobgp.RF_IPv6_UC)}
		}
		to.add(c, action)
	}
}

// match is the condition that a rule puts on a route's prefix.
func (p *policySet) match(r bgp.Rule) *api.MatchSet {
	low, high := r.Prefix.Bits(), r.Prefix.Addr().BitLen()
	if r.Match == model.BGPEqual || r.Match == model.BGPNotEqual {
		high = low
	}
	if r.Match == model.BGPIn && r.Min > 0 {
		low = r.Min
	}
	if r.Match == model.BGPIn && r.Max > 0 {
		high = r.Max
	}
	m := p.prefixes([]*api.Prefix{lengths(r.Prefix, low, high)})
	if r.Match == model.BGPNotIn || r.Match == model.BGPNotEqual {
		m.Type = api.MatchSet_TYPE_INVERT
	}
	return m
}

func lengths(r netip.Prefix, low, high int) *api.Prefix {
	return &api.Prefix{IpPrefix: r.Masked().String(), MaskLengthMin: uint32(low), MaskLengthMax: uint32(high)}
}

// to matches what goes to any of some peers. The server goes through a set one by one, for each
// route to each peer: for all of them there is none.
func (p *policySet) to(parties []*party) *api.MatchSet {
	if len(parties) == p.peers {
		return nil
	}
	return p.neighbors(parties)
}

// neighbors matches sessions with any of some peers, of which there is at least one.
func (p *policySet) neighbors(parties []*party) *api.MatchSet {
	var all []string
	for _, x := range parties {
		a := x.address.WithZone("")
		all = append(all, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return p.set(api.DefinedType_DEFINED_TYPE_NEIGHBOR, all)
}

// set matches any of a list.
func (p *policySet) set(kind api.DefinedType, list []string) *api.MatchSet {
	return p.matchSet(kind.String()+strings.Join(list, " "), &api.DefinedSet{DefinedType: kind, List: list})
}

// prefixes matches any of some prefixes of one family.
func (p *policySet) prefixes(all []*api.Prefix) *api.MatchSet {
	var key strings.Builder
	for _, x := range all {
		fmt.Fprintf(&key, "%s %d %d ", x.IpPrefix, x.MaskLengthMin, x.MaskLengthMax)
	}
	return p.matchSet(key.String(), &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_PREFIX, Prefixes: all})
}

func (p *policySet) matchSet(key string, set *api.DefinedSet) *api.MatchSet {
	name, ok := p.names[key]
	if !ok {
		name = fmt.Sprintf("set-%d", len(p.sets))
		p.names[key], set.Name = name, name
		p.sets = append(p.sets, set)
	}
	return &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: name}
}
