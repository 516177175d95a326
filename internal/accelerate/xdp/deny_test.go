package xdp_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// TestDenied has packets from addresses on deny lists be dropped, and each counted once: by the
// program, or by the base, which has one in each tick of the clock.
func TestDenied(t *testing.T) {
	t.Parallel()
	const to4, to6 = "10.0.0.1:53", "[fd00::1]:53"
	n := newNode(t)
	change := func(prefixes ...string) {
		t.Helper()
		denied := state.Denied{Devices: []state.Device{{Index: n.front, Name: "front"}}}
		for _, p := range prefixes { // each on a list of its own
			denied.Lists = append(denied.Lists, &state.List{Name: p, Prefixes: []netip.Prefix{netip.MustParsePrefix(p)}})
		}
		n.change(state.Delta{Policy: state.PolicyDelta{Denied: &denied}})
	}
	change("10.0.0.3/32", "fd00::3/128")
	n.answers("at first", to4, to6, "10.0.0.2", "fd00::2")
	n.drops("at first", state.DropDenyList, true, to4, to6, "10.0.0.3", "fd00::3")
	if note := n.d.Status().Note; !strings.Contains(note, " packets dropped by deny lists") || strings.HasPrefix(note, "0 ") {
		t.Errorf("status: %q", note)
	}
	change("10.0.0.0/31", "10.0.0.2/32", "fd00::2/127")
	n.answers("other lists", to4, to6, "10.0.0.3")
	n.drops("other lists", state.DropDenyList, true, to4, to6, "10.0.0.2", "fd00::2", "fd00::3")
	change()
	n.answers("none", to4, to6, "10.0.0.2", "10.0.0.3", "fd00::3")
	if n.runs() {
		t.Error("a program runs without lists")
	}
	change("10.0.0.3/32")
	n.answers("one again", to4, to6, "10.0.0.2")
	n.drops("one again", state.DropDenyList, true, to4, to6, "10.0.0.3")
}

// untracked are a host endpoint's doNotTrack policies: the port 53 stays open, and one policy
// denies what is on a list.
func untracked(rules ...state.Rule) (*state.Rules, model.PolicyKey) {
	key := model.PolicyKey{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "edge"}}
	failsafe := &state.PolicyRules{ID: "failsafe", Policy: model.PolicyKey{Kind: model.Failsafe, Name: model.Name{Name: "untracked ports"}}, Rules: []state.Rule{
		{Name: "failsafe", Destination: state.End{Ports: &state.Ports{ID: 7, Ranges: []state.PortRange{{Protocol: model.TCP, First: 53, Last: 53}, {Protocol: model.UDP, First: 53, Last: 53}}}}}}}
	return &state.Rules{ID: state.RulesID(fmt.Sprint(rules)), Tiers: []state.Tier{
		{Name: string(model.Failsafe), Policies: []*state.PolicyRules{failsafe}, Default: model.Pass},
		{Name: "default", Policies: []*state.PolicyRules{{ID: fmt.Sprint(rules), Policy: key, Rules: rules}}, Default: model.Pass},
	}}, key
}

// on are rules that match what comes from a list.
func on(action model.Action, id state.SetID) state.Rule {
	return state.Rule{Name: "ingress[0]", Action: action, Source: state.End{In: []state.Term{{Lists: []state.ListRef{{ID: id, IPv4: []uint8{32}, IPv6: []uint8{128}}}}}}}
}

