package compile_test

import (
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/store"
)

func denyAll() store.Event {
	p := &model.Policy{
		Key:  model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: "deny"}},
		Tier: "default", Order: 1000, Subject: model.Equal(model.NamespaceLabel, "shop"), Ingress: true,
	}
	return store.Event{Kind: model.NetworkPolicy, Name: p.Key.Name, Object: p}
}

func localPod() *model.Pod {
	return &model.Pod{Name: model.Name{Namespace: "shop", Name: "web-1"}, Node: "here", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
}

// Without Config.Policy there is none, whatever objects there are.
func TestPolicyIsOptional(t *testing.T) {
	s := store.New()
	s.Apply([]store.Event{event(localPod()), denyAll()})
	c := compile.New(compile.Config{Config: services.Config{Node: "here"}})
	c.SetLinks(model.Links{})
	if d := c.Update(s, s.Take()); d.Policy.Len() != 0 || c.State().Policy != nil || c.Policy != nil {
		t.Errorf("policy: %+v", d.Policy)
	}
}

// Policy follows the same updates as services do, and the own node's addresses.
func TestPolicyIsPartOfTheState(t *testing.T) {
	s := store.New()
	s.Apply([]store.Event{event(localPod()), denyAll(), event(ownNode())})
	c := compile.New(compile.Config{Config: services.Config{Node: "here"}, Policy: true})
	c.SetLinks(model.Links{
		Links:  []model.Link{{Index: 7, Name: "web-1", Pod: true}},
		Routes: []model.LinkRoute{{Prefix: netip.PrefixFrom(netip.MustParseAddr("10.0.0.1"), 32), Link: 7}},
	})
	d := c.Update(s, s.Take())
	p := c.State().Policy
	w := p.Workloads[netip.MustParseAddr("10.0.0.1")]
	if w == nil || w.Device != 7 || p.Rules[w.Ingress] == nil || w.Egress != "" {
		t.Fatalf("workload %+v", w)
	}
	if len(d.Policy.Workloads) != 1 || len(d.Policy.Rules) != 1 || !d.Policy.PodDevices[7] {
		t.Errorf("delta %+v", d.Policy)
	}
	if got := c.Policy.Views(); len(got) != 1 || got[0].Pods != 1 {
		t.Errorf("policies %+v", got)
	}

	node := ownNode()
	node.PodCIDRs = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("10.0.0.9"), 24)}
	s.Apply([]store.Event{event(node)})
	if d = c.Update(s, s.Take()); d.Policy.Len() != 1 || !slices.Equal(p.PodCIDRs, masked(node.PodCIDRs)) {
		t.Errorf("pod CIDRs %v, delta %+v", p.PodCIDRs, d.Policy)
	}
	c.SetLinks(model.Links{})
	if d = c.Update(s, store.Dirty{}); d.Policy.Len() != 2 || p.Workloads[netip.MustParseAddr("10.0.0.1")].Device != 0 {
		t.Errorf("an interface goes: %+v", d.Policy)
	}
	e := denyAll()
	e.Object = nil
	s.Apply([]store.Event{e})
	if d = c.Update(s, s.Take()); d.Policy.Len() != 2 || len(p.Rules) != 0 {
		t.Errorf("the policy goes: %+v", d.Policy)
	}
	if d = c.Update(s, store.Dirty{}); d.Len() != 0 {
		t.Errorf("nothing changes: %+v", d)
	}
}

// Where there are nodes and none is ours, the node has another name than we think: what is known of
// its pods then is nothing, and nobody is cut off for that. Known pods are judged all the same.
func TestMisnamedNodeCutsNobodyOff(t *testing.T) {
	other := &model.Node{Name: "Here", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}
	c, s := compile.New(compile.Config{Config: services.Config{Node: "here"}, Policy: true}), store.New()
	c.SetLinks(model.Links{Links: []model.Link{{Index: 1, Name: "eth0", Host: true}, {Index: 7, Name: "web-1", Pod: true}, {Index: 8, Name: "new"}}})
	step := func(what string, devices, hosts int, cidrs int, events ...store.Event) {
		t.Helper()
		s.Apply(events)
		c.Update(s, s.Take())
		if p := c.State().Policy; len(p.PodDevices) != devices || len(p.HostDevices) != hosts || len(p.PodCIDRs) != cidrs {
			t.Errorf("%s: interfaces of pods %v, of the node %v, pod CIDRs %v", what, p.PodDevices, p.HostDevices, p.PodCIDRs)
		}
	}
	step("no nodes", 1, 1, 0)
	step("others", 0, 3, 0, event(other), event(localPod()), denyAll())
	if w := c.State().Policy.Workloads[netip.MustParseAddr("10.0.0.1")]; w == nil || w.Ingress == "" {
		t.Errorf("a pod that is known to be here: %+v", w)
	}
	node := ownNode()
	node.PodCIDRs = other.PodCIDRs
	step("its own", 1, 1, 1, event(node))
	step("its own is deleted", 1, 1, 1, gone(node))
}

// While no Pod object could be read, nobody is cut off for that.
func TestUnreadPodsAreNotCutOff(t *testing.T) {
	node := ownNode()
	node.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	c, s := compile.New(compile.Config{Config: services.Config{Node: "here"}, Policy: true}), store.New()
	c.SetLinks(model.Links{Links: []model.Link{{Index: 1, Name: "eth0", Host: true}, {Index: 7, Name: "web-1", Pod: true}}})
	s.Apply([]store.Event{event(node), denyAll()})
	for _, unread := range []bool{true, false} {
		c.SetPodsUnread(unread)
		c.Update(s, s.Take())
		if p := c.State().Policy; len(p.PodDevices) == 0 != unread || len(p.HostDevices) == 2 != unread || len(p.PodCIDRs) == 0 != unread {
			t.Errorf("unread %v: interfaces of pods %v, of the node %v, pod CIDRs %v", unread, p.PodDevices, p.HostDevices, p.PodCIDRs)
		}
	}
}

func masked(list []netip.Prefix) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, p.Masked())
	}
	return all
}

func ownNode() *model.Node {
	return &model.Node{Name: "here", IPs: []netip.Addr{netip.MustParseAddr("192.168.0.1")}}
}

func event(o model.Object) store.Event {
	return store.Event{Kind: o.Ref().Kind, Name: o.Ref().Name, Object: o}
}

// gone takes an object away.
func gone(o model.Object) store.Event { return store.Event{Kind: o.Ref().Kind, Name: o.Ref().Name} }

func events(objects ...model.Object) (list []store.Event) {
	for _, o := range objects {
		list = append(list, event(o))
	}
	return list
}
