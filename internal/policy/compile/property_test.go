package compile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/admission"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// world makes random objects out of few names and addresses, so that they meet often.
type world struct{ *rand.Rand }

func newWorld(seed uint64) world { return world{rand.New(rand.NewPCG(seed, 1))} }

func (w world) chance(percent int) bool { return w.IntN(100) < percent }

func pickOne[T any](w world, of ...T) T { return of[w.IntN(len(of))] }

func (w world) namespace() string { return pickOne(w, "shop", "prod") }

func (w world) labels() map[string]string {
	l := map[string]string{}
	for _, k := range []string{"app", "tier", "projectcalico.org/namespace", "pcns.team", "pcsa.role"} {
		if w.chance(40) {
			l[k] = pickOne(w, "a", "b", "shop")
		}
	}
	return l
}

func (w world) addr() netip.Addr {
	n := byte(1 + w.IntN(8))
	if w.chance(30) {
		return netip.AddrFrom16([16]byte{0: 0xfd, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, n})
}

func (w world) addrs() (list []netip.Addr) {
	for w.chance(70) && len(list) < 3 {
		list = append(list, w.addr())
	}
	return list
}

func (w world) nets() (list []netip.Prefix) {
	for w.chance(60) {
		a := w.addr()
		list = append(list, netip.PrefixFrom(a, pickOne(w, 0, 8, 30, a.BitLen())).Masked())
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}

func (w world) selector(depth int) model.Selector {
	key := pickOne(w, "app", "tier", model.NamespaceLabelPrefix+"team", model.ServiceAccountLabel, model.ServiceAccountLabelPrefix+"role", model.NamespaceLabelPrefix+model.MetadataNameLabel)
	switch n := w.IntN(14); {
	case n < 3:
		return model.Equal(key, pickOne(w, "a", "b", "shop"))
	case n == 3:
		return model.In(key, "a", pickOne(w, "b", "shop"))
	case n == 4:
		return model.Has(key)
	case n == 5:
		return pickOne(w, model.Contains(key, "a"), model.StartsWith(key, "sh"), model.EndsWith(key, "b"))
	case n == 6:
		return model.Everything()
	case n == 7:
		return model.Equal(model.NamespaceLabel, w.namespace())
	case n == 8:
		return model.Equal(model.OrchestratorLabel, "k8s")
	case depth == 0:
		return model.Not(model.Equal(key, "a"))
	case n == 9:
		return model.Not(w.selector(depth - 1))
	case n == 10:
		return model.Or(w.selector(depth-1), w.selector(depth-1))
	}
	return model.And(w.selector(depth-1), w.selector(depth-1))
}

func (w world) peer() model.Peer {
	if w.chance(60) {
		return model.Peer{Selector: w.selector(2)}
	}
	if w.chance(30) {
		return model.Peer{Service: w.service()}
	}
	p := model.Peer{Nets: w.nets()}
	if w.chance(40) {
		p.Except = w.nets()
	}
	return p
}

func (w world) peers() (list []model.Peer) {
	for w.chance(55) && len(list) < 3 {
		list = append(list, w.peer())
	}
	return list
}

func (w world) service() model.Name {
	return model.Name{Namespace: w.namespace(), Name: pickOne(w, "front", "back")}
}

func (w world) ports() (list []model.PolicyPort) {
	for w.chance(45) {
		if w.chance(20) {
			list = append(list, model.PolicyPort{Service: w.service()})
			continue
		}
		p := model.PolicyPort{Protocol: pickOne(w, 0, model.TCP, model.UDP)}
		if w.chance(40) {
			p.Name = pickOne(w, "http", "dns")
		} else {
			p.First = pickOne[uint16](w, 0, 80, 81, 90)
			p.Last = p.First + pickOne[uint16](w, 0, 5, 65535-90)
		}
		list = append(list, p)
	}
	return list
}

func (w world) end() model.RuleEnd {
	e := model.RuleEnd{Ports: w.ports()}
	for w.chance(40) && len(e.Peers) < 2 {
		e.Peers = append(e.Peers, w.peers())
	}
	if w.chance(20) {
		e.NotPeers = w.peers()
	}
	if w.chance(10) {
		e.NotPorts = w.ports()
	}
	return e
}

func (w world) rules() (list []model.PolicyRule) {
	for w.chance(60) {
		list = append(list, model.PolicyRule{
			Name: fmt.Sprintf("rule[%d]", len(list)), Action: pickOne(w, model.Allow, model.Deny, model.Pass, model.Log),
			Protocol: pickOne[uint8](w, 0, 0, 6, 17, 1), Source: w.end(), Destination: w.end(),
		})
	}
	return list
}

func (w world) policy() *model.Policy {
	p := &model.Policy{
		Key: model.PolicyKey{
			Kind: pickOne(w, model.NetworkPolicy, model.GlobalNetworkPolicy),
			Name: model.Name{Namespace: w.namespace(), Name: pickOne(w, "x", "y", "z")},
		},
		Tier: pickOne(w, "default", "default", "kube-admin", "own"), Order: float64(w.IntN(2)),
		Subject: w.selector(1), Ingress: w.chance(70), Egress: w.chance(60),
		IngressRules: w.rules(), EgressRules: w.rules(),
		ApplyOnForward: w.chance(20), DoNotTrack: w.chance(10), PreDNAT: w.chance(10),
	}
	if w.chance(5) {
		p.Refused = "no good"
	}
	return p
}

func (w world) pod() *model.Pod {
	return &model.Pod{
		Name:   model.Name{Namespace: w.namespace(), Name: fmt.Sprintf("pod-%d", w.IntN(6))},
		Labels: w.labels(), IPs: w.addrs(), Node: pickOne(w, "here", "there"),
		HostNetwork: w.chance(5), Ready: w.chance(50), Terminating: w.chance(20), Finished: w.chance(5),
		Ports:          []model.ContainerPort{{Name: pickOne(w, "http", "dns"), Protocol: pickOne(w, model.TCP, model.UDP), Port: pickOne[uint16](w, 80, 90)}},
		ServiceAccount: pickOne(w, "a", "b"),
	}
}

func (w world) attachment() *model.Attachment {
	index := 3 + w.IntN(4)
	return &model.Attachment{Device: fmt.Sprintf("p%d", index-3), Index: index, Node: pickOne(w, "here", "there"), Pod: w.pod().Name, Addrs: w.addrs()}
}

func (w world) slice() *model.EndpointSlice {
	service := w.service()
	s := &model.EndpointSlice{Name: model.Name{Namespace: service.Namespace, Name: pickOne(w, "s1", "s2", "s3")}, Service: service.Name}
	for w.chance(70) && len(s.Ports) < 3 {
		s.Ports = append(s.Ports, model.EndpointPort{Protocol: pickOne(w, model.TCP, model.UDP), Port: pickOne[uint16](w, 0, 53, 80, 90)})
	}
	for is4 := w.chance(60); w.chance(70) && len(s.Endpoints) < 4; {
		if a := w.addr(); a.Is4() == is4 {
			s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: a, Ready: w.chance(50)})
		}
	}
	return s
}

