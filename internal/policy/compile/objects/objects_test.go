package objects

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// many are so many addresses that they are a list.
const many = 8

// world makes random objects with few labels, so that many have the same, and some none.
type world struct{ *rand.Rand }

func (w world) labels() map[string]string {
	l := map[string]string{}
	for _, key := range []string{"app", "env"} {
		if n := w.IntN(4); n > 0 {
			l[key] = fmt.Sprint(n)
		}
	}
	return l
}

func (w world) event() store.Event {
	namespace := string('a' + rune(w.IntN(3)))
	name := model.Name{Namespace: namespace, Name: fmt.Sprint(w.IntN(3))}
	var o model.Object
	switch w.IntN(8) {
	case 0:
		o = &model.Namespace{Name: namespace, Labels: w.labels()}
	case 1:
		o = &model.ServiceAccount{Name: name, Labels: w.labels()}
	case 2:
		o = &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.NetworkSetKinds[0], Name: name}, Labels: w.labels()}
	case 3:
		h := &model.HostEndpoint{Name: name.Name, Labels: w.labels()}
		for i := range w.IntN(2) * many * 2 {
			h.Addresses = append(h.Addresses, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
		}
		o = h
	default:
		p := &model.Pod{Name: name, Labels: w.labels(), Node: []string{"here", "there"}[w.IntN(2)], ServiceAccount: fmt.Sprint(w.IntN(3)), Finished: w.IntN(9) == 0}
		for range w.IntN(3) {
			p.IPs = append(p.IPs, netip.AddrFrom4([4]byte{10, 0, 0, byte(w.IntN(9))}))
		}
		o = p
	}
	e := store.Event{Kind: o.Ref().Kind, Name: o.Ref().Name, Object: o}
	if w.IntN(3) == 0 {
		e.Object = nil
	}
	return e
}

func (w world) selector(depth int) model.Selector {
	keys := []string{"app", "env", model.NamespaceLabelPrefix + "app", model.ServiceAccountLabelPrefix + "env", model.ServiceAccountLabel}
	key, value := keys[w.IntN(len(keys))], fmt.Sprint(w.IntN(4))
	n := 9
	if depth == 0 {
		n = 6
	}
	switch w.IntN(n) {
	case 0:
		return model.Everything()
	case 1:
		return model.Has(key)
	case 2, 3:
		return model.In(key, value, fmt.Sprint(w.IntN(4)))
	case 4:
		return model.Equal([]string{model.NamespaceLabel, model.NamespaceLabelPrefix + model.MetadataNameLabel}[w.IntN(2)], string('a'+rune(w.IntN(3))))
	case 5:
		return model.Equal(model.OrchestratorLabel, "k8s")
	case 6:
		return model.Not(w.selector(depth - 1))
	case 7:
		return model.Or(w.selector(depth-1), w.selector(depth-1))
	}
	return model.And(w.selector(depth-1), w.selector(depth-1))
}

// shadow is what changes have told.
type shadow struct {
	items   map[*Item]bool
	classes map[*Class]bool
}

// carry notes a change, and checks that it fits those before.
func (s *shadow) carry(t *testing.T, ch ItemChange) {
	t.Helper()
	if ch.Renewed() {
		if !s.items[ch.Old] {
			t.Errorf("an item that is not there is renewed")
		}
		return
	}
	if ch.Next != nil {
		if s.classes[ch.Next.Class] == (ch.Class != nil) {
			t.Errorf("the class of %v was known: %v, and comes: %v", ch.Next.Labels, s.classes[ch.Next.Class], ch.Class != nil)
		}
		s.items[ch.Next], s.classes[ch.Next.Class] = true, true
	}
	if ch.Old != nil {
		if !s.items[ch.Old] {
			t.Errorf("an item goes that is not there")
		}
		if delete(s.items, ch.Old); ch.Ended {
			delete(s.classes, ch.Old.Class)
		}
	}
}

