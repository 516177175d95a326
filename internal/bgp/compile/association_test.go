package compile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

// plainPeers are the names of the BGPPeers by which another node is a peer, each compared with the
// node by itself, the oldest first.
func plainPeers(all []*model.BGPPeer, own, n *node, is4 bool) (names []string) {
	if a, local := n.address(is4), own.address(is4); n == own || !a.IsValid() || !local.IsValid() || a == local {
		return nil
	}
	selects := func(p *model.BGPPeer) bool { return !p.Peers.IsZero() && p.Peers.Matches(model.LabelMap(n.Labels)) }
	first := func(holds func(p *model.BGPPeer) bool) {
		count := 0
		for _, p := range all {
			if holds(p) && count < maxRivals {
				names = append(names, named("BGPPeer "+p.Name+" "+n.Name, is4))
				count++
			}
		}
	}
	first(func(p *model.BGPPeer) bool { return from(p, own) && selects(p) })
	first(func(p *model.BGPPeer) bool {
		return to(p, own) && !(from(p, own) && selects(p)) && from(p, n) && (!p.Peers.IsZero() || p.Address.Is4() == is4)
	})
	return names
}

// advertNames are the BGPAdvertisements of a pool, in their order.
func (w *world) advertNames() (names []string) {
	for _, ad := range w.adverts[model.Name{Namespace: "lb", Name: "pool"}] {
		names = append(names, ad.Name.Name)
	}
	return names
}

// Whatever changes, in whatever order, the peers are those of a compiler that begins with what
// there is, and each node is the peer that comparing it with each BGPPeer says.
func TestAssociations(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 31))
		pick := func(options ...string) string { return options[r.IntN(len(options))] }
		names := []string{"own", "a", "b", "c", "d"}
		selector := func() model.Selector {
			return []model.Selector{{}, model.Everything(), model.Has("rack"), model.Not(model.Has("rack")), model.Equal("rack", "1"), model.In("name", "own", "b"), model.StartsWith("rack", "2")}[r.IntN(7)]
		}
		object := func() model.Object {
			switch r.IntN(8) {
			case 0, 1:
				i := r.IntN(len(names))
				return nodeOf(fmt.Sprintf("%s %s %s %s %s %s", names[i], pick("192.0.2.5", "192.0.2.6", "192.0.2.7", ""), pick("", "fd00::5", "fd00::6"), pick("", "rack=1", "rack=2"), pick("", "as=64600"), pick("", "created=x", "created=xx")))
			case 2:
				return &model.BGPFilter{Name: pick("f", "g"), Import: []model.BGPFilterRule{{Accept: r.IntN(2) == 0}}}
			case 3:
				return metalLB(pick("m", "n"), func(p *model.MetalLBPeer) { p.Address, p.Nodes = addr(pick("192.0.2.1", "192.0.2.6")), selector() })
			case 4:
				return []model.Object{config(func(c *model.BGPConfiguration) { c.NoMesh = r.IntN(2) == 0 }), addresses("pool", "192.0.9.0", pick("192.0.9.7", "192.0.9.9")), advertisement(pick("ad", "bd", "cd"), func(ad *model.BGPAdvertisement) {
					ad.Created, ad.Length4 = time.Unix(int64(r.IntN(3)), 0), 31+r.IntN(2)
				})}[r.IntN(3)]
			}
			p := &model.BGPPeer{Name: fmt.Sprint("p", r.IntN(3*maxRivals)), Nodes: selector(), Peers: selector(), LocalAS: uint32(64599 * r.IntN(2)), Created: time.Unix(int64(r.IntN(3)), 0)}
			if r.IntN(4) == 0 {
				p.Node, p.Nodes = pick(names...), model.Selector{}
			}
			if p.Peers.IsZero() {
				p.Address, p.AS = addr(pick("192.0.2.1", "192.0.2.5", "192.0.2.6", "fd00::6")), []uint32{64512, 64600}[r.IntN(2)]
			}
			if r.IntN(3) == 0 {
				p.Filters = []string{pick("f", "g")}
			}
			if r.IntN(3) == 0 {
				p.Password = model.SecretRef{Name: "s", Key: "k"}
			}
			return p
		}
		w, there := newWorld(t), map[model.Ref]model.Object{}
		for _, name := range []string{"f", "g"} { // which BGPPeers wait for
			f := &model.BGPFilter{Name: name}
			there[f.Ref()] = f
		}
		for i := range 2 * maxRivals * int(seed%2) { // so that not all of them are looked at
			p := selected(fmt.Sprint("p", i), model.Selector{}, model.Everything())
			p.Created = time.Unix(int64(r.IntN(3)), 0)
			there[p.Ref()] = p
		}
		w.set(slices.Collect(maps.Values(there))...)
		for step := range 60 {
			var come []model.Object
			var gone []model.Ref
			for range 1 + r.IntN(3)*r.IntN(8) {
				o := object()
				if ref := o.Ref(); r.IntN(4) > 0 || ref.Kind == model.BGPFilterKind || ref.Name.Name == "own" {
					there[ref], come = o, append(come, o)
				}
			}
			refs := slices.SortedFunc(maps.Keys(there), model.Ref.Compare)
			for range r.IntN(3) {
				if ref := refs[r.IntN(len(refs))]; ref.Kind != model.BGPFilterKind && ref.Name.Name != "own" {
					delete(there, ref)
					gone = append(gone, ref)
				}
			}
			w.store.Apply(events(come...))
			w.remove(gone...)
			anew := newWorld(t)
			anew.set(slices.Collect(maps.Values(there))...)
			if got, want := w.told(), anew.told(); !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: told\n%q, from the beginning\n%q", seed, step, got, want)
			}
			if got, want := w.faults(), anew.faults(); !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: faults\n%q, from the beginning\n%q", seed, step, got, want)
			}
			if got, want := w.advertNames(), anew.advertNames(); !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: the pool has the advertisements %q, from the beginning %q", seed, step, got, want)
			}
			var all []*model.BGPPeer
			for _, o := range there {
				if p, is := o.(*model.BGPPeer); is {
					all = append(all, p)
				}
			}
			slices.SortFunc(all, model.ByBirth)
			for name, n := range w.nodes {
				var got, want []string
				for _, p := range w.asked[n.Ref()] {
					if p.of.Kind == model.BGPPeerKind {
						got = append(got, p.name)
					}
				}
				if own := w.self(); own != nil {
					want = append(plainPeers(all, own, n, true), plainPeers(all, own, n, false)...)
				}
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d, step %d: %s is the peer\n%q, want\n%q", seed, step, name, got, want)
				}
			}
		}
	}
}

