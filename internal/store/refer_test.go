package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

func tierEvent(name string, order float64) store.Event {
	return store.Event{Kind: model.TierKind, Name: model.Name{Name: name}, Object: &model.Tier{Name: name, Order: order}}
}

func inTier(policy, tier string, order float64, services ...string) store.Event {
	p := &model.Policy{Key: model.PolicyKey{Kind: model.CalicoPolicy, Name: name(policy)}, Tier: tier, Order: order, Egress: true}
	for _, s := range services {
		p.EgressRules = append(p.EgressRules, model.PolicyRule{Destination: model.RuleEnd{Ports: []model.PolicyPort{{Service: name(s)}}}})
	}
	return policyEvent(model.CalicoPolicy, p)
}

func without(e store.Event) store.Event { return store.Event{Kind: e.Kind, Name: e.Name} }

// What is in force stays in force while something it names is missing, and what is new waits for
// it.
func TestMissing(t *testing.T) {
	s := store.New()
	for _, step := range []struct {
		name    string
		events  []store.Event
		there   string // policies "name tier order", tiers and services as policies see them
		missing string // objects that an issue names, "!" before those of which something is in force
	}{
		{"a policy comes before its tier", []store.Event{inTier("p", "own", 1)}, "", "shop/p"},
		{"and changes", []store.Event{inTier("p", "own", 2)}, "", "shop/p"},
		{"the tier comes", []store.Event{tierEvent("own", 10)}, "own 10, p own 2", ""},
		{"the tier goes", []store.Event{without(tierEvent("own", 0))}, "own 10, p own 2", "!own"},
		{"and goes again", []store.Event{without(tierEvent("own", 0))}, "own 10, p own 2", "!own"},
		{"the policy is delivered again", []store.Event{inTier("p", "own", 2)}, "own 10, p own 2", "!own"},
		{"another comes to that tier", []store.Event{inTier("q", "own", 3)}, "own 10, p own 2", "!own shop/q"},
		{"the policy changes", []store.Event{inTier("p", "own", 4)}, "own 10, p own 2", "!own !shop/p shop/q"},
		{"and goes back", []store.Event{inTier("p", "own", 2)}, "own 10, p own 2", "!own shop/q"},
		{"the tier comes back as another", []store.Event{tierEvent("own", 20)}, "own 20, p own 2, q own 3", ""},
		{"a policy moves to a tier that is missing", []store.Event{inTier("p", "lost", 2)}, "own 20, p own 2, q own 3", "!shop/p"},
		{"and to one that is always there", []store.Event{inTier("p", model.DefaultTier.Name, 2)}, "own 20, p default 2, q own 3", ""},
		{"a tier goes for good with the last policy", []store.Event{without(tierEvent("own", 0)), without(inTier("q", "", 0))}, "p default 2", ""},
		{"in either order", []store.Event{tierEvent("own", 5), inTier("q", "own", 1), without(inTier("q", "", 0)), without(tierEvent("own", 0))}, "p default 2", ""},
		{"what waits is deleted", []store.Event{inTier("q", "own", 1), without(inTier("q", "", 0))}, "p default 2", ""},
		{"a policy that cannot be read needs no tier", []store.Event{policyEvent(model.CalicoPolicy, &model.Policy{Key: model.PolicyKey{Kind: model.CalicoPolicy, Name: name("r")}, Tier: "lost", Refused: "x"})}, "p default 2, r lost 0", ""},
		{"and goes", []store.Event{without(inTier("r", "", 0))}, "p default 2", ""},
		{"a policy names a service", []store.Event{inTier("p", model.DefaultTier.Name, 2, "db"), event(&model.Service{Name: name("db")})}, "db, p default 2", ""},
		{"that goes", []store.Event{{Kind: model.ServiceKind, Name: name("db")}}, "(db), p default 2", "!shop/db"},
		{"and comes back", []store.Event{event(&model.Service{Name: name("db"), Unproxied: "x"})}, "db, p default 2", ""},
		{"and goes with the policy", []store.Event{{Kind: model.ServiceKind, Name: name("db")}, without(inTier("p", "", 0))}, "", ""},
		{"a new policy names a service that does not exist", []store.Event{inTier("p", model.DefaultTier.Name, 1, "db")}, "p default 1", "!shop/db"},
		{"a version names others, too", []store.Event{inTier("p", model.DefaultTier.Name, 2, "db", "lost", "least")}, "p default 1", "!shop/db !shop/p"},
		{"and is delivered again", []store.Event{inTier("p", model.DefaultTier.Name, 2, "db", "lost", "least")}, "p default 1", "!shop/db !shop/p"},
		{"one comes", []store.Event{event(&model.Service{Name: name("db")})}, "db, p default 1", "!shop/p"},
		{"another comes", []store.Event{event(&model.Service{Name: name("lost")})}, "db, p default 1", "!shop/p"},
		{"all are there", []store.Event{event(&model.Service{Name: name("least")})}, "db, p default 2", ""},
		{"a service goes, and a version still names it", []store.Event{{Kind: model.ServiceKind, Name: name("db")}, inTier("p", model.DefaultTier.Name, 3, "db")}, "(db), p default 3", "!shop/db"},
		{"the next does not", []store.Event{inTier("p", model.DefaultTier.Name, 4)}, "p default 4", ""},
		{"it names it again", []store.Event{inTier("p", model.DefaultTier.Name, 5, "db")}, "p default 4", "!shop/p"},
		{"what cannot be read does not wait", []store.Event{policyEvent(model.CalicoPolicy, &model.Policy{Key: model.PolicyKey{Kind: model.CalicoPolicy, Name: name("p")}, Refused: "x"})}, "p  0", ""},
		{"nor what takes its place", []store.Event{inTier("p", model.DefaultTier.Name, 6, "db")}, "p default 6", "!shop/db"},
		{"the service comes with the policy's end", []store.Event{event(&model.Service{Name: name("db")}), without(inTier("p", "", 0)), {Kind: model.ServiceKind, Name: name("db")}}, "", ""},
	} {
		s.Apply(step.events)
		var there []string
		s.Read(func(v *store.View) {
			for _, p := range v.Policies() {
				there = append(there, fmt.Sprint(p.Key.Name.Name, " ", p.Tier, " ", p.Order))
			}
			for _, name := range []string{"own", "lost"} {
				if tier := v.Tier(name); tier != nil {
					there = append(there, fmt.Sprint(name, " ", tier.Order))
				}
			}
			if v.Service(name("db")) != nil {
				there = append(there, "db")
			} else if v.NamedService(name("db")) != nil {
				there = append(there, "(db)")
			}
		})
		slices.Sort(there)
		if got := strings.Join(there, ", "); got != step.there {
			t.Errorf("%s: there are %s, want %s", step.name, got, step.there)
		}
		var missing []string
		for _, i := range s.Missing() {
			text := i.Object.Name.String()
			if i.InForce != model.InForceNothing {
				text = "!" + text
			}
			missing = append(missing, text)
		}
		slices.Sort(missing)
		if got := strings.Join(missing, " "); got != step.missing {
			t.Errorf("%s: %s, want %s", step.name, got, step.missing)
		}
	}
}

