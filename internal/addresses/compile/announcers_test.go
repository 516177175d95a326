package compile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

// Whatever changes, in whatever order, each node is what comparing it with each advertisement and
// BGPPeer says, and all is as with a compiler that begins with what there is.
func TestAnnouncers(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 17))
		pick := func(options ...string) string { return options[r.IntN(len(options))] }
		selector := func() model.Selector {
			return []model.Selector{{}, model.Everything(), model.Everything(), model.Has("rack"), model.Not(model.Has("rack")), model.Equal("rack", "1"), model.In("name", "n1", "n3"), model.StartsWith("rack", "2")}[r.IntN(8)]
		}
		advertised := func() model.Advertised {
			a := model.Advertised{Nodes: selector(), Services: model.Everything()}
			if r.IntN(3) == 0 {
				a.Pools = []string{pick("p", "q")}
			}
			return a
		}
		created := func() time.Time { return time.Unix(int64(r.IntN(3)), 0) }
		fixed := time.Unix(0, 0)
		cfg := Config{Node: "n1", BGP: true, Now: func() time.Time { return fixed }}
		w, there := newWorld(t, cfg), map[model.Ref]model.Object{}
		objects := func() model.Object {
			name := model.Name{Namespace: "lb", Name: fmt.Sprint("o", r.IntN(5))}
			switch r.IntN(7) {
			case 0, 1:
				n := node(fmt.Sprint("n", 1+r.IntN(4)), pick("rack=1", "rack=2", "a=b", "a=b", excludeLabel+"="))
				n.NotReady, n.Leaving = r.IntN(4) == 0, r.IntN(6) == 0
				if r.IntN(4) == 0 {
					n.IPs, n.External = append(n.IPs, ip(pick("192.0.2.1", "192.0.2.2"))), r.IntN(2)
				}
				if r.IntN(4) == 0 {
					n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix(pick("192.0.2.4/30", "192.0.2.8/29"))}
				}
				return n
			case 2:
				l := &model.L2Advertisement{Name: name, Created: created(), Advertised: advertised()}
				for range r.IntN(3) {
					l.Preferred = append(l.Preferred, model.PreferredNodes{Weight: 1 + r.IntN(3), Nodes: selector()})
				}
				return l
			case 3:
				ad := &model.BGPAdvertisement{Name: name, Created: created(), Advertised: advertised(), Length4: 32, Length6: 128}
				for range r.IntN(3) {
					ad.Peers = append(ad.Peers, fmt.Sprint("o", r.IntN(5)))
				}
				return ad
			case 4:
				return &model.MetalLBPeer{Name: name, Address: ip(pick("192.0.3.1", "192.0.3.2")), Nodes: selector(), Dynamic: pick("", "", "external")}
			case 5:
				return w.pool(pick("p", "q"), pick("192.0.2.1-192.0.2.9", "192.0.2.5-192.0.2.20"))
			}
			s := w.service(fmt.Sprint("x/", pick("a", "b", "c")), has(fmt.Sprint("192.0.2.", 1+r.IntN(12))))
			s.ExternalLocal = r.IntN(3) == 0
			return s
		}
		for step := range 60 {
			var come []model.Object
			for range 1 + r.IntN(3)*r.IntN(6) {
				o := objects()
				there[o.Ref()], come = o, append(come, o)
			}
			w.set(come...)
			if r.IntN(3) == 0 {
				refs := slices.SortedFunc(maps.Keys(there), model.Ref.Compare)
				ref := refs[r.IntN(len(refs))]
				delete(there, ref)
				w.remove(ref)
			}
			compareNodes(t, w, there, fmt.Sprintf("seed %d, step %d", seed, step))
			w.writeAll()
			again := newWorld(t, cfg)
			again.store = w.store
			again.update()
			for a, is := range again.addresses {
				if now := w.addresses[a]; now == nil || now.node != is.node || now.byBGP != is.byBGP || now.notByBGP != is.notByBGP {
					t.Fatalf("seed %d, step %d: of %s %+v, from the beginning %+v", seed, step, a, now, is)
				}
			}
			if got, want := w.Issues(), again.Issues(); !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: faults\n%v, from the beginning\n%v", seed, step, got, want)
			}
		}
	}
}

// compareNodes compares each node with each advertisement and BGPPeer.
func compareNodes(t *testing.T, w *world, there map[model.Ref]model.Object, when string) {
	t.Helper()
	peers, toAny := map[model.Name]*model.MetalLBPeer{}, false
	for _, o := range there {
		if p, is := o.(*model.MetalLBPeer); is {
			peers[p.Name] = p
		}
	}
	for i, n := range w.nodes {
		labels := model.LabelMap(n.Labels)
		has := func(p *model.MetalLBPeer) bool { return p != nil && p.Dynamic == "" && p.Nodes.Matches(labels) }
		toAny = len(peers) == 0
		for _, p := range peers {
			toAny = toAny || has(p)
		}
		may := false
		for _, a := range w.adverts {
			a.weigh(w.Compiler)
			want := int32(-1)
			if !n.never() && a.Nodes.Matches(labels) {
				want, may = 0, true
				for _, p := range a.Preferred {
					if p.Nodes.Matches(labels) {
						want += int32(p.Weight)
					}
				}
			}
			if got := a.score(i); got != want {
				t.Fatalf("%s: %s prefers %s by %d, want %d", when, a.Name, n.Name, got, want)
			}
		}
		if w.may.Has(i) != may {
			t.Fatalf("%s: that %s may announce is %t", when, n.Name, !may)
		}
		for _, ad := range w.bgp {
			selected := !n.never() && ad.Nodes.Matches(labels)
			speaks := selected && (len(ad.Peers) == 0 && toAny || slices.ContainsFunc(ad.Peers, func(name string) bool { return has(peers[model.Name{Namespace: "lb", Name: name}]) }))
			if ad.selected.Has(i) != selected || ad.speak.Has(i) != speaks {
				t.Fatalf("%s: %s selects %s: %t, and it speaks: %t", when, ad.Name, n.Name, ad.selected.Has(i), ad.speak.Has(i))
			}
		}
	}
}