// A BGPPeer that changes costs what it is about: it alone is compared with the Nodes, and those
// that it selects alone are asked again. A Node costs itself; nothing is compared for what is no
// label.
func TestWorkOfPeers(t *testing.T) {
	w := newWorld(t)
	w.set(nodeOf("own 192.0.2.5"), config(noMesh), &model.BGPFilter{Name: "f"})
	for i := range 50 {
		name := fmt.Sprint("n", i)
		w.set(nodeOf(fmt.Sprintf("%s 192.0.3.%d", name, i)), selected("s"+name, model.Everything(), model.Equal("name", name)),
			tor("a"+name, func(p *model.BGPPeer) { p.Address = addr(fmt.Sprint("192.0.4.", i)) }),
			metalLB("m"+name, func(p *model.MetalLBPeer) { p.Address = addr(fmt.Sprint("192.0.5.", i)) }))
	}
	asked, known, population := map[*candidate]bool{}, map[*association]bool{}, w.population
	fresh := func() (candidates, compared int) {
		for _, list := range w.asked {
			for _, p := range list {
				if !asked[p] {
					asked[p] = true
					candidates++
				}
			}
		}
		for _, a := range w.associations {
			if !known[a] || population != w.population {
				known[a] = true
				compared++
			}
		}
		population = w.population
		return candidates, compared
	}
	fresh()
	for _, c := range []struct {
		what                 string
		do                   func()
		candidates, compared int
	}{
		{"nothing changes", func() { w.set() }, 0, 0},
		{"a BGPPeer by selector changes", func() {
			w.set(&model.BGPPeer{Name: "sn7", Nodes: model.Everything(), Peers: model.Equal("name", "n7"), LocalAS: 64999})
		}, 1, 1},
		{"a BGPPeer that selects two Nodes comes", func() { w.set(selected("new", model.Everything(), model.In("name", "n8", "n9"))) }, 4, 1},
		{"it selects one instead", func() { w.set(selected("new", model.Everything(), model.Equal("name", "n8"))) }, 3, 1},
		{"it goes", func() { w.remove(tor("new").Ref()) }, 1, 0},
		{"as many BGPPeers as are looked at select a Node", func() {
			for i := range maxRivals {
				w.set(selected(fmt.Sprint("more", i), model.Everything(), model.Equal("name", "n8")))
			}
		}, maxRivals, 16},
		{"a newer one does", func() { w.set(selected("z", model.Everything(), model.Equal("name", "n8"))) }, 0, 1},
		{"and changes", func() {
			w.set(&model.BGPPeer{Name: "z", Nodes: model.Everything(), Peers: model.Equal("name", "n8"), LocalAS: 64999})
		}, 0, 1},
		{"a BGPPeer with an address changes", func() { w.set(tor("an7", func(p *model.BGPPeer) { p.Address, p.AS = addr("192.0.4.7"), 64999 })) }, 1, 1},
		{"a BGPPeer of MetalLB's changes", func() {
			w.set(metalLB("mn7", func(p *model.MetalLBPeer) { p.Address, p.MyASN = addr("192.0.5.7"), 64999 }))
		}, 1, 0},
		{"a BGPFilter that nothing names changes", func() { w.set(&model.BGPFilter{Name: "f", Export: []model.BGPFilterRule{{}}}) }, 0, 0},
		{"a Node changes", func() { n := nodeOf("n7 192.0.3.7"); n.NotReady = true; w.set(n) }, 1, 0},
		{"a Node has another label", func() { w.set(nodeOf("n7 192.0.3.7 rack=1")) }, 1, 117},
		{"a Node has the address of a BGPPeer", func() { w.set(nodeOf("n7 192.0.4.8 rack=1")) }, 2, 0},
		{"a pool that is not announced comes", func() { w.set(addresses("pool", "192.0.9.0", "192.0.9.7")) }, 0, 0},
		{"one that is announced", func() { w.set(advertisement("ad")) }, 50, 0},
	} {
		c.do()
		if candidates, compared := fresh(); candidates != c.candidates || compared != c.compared {
			t.Errorf("%s: %d peers are asked for anew, want %d; %d BGPPeers are compared with the Nodes, want %d", c.what, candidates, c.candidates, compared, c.compared)
		}
	}
}