// A BGPPeer waits for its filters, all of them, and the version before stays.
func TestMissingFilter(t *testing.T) {
	s := store.New()
	filter := func(name string) store.Event {
		return event(&model.BGPFilter{Name: name})
	}
	peer := func(as uint32, filters ...string) store.Event {
		return event(&model.BGPPeer{Name: "p", AS: as, Filters: filters})
	}
	for _, step := range []struct {
		name    string
		event   store.Event
		inForce uint32 // the AS of the version; 0: none
		missing string
	}{
		{"a peer comes before its filters", peer(1, "a", "b"), 0, "BGPPeer p: spec.filters: there is no BGPFilter a that can be read, for which it waits"},
		{"one comes", filter("a"), 0, "BGPPeer p: spec.filters: there is no BGPFilter b that can be read, for which it waits"},
		{"both are there", filter("b"), 1, ""},
		{"a version names another", peer(2, "a", "c"), 1, "BGPPeer p: spec.filters: there is no BGPFilter c that can be read, for which it waits"},
		{"one that is in force goes", without(filter("b")), 1, "BGPFilter b: it is deleted, and stays"},
		{"the other comes", filter("c"), 2, ""},
		{"one goes", without(filter("c")), 2, "BGPFilter c: it is deleted, and stays"},
		{"the peer changes", peer(3, "c"), 2, "BGPFilter c: it is deleted, and stays"},
		{"the filter comes back", filter("c"), 3, ""},
		{"all goes", without(peer(0)), 0, ""},
	} {
		s.Apply([]store.Event{step.event})
		inForce := uint32(0)
		s.Read(func(v *store.View) {
			for _, p := range v.BGPPeers() {
				inForce = p.AS
			}
		})
		if inForce != step.inForce {
			t.Errorf("%s: version %d is in force, want %d", step.name, inForce, step.inForce)
		}
		text := ""
		if list := s.Missing(); len(list) > 0 {
			text = list[0].String()
		}
		if !strings.HasPrefix(text, step.missing) || step.missing == "" && text != "" {
			t.Errorf("%s: %q, want %q", step.name, text, step.missing)
		}
	}
}

