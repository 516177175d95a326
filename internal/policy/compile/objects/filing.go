package objects

import (
	"iter"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// Filing finds the selectors that may select an object: each is filed under labels of which every
// object that it selects has one.
type Filing[T comparable] map[slot][]T

// slot is where a selector is filed: for objects of a namespace ("": anywhere) with a label, that
// has the value unless any is set; or, without a key, for all of them.
type slot struct {
	namespace, key, value string
	any                   bool
}

// Add files a selector, for what is to be found by it.
func (f Filing[T]) Add(s model.Selector, t T) {
	for _, at := range slots(s) {
		f[at] = append(f[at], t)
	}
}

// Remove takes back an Add.
func (f Filing[T]) Remove(s model.Selector, t T) {
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

// Candidates yields what is filed under labels of the object, some of it perhaps more than once.
func (f Filing[T]) Candidates(l *Labels) iter.Seq[T] {
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
func lookups(l *Labels) iter.Seq[slot] {
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