func (w world) networkSet() *model.NetworkSet {
	set := &model.NetworkSet{
		Key:    model.NetworkSetKey{Kind: pickOne(w, model.NamespacedNetworkSet, model.GlobalNetworkSet, model.AddressList)},
		Labels: w.labels(), Nets: w.nets(),
	}
	if w.chance(20) {
		set.Nets, set.Refused = nil, pickOne(w, "no file", "no address")
	}
	set.Key.Name.Name = pickOne(w, "bad", "good")
	if set.Key.Kind == model.NamespacedNetworkSet {
		set.Key.Name.Namespace = w.namespace()
	}
	return set
}

func (w world) hostEndpoint() *model.HostEndpoint {
	h := &model.HostEndpoint{
		Name: pickOne(w, "h1", "h2"), Node: pickOne(w, "here", "there"),
		Interface: pickOne(w, "", "*", "eth0", "eth1"), Addresses: w.addrs(), Labels: w.labels(), DefaultAllow: w.chance(50),
	}
	if w.chance(30) {
		h.Addresses = append(h.Addresses, manyAddrs(w.IntN(4), admission.LookupSize+w.IntN(2))...)
	}
	return h
}

func (w world) newLinks() *model.Links {
	l := &model.Links{Links: []model.Link{{Index: 1, Name: "lo", Host: true}, {Index: 2, Name: "eth0", Host: true, Addresses: []netip.Addr{w.addr()}}}}
	for i := range w.IntN(4) {
		l.Links = append(l.Links, model.Link{Index: 3 + i, Name: fmt.Sprintf("p%d", i), Pod: w.chance(70), Bridge: w.chance(20)})
		a := w.addr()
		l.Routes = append(l.Routes, model.LinkRoute{Prefix: netip.PrefixFrom(a, pickOne(w, 28, a.BitLen())).Masked(), Link: 3 + i})
	}
	return l
}