// TestUntracked has a doNotTrack policy deny packets from addresses on a list, whatever changes,
// and ports that no policy closes stay open to them.
func TestUntracked(t *testing.T) {
	t.Parallel()
	const to4, to6 = "10.0.0.1:80", "[fd00::1]:80"
	n := newNode(t)
	list := func(prefixes ...string) map[state.SetID]*state.List {
		l := &state.List{Name: "GlobalNetworkSet bad"}
		for _, p := range prefixes {
			l.Prefixes = append(l.Prefixes, netip.MustParsePrefix(p))
		}
		return map[state.SetID]*state.List{9: l}
	}
	rules, key := untracked(on(model.Deny, 9))
	ports := rules.Tiers[0].Policies[0].Rules[0].Destination.Ports
	n.change(state.Delta{Policy: state.PolicyDelta{
		Rules: map[state.RulesID]*state.Rules{rules.ID: rules}, Lists: list("10.0.0.3/32", "fd00::3/128"), PortSets: map[state.SetID]*state.Ports{7: ports},
		Hosts: map[int]*state.Host{n.front: {Name: "front", Device: "front", UntrackedIn: rules.ID}},
	}})
	check := func(when string) {
		t.Helper()
		n.answers(when, to4, to6, "10.0.0.2", "fd00::2")
		n.answers(when+", a failsafe port", "10.0.0.1:53", "[fd00::1]:53", "10.0.0.3", "fd00::3")
		n.drops(when, state.DropHost, true, to4, to6, "10.0.0.3", "fd00::3")
	}
	check("at first")
	counts, err := n.d.Capabilities().Counter.PolicyCounters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if at := slices.IndexFunc(counts, func(c driver.PolicyCounter) bool { return c.Policy == key }); at < 0 || counts[at].Denied != 400 {
		t.Errorf("of 400 packets the policy has denied %+v", counts)
	}
	n.change(state.Delta{Policy: state.PolicyDelta{Lists: list("10.0.0.2/32", "fd00::2/128")}})
	n.answers("another list", to4, to6, "10.0.0.3", "fd00::3")
	n.drops("another list", state.DropHost, true, to4, to6, "10.0.0.2", "fd00::2")
	n.change(state.Delta{Policy: state.PolicyDelta{Lists: list("10.0.0.3/32", "10.1.0.0/16", "fd00::3/128")}})
	check("the first list again")
	if err := n.d.Close(); err != nil {
		t.Fatal(err)
	}
	n.open()
	check("another process")
	first, _ := untracked(on(model.Allow, 8), on(model.Deny, 9))
	n.change(state.Delta{Policy: state.PolicyDelta{
		Rules: map[state.RulesID]*state.Rules{first.ID: first, rules.ID: nil}, Lists: map[state.SetID]*state.List{8: list("10.0.0.3/32")[9]},
		Hosts: map[int]*state.Host{n.front: {Name: "front", Device: "front", UntrackedIn: first.ID}},
	}})
	n.drops("others are allowed before", state.DropHost, false, to4, to6, "fd00::3")

	// A process that has not read all policies yet leaves it to the base what it keeps.
	if err := n.d.Close(); err != nil {
		t.Fatal(err)
	}
	whole := n.want.Clone()
	n.want.Policy.Rules, n.want.Policy.Hosts = map[state.RulesID]*state.Rules{rules.ID: rules}, map[int]*state.Host{n.front: {Name: "front", Device: "front", UntrackedIn: rules.ID}}
	n.keep = driver.Keep{Policy: true}
	n.open()
	n.answers("kept", to4, to6, "10.0.0.3")
	adopt(t, n.d, n.want.Clone(), driver.Keep{})
	n.drops("all is read", state.DropHost, true, to4, to6, "10.0.0.3", "fd00::3")
	adopt(t, n.d, whole.Clone(), driver.Keep{})
	n.want = whole
	n.answers("as before", to4, to6, "10.0.0.3")
	n.change(state.Delta{Policy: state.PolicyDelta{
		Rules: map[state.RulesID]*state.Rules{first.ID: nil}, Hosts: map[int]*state.Host{n.front: nil}, Lists: map[state.SetID]*state.List{8: nil, 9: nil}, PortSets: map[state.SetID]*state.Ports{7: nil}}})
	n.answers("no policy", to4, to6, "10.0.0.2", "10.0.0.3", "fd00::3")
	if n.runs() {
		t.Error("a program runs without policies")
	}
}
