package policytest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/store"
)

// ingressTo is a policy for what comes to pod b.
func ingressTo(kind model.Kind, name string, rules ...model.PolicyRule) *model.Policy {
	p := &model.Policy{
		Key: model.PolicyKey{Kind: kind, Name: model.Name{Name: name}}, Tier: model.DefaultTier.Name, Order: 1000,
		Subject: model.Equal("app", "b"), Ingress: true, IngressRules: rules,
	}
	if kind == model.NetworkPolicy || kind == model.CalicoPolicy {
		p.Key.Name.Namespace = "shop"
	}
	return p
}

func refusedPolicy(kind model.Kind, name string) *model.Policy {
	p := ingressTo(kind, name)
	p.Refused = "no good"
	return p
}

func listEvent(set *model.NetworkSet) store.Event {
	return store.Event{Kind: model.AddressList, Name: set.Key.Name, Object: set}
}

// addressList is refused where nets is nil.
func addressList(name string, nets ...netip.Prefix) *model.NetworkSet {
	set := &model.NetworkSet{
		Key:    model.NetworkSetKey{Kind: model.AddressList, Name: model.Name{Name: name}},
		Labels: map[string]string{"sluice.dev/list": name}, Nets: nets,
	}
	if nets == nil {
		set.Refused = "line 1: no address"
	}
	return set
}

// onList is a rule for what comes from an address list.
func onList(action model.Action, name string) model.PolicyRule {
	return model.PolicyRule{Name: "list", Action: action, Source: model.RuleEnd{Peers: [][]model.Peer{{{Selector: model.Equal("sluice.dev/list", name)}}}}}
}

// testRefused sends packets where a policy or a list is refused, beside policies that allow.
func testRefused(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	all := model.PolicyRule{Name: "all"}
	good := ingressTo(model.NetworkPolicy, "m-good", all)
	passes, denied := "b", ""
	for _, tc := range []struct {
		name   string
		events []store.Event
		at     string
	}{
		{"a NetworkPolicy beside one that allows", []store.Event{ofPolicy(good), ofPolicy(refusedPolicy(model.NetworkPolicy, "z-bad"))}, passes},
		{"the same in another order", []store.Event{ofPolicy(good), ofPolicy(refusedPolicy(model.NetworkPolicy, "a-bad"))}, passes},
		{"a NetworkPolicy alone", []store.Event{ofPolicy(refusedPolicy(model.NetworkPolicy, "bad"))}, denied},
		{"one of Calico's beside one that allows", []store.Event{ofPolicy(good), ofPolicy(refusedPolicy(model.CalicoPolicy, "z-bad"))}, denied},
		{"an ordered one of the cluster's", []store.Event{ofPolicy(ingressTo(model.GlobalNetworkPolicy, "a", all)), ofPolicy(refusedPolicy(model.ClusterPolicy, "z"))}, denied},
		{"a list that is denied", []store.Event{ofPolicy(ingressTo(model.GlobalNetworkPolicy, "x", onList(model.Deny, "known"), all)), listEvent(addressList("known"))}, denied},
		{"the list is mended", []store.Event{ofPolicy(ingressTo(model.GlobalNetworkPolicy, "x", onList(model.Deny, "known"), all)), listEvent(addressList("known", netip.MustParsePrefix("192.0.2.0/24")))}, passes},
		{"a list that is allowed", []store.Event{ofPolicy(ingressTo(model.GlobalNetworkPolicy, "x", onList(model.Allow, "known"))), listEvent(addressList("known"))}, denied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plan, err := k.driver.Update(t.Context(), k.Apply(k.changes(append(mustEvents(t, shop()), tc.events...))))
			k.carryOut(t, plan, err)
			for family := range Families {
				k.follow(t, packet{from: "a", proto: tcp, to: "b", port: 80, at: tc.at}, family)
				k.follow(t, packet{from: "b", proto: tcp, to: "c", port: 80, at: "c"}, family)
			}
		})
	}
	k.declare(t, row{})
	k.settled(t)
}