// event brings or takes away a random object.
func (w world) event() store.Event {
	var e store.Event
	switch n := w.IntN(100); {
	case n < 30:
		e = event(w.pod())
	case n < 37:
		e = event(w.attachment())
	case n < 70:
		e = event(w.policy())
	case n < 73:
		e = event(&model.Service{Name: w.service(), Selector: w.labels(), Ports: []model.ServicePort{
			{Name: "a", Protocol: model.TCP, Port: 80, TargetName: "http"}, {Name: "b", Protocol: model.UDP, Port: 53, TargetPort: pickOne[uint16](w, 53, 90)},
		}})
	case n < 77:
		e = event(w.slice())
	case n < 82:
		e = event(w.networkSet())
	case n < 86:
		e = event(w.hostEndpoint())
	case n < 90:
		e = event(&model.ServiceAccount{
			Name:   model.Name{Namespace: w.namespace(), Name: pickOne(w, "a", "b")},
			Labels: map[string]string{pickOne(w, "role", "team"): pickOne(w, "a", "b", "shop")},
		})
	case n < 95:
		e = event(&model.Namespace{Name: w.namespace(), Labels: map[string]string{pickOne(w, "team", "kubernetes.io/metadata.name"): pickOne(w, "a", "b")}})
	default:
		e = event(&model.Tier{Name: pickOne(w, "own", "default", "kube-admin"), Order: float64(w.IntN(3)), DefaultPass: w.chance(50)})
	}
	if w.chance(25) {
		e.Object = nil
	}
	return e
}

// crowded is so few ids that sets often have to move.
const crowded = 300

var worldConfig = Config{
	Node: "here", DenyLists: []string{"bad", "unheard-of"}, DenyDevices: []string{"eth0"},
	FailsafeInbound:  []state.PortRange{{Protocol: model.TCP, First: 22, Last: 22}},
	FailsafeOutbound: []state.PortRange{{Protocol: model.UDP, First: 53, Last: 53}},
}

