package objects

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/lib/multimap"
	"sluice.dev/sluice/internal/model"
)

// index finds the classes that a selector may select.
type index struct {
	byNamespace map[string]ClassSet // "": those in none
	byAccount   map[model.Name]ClassSet
	byLabel     labelled[*Class]
	namespaces  labelled[string]     // names of namespaces
	accounts    labelled[model.Name] // names of service accounts
}

// labelled holds classes by their labels, or names by those of what they name: by key and value.
type labelled[N comparable] map[string]map[string]map[N]struct{}

func newIndex() index {
	return index{
		byNamespace: map[string]ClassSet{},
		byAccount:   map[model.Name]ClassSet{},
		byLabel:     labelled[*Class]{},
		namespaces:  labelled[string]{},
		accounts:    labelled[model.Name]{},
	}
}

func (x *index) add(cl *Class) {
	multimap.Add(x.byNamespace, cl.namespace, cl)
	if cl.pod {
		multimap.Add(x.byAccount, model.Name{Namespace: cl.namespace, Name: cl.account}, cl)
	}
	x.byLabel.add(cl, cl.unshared())
}

func (x *index) remove(cl *Class) {
	multimap.Remove(x.byNamespace, cl.namespace, cl)
	if cl.pod {
		multimap.Remove(x.byAccount, model.Name{Namespace: cl.namespace, Name: cl.account}, cl)
	}
	x.byLabel.remove(cl, cl.unshared())
}

// itemsOf are all items of the classes.
func itemsOf(classes ClassSet) (all []*Item) {
	for cl := range classes {
		all = slices.AppendSeq(all, maps.Keys(cl.Items))
	}
	return all
}

// add files what has the labels.
func (x labelled[N]) add(n N, labels iter.Seq2[string, string]) {
	for k, v := range labels {
		if x[k] == nil {
			x[k] = map[string]map[N]struct{}{}
		}
		multimap.Add(x[k], v, n)
	}
}

// remove takes back an add.
func (x labelled[N]) remove(n N, labels iter.Seq2[string, string]) {
	for k, v := range labels {
		if multimap.Remove(x[k], v, n); len(x[k]) == 0 {
			delete(x, k)
		}
	}
}

// under yields what is filed, in by, under the names that have the label.
func (x labelled[N]) under(key string, a model.Anchor, by map[N]ClassSet) iter.Seq[ClassSet] {
	return func(yield func(ClassSet) bool) {
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
func (x *index) candidates(s model.Selector) iter.Seq[*Class] {
	return func(yield func(*Class) bool) {
		for set := range x.shortest(s) {
			for cl := range set {
				if !yield(cl) {
					return
				}
			}
		}
	}
}

func (x *index) shortest(s model.Selector) iter.Seq[ClassSet] {
	anchors, anchored := s.Anchors()
	byAnchor := func(yield func(ClassSet) bool) {
		for _, a := range anchors {
			for set := range x.under(a) {
				if !yield(set) {
					return
				}
			}
		}
	}
	names, confined := s.Namespaces()
	byNamespace := func(yield func(ClassSet) bool) {
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
func (x *index) under(a model.Anchor) iter.Seq[ClassSet] {
	if a.Key == model.OrchestratorLabel || namesNamespace(a.Key) && a.Any {
		return maps.Values(x.byNamespace)
	}
	if namesNamespace(a.Key) {
		return func(yield func(ClassSet) bool) { yield(x.byNamespace[a.Value]) }
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

func size(sets iter.Seq[ClassSet]) int {
	n := 0
	for set := range sets {
		n += len(set)
	}
	return n
}
