package objects

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// ItemChange is a new version of an item in place of an old one, either of which may be nil.
type ItemChange struct {
	Old, Next *Item
	Class     *Class // that Next is the first of; nil: there were others
	Ended     bool   // Old was the last of its class
}

// Renewed reports whether selectors and sets cannot tell the two versions apart: they are one Item.
func (ch ItemChange) Renewed() bool { return ch.Old != nil && ch.Old == ch.Next }

// Item is the version that there is; the last one where it is gone.
func (ch ItemChange) Item() *Item {
	if ch.Next == nil {
		return ch.Old
	}
	return ch.Next
}

// Changes follows the objects that are dirty, and yields each change once it is made; the caller
// takes all. Unless whole is set, pods of other nodes are left to Latecomers: nothing passes to a
// pod of this node that is not known.
func (o *Objects) Changes(v *store.View, d store.Dirty, whole bool) iter.Seq[ItemChange] {
	return func(yield func(ItemChange) bool) {
		for name := range d.Objects[model.NamespaceKind] {
			relabel(o, o.namespaces, o.index.namespaces, o.index.byNamespace, name.Name, namespaceLabels(v, name.Name), yield)
		}
		for name := range d.Objects[model.ServiceAccountKind] {
			relabel(o, o.accounts, o.index.accounts, o.index.byAccount, name, accountLabels(v, name), yield)
		}
		for name := range d.Objects[model.PodKind] {
			pod, old := v.Pod(name), o.Pods[name]
			if whole || pod != nil && pod.Node == o.node || old != nil && old.Local {
				delete(o.Late, name)
				o.setPod(name, pod, yield)
			} else if _, waits := o.Late[name]; !waits {
				o.Late[name] = d.Since
			}
		}
		for key := range d.Refs(model.NetworkSetKinds) {
			swap(o, o.Sets, key, newSet(v.NetworkSet(key), o.namespaces[key.Name.Namespace]), yield)
		}
		for name := range d.Objects[model.HostEndpointKind] {
			swap(o, o.Hosts, name.Name, o.newHost(v.HostEndpoint(name.Name)), yield)
		}
	}
}

// Latecomers follows the pods that wait, the oldest change first, and yields each change once it is
// made. Those after the one at which the caller stops go on waiting.
func (o *Objects) Latecomers(v *store.View) iter.Seq[ItemChange] {
	return func(yield func(ItemChange) bool) {
		for _, name := range slices.SortedFunc(maps.Keys(o.Late), func(a, b model.Name) int {
			return cmp.Or(o.Late[a].Compare(o.Late[b]), a.Compare(b))
		}) {
			delete(o.Late, name)
			if !o.setPod(name, v.Pod(name), yield) {
				return
			}
		}
	}
}

// relabel gives a namespace or a service account its labels and renews the items that inherit them.
// Meanwhile these are found under the old labels and under the new ones.
func relabel[N comparable](o *Objects, labels map[N]map[string]string, filed labelled[N], by map[N]ClassSet, name N, next map[string]string, yield func(ItemChange) bool) {
	old := labels[name]
	if maps.Equal(old, next) {
		return
	}
	filed.add(name, maps.All(next))
	if labels[name] = next; len(next) == 0 {
		delete(labels, name)
	}
	for _, it := range itemsOf(by[name]) {
		if it.Pod != nil {
			o.setPod(it.Pod.Name, it.Pod, yield)
		} else {
			swap(o, o.Sets, it.Set.Key, newSet(it.Set, next), yield)
		}
	}
	filed.remove(name, maps.All(old))
	filed.add(name, maps.All(next))
}

func (o *Objects) setPod(name model.Name, obj *model.Pod, yield func(ItemChange) bool) bool {
	old, next := o.Pods[name], o.newPod(obj)
	if next.selectedLike(old) {
		old.Pod = obj
		return yield(ItemChange{Old: old, Next: old})
	}
	return swap(o, o.Pods, name, next, yield)
}

// swap makes next known under a key, in place of what was. It counts up before counting down, so
// that what stays is never seen to go.
func swap[K comparable](o *Objects, items map[K]*Item, key K, next *Item, yield func(ItemChange) bool) bool {
	ch := ItemChange{Old: items[key], Next: next}
	if ch.Item() == nil {
		return true
	}
	if next == nil {
		delete(items, key)
	} else if items[key] = next; o.add(next) {
		ch.Class = next.Class
	}
	ch.Ended = ch.Old != nil && o.remove(ch.Old)
	return yield(ch)
}
