package store_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

func name(n string) model.Name { return model.Name{Namespace: "shop", Name: n} }

func service(n string, selector ...string) *model.Service {
	return &model.Service{Name: name(n), Selector: labels(selector)}
}

func pod(n string, l ...string) *model.Pod { return &model.Pod{Name: name(n), Labels: labels(l)} }

func slice(n, service string) *model.EndpointSlice {
	return &model.EndpointSlice{Name: name(n), Service: service}
}

// labels makes a map of keys and values.
func labels(kv []string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

func event(o any) store.Event {
	ref := o.(model.Object).Ref()
	return store.Event{Kind: ref.Kind, Name: ref.Name, Object: o}
}

func gone(o any) store.Event {
	e := event(o)
	e.Object = nil
	return e
}

// view returns the objects as they are, for a test that nobody changes them under.
func view(s *store.Store) (v *store.View) {
	s.Read(func(now *store.View) { v = now })
	return v
}

// dirty returns what the events make dirty, sorted; nodes with a star.
func dirty(s *store.Store, events ...store.Event) []string {
	s.Take()
	s.Apply(events)
	d := s.Take()
	var list []string
	for n := range d.Services {
		list = append(list, n.Name)
	}
	for n := range d.Objects[model.NodeKind] {
		list = append(list, "*"+n.Name)
	}
	slices.Sort(list)
	return list
}

func TestDirty(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before []any
		events []store.Event
		want   []string
	}{
		{"a service that comes", nil, []store.Event{event(service("web"))}, []string{"web"}},
		{"a service that goes", []any{service("web")}, []store.Event{gone(service("web"))}, []string{"web"}},
		{"a service that is the same", []any{service("web", "a", "b")}, []store.Event{event(service("web", "a", "b"))}, nil},
		{"a service that never was goes", nil, []store.Event{gone(service("web"))}, nil},
		{"a slice's service", []any{service("web"), service("db")}, []store.Event{event(slice("s", "web"))}, []string{"web"}},
		{"a slice of no service", []any{service("web")}, []store.Event{event(slice("s", "db"))}, nil},
		{"a slice that changes its service", []any{service("web"), service("db"), service("api"), slice("s", "web")},
			[]store.Event{event(slice("s", "db"))}, []string{"db", "web"}},
		{"a slice that goes", []any{service("web"), slice("s", "web")}, []store.Event{gone(slice("s", "web"))}, []string{"web"}},
		{"a slice that is the same", []any{service("web"), slice("s", "web")}, []store.Event{event(slice("s", "web"))}, nil},
		{"a pod's services", []any{service("web", "app", "web"), service("front", "app", "web", "tier", "1"), service("db", "app", "db"), service("none")},
			[]store.Event{event(pod("p", "app", "web", "tier", "1"))}, []string{"front", "web"}},
		{"a pod that only some terms match", []any{service("front", "app", "web", "tier", "1")},
			[]store.Event{event(pod("p", "app", "web"))}, nil},
		{"a pod that changes its labels", []any{service("web", "app", "web"), service("db", "app", "db"), pod("p", "app", "web")},
			[]store.Event{event(pod("p", "app", "db"))}, []string{"db", "web"}},
		{"a pod that goes", []any{service("web", "app", "web"), pod("p", "app", "web")}, []store.Event{gone(pod("p"))}, []string{"web"}},
		{"a pod that is the same", []any{service("web", "app", "web"), pod("p", "app", "web")}, []store.Event{event(pod("p", "app", "web"))}, nil},
		{"a pod of a service that is gone", []any{service("web", "app", "web")}, []store.Event{gone(service("web")), event(pod("p", "app", "web"))}, []string{"web"}},
		{"a selector that changed", []any{service("web", "app", "web")},
			[]store.Event{event(service("web", "app", "db")), event(pod("p", "app", "web"))}, []string{"web"}},
		{"a node", nil, []store.Event{event(&model.Node{Name: "n"})}, []string{"*n"}},
		{"a node that is the same", []any{&model.Node{Name: "n"}}, []store.Event{event(&model.Node{Name: "n"})}, nil},
		{"a namespace", []any{service("web")}, []store.Event{event(&model.Namespace{Name: "shop"})}, nil},
		{"a typed nil is gone too", []any{service("web")}, []store.Event{{Kind: model.ServiceKind, Name: name("web"), Object: (*model.Service)(nil)}}, []string{"web"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := store.New()
			for _, o := range tc.before {
				s.Apply([]store.Event{event(o)})
			}
			if got := dirty(s, tc.events...); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// Pods of another namespace are not selected, and dirty nothing.
func TestNamespacesAreApart(t *testing.T) {
	s := store.New()
	svc := service("web", "app", "web")
	s.Apply([]store.Event{event(svc)})
	other := &model.Pod{Name: model.Name{Namespace: "prod", Name: "p"}, Labels: svc.Selector}
	if got := dirty(s, event(other)); got != nil {
		t.Errorf("dirty: %v", got)
	}
	if got := view(s).Selected(svc); got != nil {
		t.Errorf("selected: %v", got)
	}
}

func TestSelectedAndSlicesAreSorted(t *testing.T) {
	s := store.New()
	svc := service("web", "app", "web", "tier", "1")
	s.Apply([]store.Event{event(svc),
		event(pod("c", "app", "web", "tier", "1")), event(pod("a", "app", "web", "tier", "1", "x", "y")), event(pod("b", "app", "web")),
		event(slice("z", "web")), event(slice("x", "web")), event(slice("y", "web")), event(slice("w", "db")),
	})
	var pods, lists []string
	for _, p := range view(s).Selected(svc) {
		pods = append(pods, p.Name.Name)
	}
	for _, e := range view(s).Slices(svc.Name) {
		lists = append(lists, e.Name.Name)
	}
	if want := []string{"a", "c"}; !slices.Equal(pods, want) {
		t.Errorf("pods %v, want %v", pods, want)
	}
	if want := []string{"x", "y", "z"}; !slices.Equal(lists, want) {
		t.Errorf("slices %v, want %v", lists, want)
	}
	if got := view(s).Selected(service("all")); got != nil {
		t.Errorf("a service without a selector selects %v", got)
	}
}

// A list that was handed out stays as it was.
func TestSlicesStayAsHandedOut(t *testing.T) {
	s := store.New()
	s.Apply([]store.Event{event(service("web")), event(slice("a", "web")), event(slice("b", "web"))})
	before := view(s).Slices(name("web"))
	kept := slices.Clone(before)
	s.Apply([]store.Event{gone(slice("a", "web")), event(slice("c", "web")), event(&model.EndpointSlice{Name: name("b"), Service: "web", Endpoints: make([]model.Endpoint, 1)})})
	if !slices.Equal(before, kept) {
		t.Errorf("changed to %v", before)
	}
}

func TestChanged(t *testing.T) {
	s := store.New()
	signalled := func() bool {
		select {
		case <-s.Changed():
			return true
		default:
			return false
		}
	}
	if signalled() {
		t.Error("signalled with nothing in it")
	}
	s.Apply([]store.Event{event(service("web"))})
	s.Apply([]store.Event{event(service("db"))})
	if !signalled() || signalled() {
		t.Error("two changes are not one signal")
	}
	if got := s.Take().Len(); got != 2 {
		t.Errorf("%d keys taken", got)
	}
	s.Apply([]store.Event{event(service("web"))})
	if signalled() {
		t.Error("signalled with nothing new")
	}
	if s.Synced() {
		t.Error("synced from the start")
	}
	s.SetSynced()
	if !s.Synced() || !signalled() {
		t.Error("no signal of being synced")
	}
}

func TestCounts(t *testing.T) {
	s := store.New()
	s.Apply([]store.Event{event(service("web")), event(service("db")), event(slice("a", "web")), event(pod("p")), event(&model.Node{Name: "n"}), event(&model.Namespace{Name: "shop"}), gone(service("db"))})
	want := map[string]int{"Service": 1, "EndpointSlice": 1, "Pod": 1, "Node": 1, "Namespace": 1}
	if got := s.Counts(); !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	if got := view(s).ServiceNames(); !slices.Equal(got, []model.Name{name("web")}) {
		t.Errorf("names %v", got)
	}
	if got := view(s).Pods(); len(got) != 1 {
		t.Errorf("pods %v", got)
	}
	if s.Node("n") == nil || view(s).Service(name("web")) == nil || view(s).Service(name("db")) != nil {
		t.Error("objects are not found by name")
	}
	s.Read(func(v *store.View) {
		if v.Namespace("shop") == nil || v.All().Len() != 4 {
			t.Error("the view lacks objects")
		}
	})
}

// The indexes answer as a search through all objects would, whatever happened before.
func TestIndexesAgreeWithSearch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := store.New()
	services, pods := map[string]*model.Service{}, map[string]*model.Pod{}
	some := func() map[string]string {
		l := map[string]string{}
		for _, k := range []string{"app", "tier", "v"} {
			if r.IntN(3) > 0 {
				l[k] = strconv.Itoa(r.IntN(2))
			}
		}
		return l
	}
	matching := func(selector, labels map[string]string) bool {
		for k, v := range selector {
			if labels[k] != v {
				return false
			}
		}
		return len(selector) > 0
	}
	for range 2000 {
		n := strconv.Itoa(r.IntN(8))
		var e store.Event
		want := map[string]bool{}
		if r.IntN(2) == 0 {
			svc := &model.Service{Name: name(n), Selector: some()}
			e = event(svc)
			services[n] = svc
			if r.IntN(3) == 0 {
				e.Object = nil
				delete(services, n)
			}
			s.Apply([]store.Event{e})
		} else {
			next := &model.Pod{Name: name(n), Labels: some(), Ready: r.IntN(2) == 0}
			e = event(next)
			if r.IntN(3) == 0 {
				e.Object, next = nil, nil
			}
			old := pods[n]
			for _, p := range []*model.Pod{old, next} {
				for sn, svc := range services {
					if p != nil && matching(svc.Selector, p.Labels) {
						want[sn] = true
					}
				}
			}
			if old != nil && next != nil && cmp.Equal(old, next) {
				clear(want)
			}
			pods[n] = next
			if got := dirty(s, e); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
				t.Fatalf("pod %s makes dirty %v, want %v", n, got, want)
			}
		}
		for _, svc := range services {
			var want []string
			for _, p := range pods {
				if p != nil && matching(svc.Selector, p.Labels) {
					want = append(want, p.Name.Name)
				}
			}
			slices.Sort(want)
			var got []string
			for _, p := range view(s).Selected(svc) {
				got = append(got, p.Name.Name)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%v selects %v, want %v", svc.Selector, got, want)
			}
		}
	}
}

// Writers and readers at once; for the race detector.
func TestConcurrentUse(t *testing.T) {
	s := store.New()
	svc := service("web", "app", "web")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 100 {
				n := strconv.Itoa(i*100 + j)
				s.Apply([]store.Event{event(svc), event(pod(n, "app", "web")), event(slice(n, "web"))})
			}
		})
		wg.Go(func() {
			for range 100 {
				s.Read(func(v *store.View) {
					if len(v.Selected(svc)) != len(v.Slices(svc.Name)) {
						t.Error("a batch is seen in part")
					}
				})
				s.Take()
			}
		})
	}
	wg.Wait()
	if got := len(view(s).Slices(svc.Name)); got != 400 {
		t.Errorf("%d slices", got)
	}
}
