package store_test

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

func policyEvent(kind model.Kind, p *model.Policy) store.Event {
	return store.Event{Kind: kind, Name: p.Key.Name, Object: p}
}

func setEvent(kind model.Kind, s *model.NetworkSet) store.Event {
	return store.Event{Kind: kind, Name: s.Key.Name, Object: s}
}

// policyObjects are one of each kind that policies are made of.
func policyObjects() []store.Event {
	return []store.Event{
		policyEvent(model.NetworkPolicy, &model.Policy{Tier: model.DefaultTier.Name, Key: model.PolicyKey{Kind: model.NetworkPolicy, Name: name("x")}}),
		policyEvent(model.ClusterPolicy, &model.Policy{Tier: model.DefaultTier.Name, Key: model.PolicyKey{Kind: model.ClusterPolicy, Name: model.Name{Name: "x"}}}),
		policyEvent(model.CalicoPolicy, &model.Policy{Tier: model.DefaultTier.Name, Key: model.PolicyKey{Kind: model.CalicoPolicy, Name: name("x")}}),
		policyEvent(model.GlobalNetworkPolicy, &model.Policy{Tier: model.DefaultTier.Name, Key: model.PolicyKey{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "x"}}}),
		{Kind: model.TierKind, Name: model.Name{Name: "t"}, Object: &model.Tier{Name: "t"}},
		setEvent(model.NamespacedNetworkSet, &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.NamespacedNetworkSet, Name: name("s")}}),
		setEvent(model.GlobalNetworkSet, &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.GlobalNetworkSet, Name: model.Name{Name: "s"}}}),
		setEvent(model.AddressList, &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.AddressList, Name: model.Name{Name: "s"}}}),
		{Kind: model.HostEndpointKind, Name: model.Name{Name: "h"}, Object: &model.HostEndpoint{Name: "h"}},
		{Kind: model.ServiceAccountKind, Name: name("a"), Object: &model.ServiceAccount{Name: name("a")}},
		event(pod("p")), event(&model.Namespace{Name: "shop"}),
	}
}

// Every kind is kept, dirty once when it comes and when it goes, and not when it
// is brought once more.
func TestPolicyObjects(t *testing.T) {
	s := store.New()
	objects := policyObjects()
	for _, e := range objects {
		s.Apply([]store.Event{e})
		if got := s.Take().Len(); got != 1 {
			t.Errorf("%s: %d keys are dirty", e.Kind, got)
		}
		s.Apply([]store.Event{e})
		if got := s.Take().Len(); got != 0 {
			t.Errorf("%s, once more: %d keys are dirty", e.Kind, got)
		}
	}
	s.Read(func(v *store.View) {
		all := v.All()
		want := store.Dirty{Services: map[model.Name]struct{}{}, Objects: map[model.Kind]map[model.Name]struct{}{}}
		for _, e := range objects {
			want.Objects[e.Kind] = map[model.Name]struct{}{e.Name: {}}
			switch o := e.Object.(type) {
			case *model.Policy:
				if v.Policy(o.Key) != o {
					t.Errorf("%s is not found", o.Key)
				}
			case *model.NetworkSet:
				if v.NetworkSet(o.Key) != o {
					t.Errorf("%s is not found", o.Key)
				}
			}
		}
		if diff := cmp.Diff(want, all); diff != "" {
			t.Error(diff)
		}
		if v.Tier("t") == nil || v.HostEndpoint("h") == nil || v.ServiceAccount(name("a")) == nil || v.Pod(name("p")) == nil {
			t.Error("objects are not found by name")
		}
	})
	counts := map[string]int{"Service": 0, "EndpointSlice": 0, "Pod": 1, "Node": 0, "Namespace": 1, "NetworkPolicy": 1, "ClusterNetworkPolicy": 1,
		"NetworkPolicy.projectcalico.org": 1, "GlobalNetworkPolicy": 1, "Tier": 1, "NetworkSet": 1, "GlobalNetworkSet": 1, "AddressList": 1, "HostEndpoint": 1, "ServiceAccount": 1}
	if got := s.Counts(); !maps.Equal(got, counts) {
		t.Errorf("counts %v", got)
	}
	for _, e := range objects {
		e.Object = nil
		s.Apply([]store.Event{e})
		if got := s.Take().Len(); got != 1 {
			t.Errorf("%s goes: %d keys are dirty", e.Kind, got)
		}
	}
	if got := s.Counts(); len(got) != 5 || got["Pod"] != 0 {
		t.Errorf("counts %v", got)
	}
}

// A kind that the store has never heard of is kept like the others.
func TestUnknownKind(t *testing.T) {
	type toy struct{ Size int }
	s, ref := store.New(), model.Ref{Kind: "Toy", Name: name("ball")}
	for _, c := range []struct {
		object any
		dirty  int
	}{{&toy{1}, 1}, {&toy{1}, 0}, {&toy{2}, 1}, {nil, 1}, {nil, 0}} {
		s.Apply([]store.Event{{Kind: ref.Kind, Name: ref.Name, Object: c.object}})
		d := s.Take()
		if _, named := d.Objects[ref.Kind][ref.Name]; d.Len() != c.dirty || named != (c.dirty > 0) {
			t.Errorf("%v: %v is dirty", c.object, d.Objects)
		}
		s.Read(func(v *store.View) {
			if got := v.Object(ref); (got == nil) != (c.object == nil) || got != nil && *got.(*toy) != *c.object.(*toy) {
				t.Errorf("%v is %v", c.object, got)
			}
		})
	}
}

// The index of addresses answers as a search through all pods would.
func TestPodByAddr(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := store.New()
	pods := map[string]*model.Pod{}
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
	for range 3000 {
		n := strconv.Itoa(r.IntN(6))
		p := pod(n)
		p.HostNetwork, p.Finished, p.Terminating = r.IntN(8) == 0, r.IntN(8) == 0, r.IntN(3) == 0
		for range r.IntN(3) {
			a := addr(r.IntN(4))
			if r.IntN(4) == 0 {
				a = netip.AddrFrom16(a.As16()) // the same address, written for IPv6
			}
			p.IPs = append(p.IPs, a)
		}
		e := event(p)
		pods[n] = p
		if r.IntN(4) == 0 {
			e.Object = nil
			delete(pods, n)
		}
		s.Apply([]store.Event{e})
		for i := range 4 {
			var want string
			best := ""
			for n, p := range pods {
				has := slices.ContainsFunc(p.IPs, func(a netip.Addr) bool { return a.Unmap() == addr(i) })
				rank := strconv.FormatBool(p.Terminating) + n // "false" sorts first
				if has && !p.HostNetwork && !p.Finished && (best == "" || rank < best) {
					want, best = n, rank
				}
			}
			got := ""
			if p := s.PodByAddr(addr(i)); p != nil {
				got = p.Name.Name
			}
			if got != want {
				t.Fatalf("%s is of pod %q, want %q", addr(i), got, want)
			}
		}
	}
}
