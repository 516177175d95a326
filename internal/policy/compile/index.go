package compile

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/lib/multimap"
	"sluice.dev/sluice/internal/model"
)

// filing finds the selectors that may select an object: each is filed under labels of which every
// object that it selects has one.
type filing[T comparable] map[slot][]T

// slot is where a selector is filed: for objects of a namespace ("": anywhere) with a label, that
// has the value unless any is set; or, without a key, for all of them.
type slot struct {
	namespace, key, value string
	any                   bool
}

func (f filing[T]) add(s model.Selector, t T) {
	for _, at := range slots(s) {
		f[at] = append(f[at], t)
	}
}

func (f filing[T]) remove(s model.Selector, t T) {
	for _, at := range slots(s) {
		list := f[at]
		if i, last := slices.Index(list, t), len(list)-1; i >= 0 {
			list[i] = list[last]
			clear(list[last:])
			list = list[:last]
		}
		if len(list) == 0 {
			delete(f, at)
		} else {
			f[at] = list
		}
	}
}

// candidates yields what is filed under labels of the object, some of it perhaps more than once.
func (f filing[T]) candidates(l *labels) iter.Seq[T] {
	return func(yield func(T) bool) {
		if len(f) == 0 {
			return
		}
		for at := range lookups(l) {
			for _, t := range f[at] {
				if !yield(t) {
					return
				}
			}
		}
	}
}

// lookups yields every slot that holds for an object.
func lookups(l *labels) iter.Seq[slot] {
	return func(yield func(slot) bool) {
		namespaces := [...]string{"", l.namespace}
		places := namespaces[:1]
		if l.namespace != "" {
			places = namespaces[:]
		}
		for _, ns := range places {
			if !yield(slot{namespace: ns}) {
				return
			}
			for k, v := range l.all() {
				if !yield(slot{ns, k, v, false}) || !yield(slot{ns, k, "", true}) {
					return
				}
			}
		}
	}
}

// slots are where a selector is filed. One that selects nothing is filed nowhere.
func slots(s model.Selector) []slot {
	anchors, anchored := s.Anchors()
	namespaces, confined := s.Namespaces()
	if !confined {
		namespaces = []string{""}
	}
	var list []slot
	for _, ns := range namespaces {
		if !anchored {
			list = append(list, slot{namespace: ns})
		}
		for _, a := range anchors {
			at := slot{ns, a.Key, a.Value, a.Any}
			if confined && namesNamespace(a.Key) {
				at = slot{namespace: ns}
			}
			list = append(list, at)
		}
	}
	return list
}

func namesNamespace(key string) bool {
	return key == model.NamespaceLabel || key == model.NamespaceLabelPrefix+model.MetadataNameLabel
}

// index finds the classes that a selector may select.
type index struct {
	byNamespace map[string]classSet // "": those in none
	byAccount   map[model.Name]classSet
	byLabel     map[string]map[string]classSet
	namespaces  labelled[string]     // names of namespaces
	accounts    labelled[model.Name] // names of service accounts
}

// labelled holds names by the labels of what they name: by key and value.
type labelled[N comparable] map[string]map[string]map[N]struct{}

func newIndex() index {
	return index{
		byNamespace: map[string]classSet{},
		byAccount:   map[model.Name]classSet{},
		byLabel:     map[string]map[string]classSet{},
		namespaces:  labelled[string]{},
		accounts:    labelled[model.Name]{},
	}
}

func (x *index) add(cl *class) {
	multimap.Add(x.byNamespace, cl.namespace, cl)
	if cl.pod {
		multimap.Add(x.byAccount, model.Name{Namespace: cl.namespace, Name: cl.account}, cl)
	}
	for k, v := range cl.unshared() {
		if x.byLabel[k] == nil {
			x.byLabel[k] = map[string]classSet{}
		}
		multimap.Add(x.byLabel[k], v, cl)
	}
}

func (x *index) remove(cl *class) {
	multimap.Remove(x.byNamespace, cl.namespace, cl)
	if cl.pod {
		multimap.Remove(x.byAccount, model.Name{Namespace: cl.namespace, Name: cl.account}, cl)
	}
	for k, v := range cl.unshared() {
		if multimap.Remove(x.byLabel[k], v, cl); len(x.byLabel[k]) == 0 {
			delete(x.byLabel, k)
		}
	}
}

// itemsOf are all items of the classes.
func itemsOf(classes classSet) (all []*item) {
	for cl := range classes {
		all = slices.AppendSeq(all, maps.Keys(cl.items))
	}
	return all
}

// relabel files a name under its labels, no longer under its old ones.
func (x labelled[N]) relabel(name N, old, next map[string]string) {
	for k, v := range old {
		if multimap.Remove(x[k], v, name); len(x[k]) == 0 {
			delete(x, k)
		}
	}
	for k, v := range next {
		if x[k] == nil {
			x[k] = map[string]map[N]struct{}{}
		}
		multimap.Add(x[k], v, name)
	}
}

// under yields what is filed, in by, under the names that have the label.
func (x labelled[N]) under(key string, a model.Anchor, by map[N]classSet) iter.Seq[classSet] {
	return func(yield func(classSet) bool) {
		for names := range valued(x[key], a) {
			for name := range names {
				if !yield(by[name]) {
					return
				}
			}
		}
	}
}

// candidates yields classes of which the selector selects some, some of them perhaps more than
// once; it takes the shorter way where there are two.
func (x *index) candidates(s model.Selector) iter.Seq[*class] {
	return func(yield func(*class) bool) {
		for set := range x.shortest(s) {
			for cl := range set {
				if !yield(cl) {
					return
				}
			}
		}
	}
}

func (x *index) shortest(s model.Selector) iter.Seq[classSet] {
	anchors, anchored := s.Anchors()
	byAnchor := func(yield func(classSet) bool) {
		for _, a := range anchors {
			for set := range x.under(a) {
				if !yield(set) {
					return
				}
			}
		}
	}
	names, confined := s.Namespaces()
	byNamespace := func(yield func(classSet) bool) {
		for _, name := range names {
			if !yield(x.byNamespace[name]) {
				return
			}
		}
	}
	switch {
	case anchored && (!confined || size(byAnchor) < size(byNamespace)):
		return byAnchor
	case confined:
		return byNamespace
	}
	return maps.Values(x.byNamespace)
}

// under yields the sets of classes that have, or may have, the label of an anchor.
func (x *index) under(a model.Anchor) iter.Seq[classSet] {
	if a.Key == model.OrchestratorLabel || namesNamespace(a.Key) && a.Any {
		return maps.Values(x.byNamespace)
	}
	if namesNamespace(a.Key) {
		return func(yield func(classSet) bool) { yield(x.byNamespace[a.Value]) }
	}
	if key, ok := strings.CutPrefix(a.Key, model.NamespaceLabelPrefix); ok {
		return x.namespaces.under(key, a, x.byNamespace)
	}
	if key, ok := strings.CutPrefix(a.Key, model.ServiceAccountLabelPrefix); ok {
		return x.accounts.under(key, a, x.byAccount)
	}
	return valued(x.byLabel[a.Key], a)
}

// valued yields the sets of the anchor's values.
func valued[S any](byValue map[string]S, a model.Anchor) iter.Seq[S] {
	if a.Any {
		return maps.Values(byValue)
	}
	return func(yield func(S) bool) { yield(byValue[a.Value]) }
}

func size(sets iter.Seq[classSet]) int {
	n := 0
	for set := range sets {
		n += len(set)
	}
	return n
}