// What changes tell comes to the objects that there are, and selectors and objects find each other
// as a search through all does. Nothing is left of objects that have gone.
func TestObjectsAreFound(t *testing.T) {
	for seed := range uint64(100) {
		w := world{rand.New(rand.NewPCG(seed, 1))}
		o, s, told := New("here", many), store.New(), &shadow{map[*Item]bool{}, map[*Class]bool{}}
		filing, filed := Filing[int]{}, map[int]model.Selector{}
		step := func(events ...store.Event) {
			s.Apply(events)
			d := s.Take()
			s.Read(func(v *store.View) {
				for ch := range o.Changes(v, d, w.IntN(4) == 0) {
					told.carry(t, ch)
				}
				least := w.IntN(3)
				for ch := range o.Latecomers(v) {
					if told.carry(t, ch); len(o.Late) <= least {
						break
					}
				}
				if len(o.Late) == 0 {
					o.same(t, v)
				}
			})
			items := slices.Collect(maps.Keys(told.items))
			size, have := 0, 0
			for cl := range told.classes {
				size, have = size+cl.Size, have+len(cl.Items)
			}
			if n := len(o.Pods) + len(o.Sets) + len(o.Hosts); n != len(items) || n != have || o.Size != size || len(o.classes) != len(told.classes) {
				t.Errorf("%d items of size %d in %d classes; told of %d, in %d classes that have %d of size %d", n, o.Size, len(o.classes), len(items), len(told.classes), have, size)
			}
			for range 5 {
				o.finds(t, w.selector(2), items)
			}
			for _, it := range items {
				found := slices.Collect(filing.Candidates(it.Labels))
				for i, sel := range filed {
					if sel.Matches(it.Labels) && !slices.Contains(found, i) {
						t.Errorf("%v selects %v, which does not find it", sel, it.Labels)
					}
				}
			}
		}
		for i := range 40 {
			filed[i] = w.selector(2)
			filing.Add(filed[i], i)
			if old := w.IntN(i + 1); filed[old].String() != "" {
				filing.Remove(filed[old], old)
				delete(filed, old)
			}
			step(w.event(), w.event())
		}
		var gone []store.Event
		s.Read(func(v *store.View) {
			for kind, names := range v.All().Objects {
				for name := range names {
					gone = append(gone, store.Event{Kind: kind, Name: name})
				}
			}
		})
		for step(gone...); len(o.Late) > 0; {
			step()
		}
		x := &o.index
		if n := len(o.Pods) + len(o.Sets) + len(o.Hosts) + o.Size + len(o.namespaces) + len(o.accounts) + len(o.classes) + len(x.byNamespace) + len(x.byAccount) + len(x.byLabel) + len(x.namespaces) + len(x.accounts); n != 0 {
			t.Errorf("%d are left: %+v", n, o)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// same holds the items against the objects of a store.
func (o *Objects) same(t *testing.T, v *store.View) {
	t.Helper()
	pods := 0
	for _, p := range v.Pods() {
		if it := o.newPod(p); it != nil {
			pods++
			if got := o.Pods[p.Name]; got == nil || got.Pod != p || got.Labels.text() != it.Labels.text() || !slices.Equal(got.Addrs, it.Addrs) {
				t.Errorf("pod %v is %+v", p.Name, got)
			}
			all := LabelsOf(v, p)
			for k, value := range o.Pods[p.Name].Labels.all() {
				if got, is := all.Label(k); !is || got != value {
					t.Errorf("label %s of %v is %q, want %q", k, p.Name, value, got)
				}
			}
		}
	}
	if pods != len(o.Pods) || len(v.NetworkSets()) != len(o.Sets) || len(v.HostEndpoints()) != len(o.Hosts) {
		t.Errorf("%d pods, %d sets, %d host endpoints", len(o.Pods), len(o.Sets), len(o.Hosts))
	}
}

// finds holds what is found against a search.
func (o *Objects) finds(t *testing.T, s model.Selector, items []*Item) {
	t.Helper()
	found, _ := o.Find(s)
	n := 0
	for _, cl := range found {
		n += len(cl.Items)
	}
	for _, it := range items {
		if s.Matches(it.Labels) {
			if n--; !slices.Contains(found, it.Class) {
				t.Errorf("%v does not find %v", s, it.Labels)
			}
		}
	}
	if n != 0 {
		t.Errorf("%v finds %d too many", s, n)
	}
}