// The policy is a function of the objects: whatever came before, and in whatever portions,
// it is what a new compiler makes of them; and the deltas are exact.
func TestPolicyDependsOnObjectsAlone(t *testing.T) {
	for seed := range uint64(150) {
		w := newWorld(seed)
		h := newHistory(worldConfig, pickOne[uint32](w, crowded, sets.IDSpace))
		h.selected = pickOne(w, 0, 1, 4, 10, 70)
		h.together = pickOne(w, 0, 1, 10, 30)
		for range 40 {
			var batch []store.Event
			for range 1 + w.IntN(4) {
				batch = append(batch, w.event())
			}
			if w.chance(10) {
				h.links = w.newLinks()
			}
			if w.chance(10) {
				h.cidrs = w.nets()
			}
			h.apply(t, batch...)
			same(t, h.compiler, h.fresh())
			sound(t, h.compiler.Policy())
			complete(t, h.compiler)
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

// The order of events of different objects does not matter, nor do versions in
// between, repetitions, and objects that come and go.
func TestOrderDoesNotMatter(t *testing.T) {
	for seed := range uint64(60) {
		w := newWorld(seed)
		last := map[string]store.Event{}
		var all []store.Event
		for range 40 {
			e := w.event()
			all = append(all, e)
			last[fmt.Sprint(e.Kind, e.Name)] = e
		}
		for _, e := range allNamed() { // what is named and missing stays as it was last
			if key := fmt.Sprint(e.Kind, e.Name); last[key].Object == nil {
				last[key] = e
			}
		}
		var final []store.Event
		for _, e := range last {
			final = append(final, e)
		}
		links := w.newLinks()
		first := newHistory(worldConfig, crowded)
		first.selected = pickOne(w, 0, 4, 70)
		first.together = pickOne(w, 0, 10, 30)
		first.endpoints = pickOne(w, 0, 2, 5)
		first.links = links
		first.apply(t, append(all, final...)...)
		for range 3 {
			h := newHistory(worldConfig, crowded)
			h.selected, h.together, h.endpoints = first.selected, first.together, first.endpoints
			w.deliver(t, h, all)
			h.links = links
			w.deliver(t, h, final)
			if d := h.apply(t, final...); d.Len() != 0 {
				t.Errorf("repeating the last events changes %+v", d)
			}
			same(t, h.compiler, first.compiler)
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

// allNamed brings all objects that others name.
func allNamed() []store.Event {
	all := []store.Event{event(&model.Tier{Name: "own"})}
	for _, namespace := range []string{"shop", "prod"} {
		of := func(name string) model.Name { return model.Name{Namespace: namespace, Name: name} }
		all = append(all, event(&model.Namespace{Name: namespace}),
			event(&model.ServiceAccount{Name: of("a")}), event(&model.ServiceAccount{Name: of("b")}), event(&model.Service{Name: of("front")}), event(&model.Service{Name: of("back")}))
	}
	return all
}

// deliver sends the events shuffled, in random portions.
func (w world) deliver(t *testing.T, h *history, events []store.Event) {
	t.Helper()
	events = slices.Clone(events)
	w.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	for len(events) > 0 {
		n := 1 + w.IntN(min(8, len(events)))
		h.apply(t, events[:n]...)
		events = events[n:]
	}
}

// Undoing every step leads back to nothing, and nothing is left behind.
func TestUndo(t *testing.T) {
	for seed := range uint64(60) {
		w := newWorld(seed)
		h := newHistory(Config{Node: "here"}, crowded)
		h.selected = pickOne(w, 0, 4, 70)
		h.together = pickOne(w, 0, 10, 30)
		h.endpoints = pickOne(w, 0, 2, 5)
		current := map[string]store.Event{}
		var undo []store.Event
		for range 40 {
			e := w.event()
			key := fmt.Sprint(e.Kind, e.Name)
			back, ok := current[key]
			if !ok {
				back = store.Event{Kind: e.Kind, Name: e.Name}
			}
			undo = append(undo, back)
			current[key] = e
			h.apply(t, e)
		}
		slices.Reverse(undo)
		for _, e := range undo {
			h.apply(t, e)
		}
		same(t, h.compiler, newHistory(h.cfg, crowded).fresh())
		empty(t, h.compiler)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// empty fails where the compiler still knows of anything.
func empty(t *testing.T, c *Compiler) {
	t.Helper()
	for what, n := range map[string]int{
		"pods": len(c.objects.Pods), "sets": len(c.objects.Sets), "hosts": len(c.objects.Hosts), "refused": len(c.policies.refusals), "policies": len(c.policies.all),
		"subjects": len(c.policies.subjects), "endpoints": len(c.endpoints.all), "claims": len(c.endpoints.claims),
		"assigned": len(c.endpoints.hosts.assigned), "rule lists": len(c.ruleLists.all), "variants": len(c.variants.all), "size": c.objects.Size, "total": c.sets.Total(), "fresh": len(c.rollout.fresh), "later": len(c.policies.later), "doubted": len(c.policies.doubted), "queue": len(c.variants.queue), "late pods": len(c.objects.Late), "uses": len(c.ruleLists.uses),
		"changed": len(c.endpoints.marked), "unused": len(c.ruleLists.unused), "unbuilt": len(c.ruleLists.unbuilt), "unpublished": len(c.endpoints.unpublished), "readdressed": len(c.endpoints.readdressed),
	} {
		if n != 0 {
			t.Errorf("%d %s are left", n, what)
		}
	}
}

// same fails unless both compilers have the same to say.
func same(t testing.TB, got, want *Compiler) {
	t.Helper()
	if diff := differences(got.Policy(), want.Policy()); diff != "" {
		t.Errorf("policies differ: %s", diff)
	}
	if diff := cmp.Diff(want.Issues(), got.Issues()); diff != "" {
		t.Errorf("issues differ: %s", diff)
	}
	if diff := cmp.Diff(want.Views(), got.Views()); diff != "" {
		t.Errorf("views differ: %s", diff)
	}
}

// sound checks what package state promises to drivers.
func sound(t testing.TB, p *state.Policy) {
	t.Helper()
	for a, w := range p.Workloads {
		for _, id := range []state.RulesID{w.Ingress, w.Egress} {
			if id != "" && p.Rules[id] == nil {
				t.Errorf("%s has no rules %s", a, id)
			}
		}
	}
	for _, h := range p.Hosts {
		for _, id := range []state.RulesID{h.Input, h.Output, h.ForwardIn, h.ForwardOut, h.PreDNAT, h.UntrackedIn, h.UntrackedOut} {
			if id != "" && p.Rules[id] == nil {
				t.Errorf("%s has no rules %s", h.Name, id)
			}
		}
	}
	asked := map[state.SetID]bool{}
	for id, rules := range p.Rules {
		if rules.ID != id {
			t.Errorf("rules %s are under %s", rules.ID, id)
		}
		for _, tier := range rules.Tiers {
			for _, own := range tier.Policies {
				for _, r := range own.Rules {
					for _, e := range []state.End{r.Source, r.Destination} {
						soundEnd(t, p, e, asked)
					}
				}
			}
		}
	}
	for id := range p.Groups {
		if !asked[id] {
			t.Errorf("group %x is in no rule", id)
		}
	}
	for id := range p.NamedPorts {
		if !asked[id] {
			t.Errorf("named ports %x are in no rule", id)
		}
	}
	for id := range p.PortSets {
		if !asked[id] || id == 0 || id >= 1<<24 {
			t.Errorf("ports %x are in no rule", id)
		}
	}
	for id := range p.Lists {
		if !asked[id] || id == 0 || id >= 1<<24 {
			t.Errorf("list %x is in no rule", id)
		}
	}
}

func soundEnd(t testing.TB, p *state.Policy, e state.End, asked map[state.SetID]bool) {
	t.Helper()
	for _, term := range slices.Concat(e.In, e.NotIn) {
		for _, id := range term.Groups {
			asked[id] = true
		}
		for _, ref := range term.Lists {
			asked[ref.ID] = true
			if p.Lists[ref.ID] == nil {
				t.Errorf("no list %x", ref.ID)
			}
		}
	}
	for _, ports := range []*state.Ports{e.Ports, e.NotPorts} {
		if ports == nil {
			continue
		}
		asked[ports.ID] = true
		if len(ports.Ranges) > 0 && (p.PortSets[ports.ID] == nil || !slices.Equal(p.PortSets[ports.ID].Ranges, ports.Ranges)) {
			t.Errorf("ports %x are %v", ports.ID, p.PortSets[ports.ID])
		}
		for _, id := range ports.Named {
			asked[id] = true
		}
	}
}