// testUnsupported sends packets where a policy has a field that is not supported, with both choices
// of what becomes of it.
func testUnsupported(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	const http = `{"apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy", "metadata": {"name": "http", "namespace": "shop"},
		"spec": {"selector": "app == 'b'", "ingress": [{"action": "Allow", "http": {"methods": ["GET"]}}]}}`
	onlyA := model.PolicyRule{Name: "a", Source: model.RuleEnd{Peers: [][]model.Peer{{{Selector: model.Equal("app", "a")}}}}}
	for _, tc := range []struct {
		name        string
		ignore      bool
		others      []store.Event
		fromA, andC string // where packets to b arrive
	}{
		{"denied", false, nil, "", ""},
		{"denied, whatever others allow", false, []store.Event{ofPolicy(ingressTo(model.NetworkPolicy, "good", onlyA))}, "", ""},
		{"ignored", true, nil, "b", "b"},
		{"ignored, and others decide", true, []store.Event{ofPolicy(ingressTo(model.NetworkPolicy, "good", onlyA))}, "b", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, err := kinds.Find(model.CalicoPolicy).Decode(kinds.Text{Data: []byte(http), IgnoreRefused: tc.ignore})
			if err == nil || o == nil {
				t.Fatalf("decode: %v, %v", o, err)
			}
			events := append(mustEvents(t, shop()), append(tc.others, ofPolicy(o.(*model.Policy)))...)
			plan, err := k.driver.Update(t.Context(), k.Apply(k.changes(events)))
			k.carryOut(t, plan, err)
			for family := range Families {
				k.follow(t, packet{from: "a", proto: tcp, to: "b", port: 80, at: tc.fromA}, family)
				k.follow(t, packet{from: "c", proto: tcp, to: "b", port: 80, at: tc.andC}, family)
			}
		})
	}
	k.declare(t, row{})
	k.settled(t)
}

// TestRefusedSetsAllowNothingMore tries random policies on a list that is refused: what passes
// would pass with whatever is in the list.
func TestRefusedSetsAllowNothingMore(t *testing.T) {
	t.Parallel()
	differ := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 7))
		var events []store.Event
		for i, tier := range []string{"first", "second"} {
			events = append(events, store.Event{Kind: model.TierKind, Name: model.Name{Name: tier}, Object: &model.Tier{Name: tier, Order: float64(i), DefaultPass: r.IntN(2) == 0}})
			for j := range 1 + r.IntN(2) {
				p := ingressTo(model.GlobalNetworkPolicy, fmt.Sprint(tier, j), randomRules(r)...)
				p.Tier, p.Order = tier, float64(r.IntN(2))
				events = append(events, ofPolicy(p))
			}
		}
		events = append(events, listEvent(addressList("good", sources[1:3]...)))
		cautious := takes(t, append(events, listEvent(addressList("bad"))))
		for contents := range 1 << len(sources) {
			nets := []netip.Prefix{}
			for i, s := range sources {
				if contents>>i&1 == 1 {
					nets = append(nets, s)
				}
			}
			known := takes(t, append(events, listEvent(addressList("bad", nets...))))
			for _, s := range sources {
				refused, want := cautious(s.Addr()), known(s.Addr())
				if refused != want {
					differ++
				}
				if refused && !want {
					t.Fatalf("seed %d: %v passes with the list refused, and not with %v in it", seed, s, nets)
				}
			}
		}
	}
	if differ == 0 {
		t.Error("the lists make no difference: the test proves nothing")
	}
}

// sources are where packets come from.
var sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32"), netip.MustParsePrefix("192.0.2.3/32"), netip.MustParsePrefix("192.0.2.4/32")}

func randomRules(r *rand.Rand) (rules []model.PolicyRule) {
	for i := range 1 + r.IntN(3) {
		rule := model.PolicyRule{Name: fmt.Sprint("rule", i), Action: model.Action(r.IntN(4))}
		if r.IntN(3) > 0 {
			rule.Source.Peers = append(rule.Source.Peers, randomPeers(r))
		}
		if r.IntN(3) == 0 {
			rule.Source.NotPeers = randomPeers(r)
		}
		rules = append(rules, rule)
	}
	return rules
}

func randomPeers(r *rand.Rand) (peers []model.Peer) {
	for range 1 + r.IntN(2) {
		switch r.IntN(4) {
		case 0:
			peers = append(peers, model.Peer{Nets: sources[2:]})
		case 1:
			peers = append(peers, model.Peer{Selector: model.Equal("sluice.dev/list", "good")})
		default:
			peers = append(peers, model.Peer{Selector: model.Equal("sluice.dev/list", "bad")})
		}
	}
	return peers
}

// takes returns whether pod b takes a connection from an address.
func takes(t *testing.T, events []store.Event) func(netip.Addr) bool {
	t.Helper()
	s := store.New()
	s.Apply(append(mustEvents(t, shop()), events...))
	c := compile.New(compile.Config{Config: services.Config{Node: NodeName}, Policy: true})
	c.Update(s, s.Take())
	policy := c.State().Policy
	rules := policy.Workloads[names["b"][0]].Ingress
	return func(from netip.Addr) bool {
		return verdict.Evaluate(policy, rules, verdict.Flow{Source: from, Destination: names["b"][0], Protocol: uint8(tcp), SourcePort: 40000, DestinationPort: 80}).Allowed()
	}
}