// A policy that is mended while its tier is missing waits, and the refused version denies.
func TestMendedWaits(t *testing.T) {
	s := store.New()
	refused := policyEvent(model.CalicoPolicy, &model.Policy{Key: model.PolicyKey{Kind: model.CalicoPolicy, Name: name("p")}, Tier: "lost", Refused: "x"})
	s.Apply([]store.Event{refused, inTier("p", "lost", 1)})
	if list := s.Missing(); len(list) != 1 || list[0].InForce != model.InForceDeny {
		t.Error(list)
	}
}

// What policies name that were released together does not depend on which of them came first.
func TestReleaseTogether(t *testing.T) {
	for range 20 {
		s := store.New()
		s.Apply([]store.Event{
			event(&model.Service{Name: name("db")}), inTier("p", model.DefaultTier.Name, 1, "db"), {Kind: model.ServiceKind, Name: name("db")},
			inTier("p", "own", 1), inTier("q", "own", 1, "db"), tierEvent("own", 1),
		})
		s.Read(func(v *store.View) {
			if v.NamedService(name("db")) == nil {
				t.Fatal("a Service is gone that a policy names")
			}
		})
		s.Apply([]store.Event{without(inTier("q", "", 0))})
		if len(s.Missing()) > 0 {
			t.Fatal(s.Missing())
		}
	}
}

// Pods keep the labels of their namespace and service account as long as they run, and a BGPPeer
// its filters.
func TestNamedStay(t *testing.T) {
	filter := &model.BGPFilter{Name: "f"}
	s := store.New()
	p := pod("p")
	p.ServiceAccount = "a"
	s.Apply([]store.Event{
		event(p), event(&model.Namespace{Name: "shop"}), {Kind: model.ServiceAccountKind, Name: name("a"), Object: &model.ServiceAccount{Name: name("a")}},
		{Kind: model.BGPFilterKind, Name: model.Name{Name: "f"}, Object: filter},
		{Kind: model.BGPPeerKind, Name: model.Name{Name: "b"}, Object: &model.BGPPeer{Name: "b", Filters: []string{"f"}}},
	})
	there := func(want int) {
		t.Helper()
		n := 0
		s.Read(func(v *store.View) {
			for _, is := range []bool{v.Namespace("shop") != nil, v.ServiceAccount(name("a")) != nil, v.BGPFilter("f") != nil} {
				if is {
					n++
				}
			}
		})
		if n != want {
			t.Errorf("%d are there, want %d", n, want)
		}
	}
	s.Apply([]store.Event{
		{Kind: model.NamespaceKind, Name: model.Name{Name: "shop"}}, {Kind: model.ServiceAccountKind, Name: name("a")}, {Kind: model.BGPFilterKind, Name: model.Name{Name: "f"}},
	})
	there(3)
	if list := s.Missing(); len(list) != 3 {
		t.Error(list)
	}
	leaving := *p
	leaving.Terminating = true
	s.Apply([]store.Event{event(&leaving)})
	there(3)
	if list := s.Missing(); len(list) != 1 || list[0].Object.Kind != model.BGPFilterKind {
		t.Errorf("while the pod leaves: %v", list)
	}
	s.Apply([]store.Event{{Kind: model.PodKind, Name: p.Name}})
	there(1)
	s.Apply([]store.Event{{Kind: model.BGPPeerKind, Name: model.Name{Name: "b"}}})
	there(0)
	if len(s.Missing()) > 0 {
		t.Error(s.Missing())
	}
}

// What waits since the start may be what an earlier agent carried out; what comes later is not.
func TestAwaiting(t *testing.T) {
	s := store.New()
	s.Apply([]store.Event{inTier("early", "own", 1), inTier("good", "other", 1), tierEvent("other", 1)})
	s.SetSynced()
	s.Apply([]store.Event{inTier("unread", "own", 1)}) // a kind that could not be read at first
	s.SetWhole()
	s.Apply([]store.Event{inTier("early", "own", 2), inTier("late", "own", 1), without(tierEvent("other", 0))})
	var keys []model.PolicyKey
	for _, p := range s.Awaiting() {
		keys = append(keys, p.Key)
	}
	if got := fmt.Sprint(keys); got != "[NetworkPolicy.projectcalico.org shop/early NetworkPolicy.projectcalico.org shop/unread]" {
		t.Error(got)
	}
	s.Apply([]store.Event{tierEvent("own", 1)})
	if got := s.Awaiting(); len(got) > 0 {
		t.Error(got)
	}
}
