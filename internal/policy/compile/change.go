package compile

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// change is a new version of an item in place of an old one, either of which may be nil.
type change struct {
	old, next *item
	class     *class // that next is the first of; nil: there were others
	ended     bool   // old was the last of its class
}

// renewed reports whether selectors and sets cannot tell the two versions apart: they are one item.
func (ch change) renewed() bool { return ch.old != nil && ch.old == ch.next }

// item is the version that there is; the last one where it is gone.
func (ch change) item() *item {
	if ch.next == nil {
		return ch.old
	}
	return ch.next
}

// changes follows the objects that are dirty, and yields each change once it is made; the caller
// takes all. Unless whole is set, pods of other nodes are left to latecomers: nothing passes to a pod
// of this node that is not known.
func (o *objects) changes(v *store.View, d store.Dirty, whole bool) iter.Seq[change] {
	return func(yield func(change) bool) {
		for name := range d.Objects[model.NamespaceKind] {
			var labels map[string]string
			if obj := v.Namespace(name.Name); obj != nil {
				labels = obj.Labels
			}
			relabel(o, o.namespaces, o.index.namespaces, o.index.byNamespace, name.Name, labels, yield)
		}
		for name := range d.Objects[model.ServiceAccountKind] {
			var labels map[string]string
			if obj := v.ServiceAccount(name); obj != nil {
				labels = obj.Labels
			}
			relabel(o, o.accounts, o.index.accounts, o.index.byAccount, name, labels, yield)
		}
		for name := range d.Objects[model.PodKind] {
			pod, old := v.Pod(name), o.pods[name]
			if whole || pod != nil && pod.Node == o.node || old != nil && old.local {
				delete(o.late, name)
				o.setPod(name, pod, yield)
			} else if _, waits := o.late[name]; !waits {
				o.late[name] = d.Since
			}
		}
		for key := range d.Refs(model.NetworkSetKinds) {
			swap(o, o.sets, key, newSet(v.NetworkSet(key), o.namespaces[key.Name.Namespace]), yield)
		}
		for name := range d.Objects[model.HostEndpointKind] {
			swap(o, o.hosts, name.Name, newHost(v.HostEndpoint(name.Name)), yield)
		}
	}
}

// latecomers follows the pods that wait, the oldest change first, and yields each change once it is
// made. Those after the one at which the caller stops go on waiting.
func (o *objects) latecomers(v *store.View) iter.Seq[change] {
	return func(yield func(change) bool) {
		for _, name := range slices.SortedFunc(maps.Keys(o.late), func(a, b model.Name) int {
			return cmp.Or(o.late[a].Compare(o.late[b]), a.Compare(b))
		}) {
			delete(o.late, name)
			if !o.setPod(name, v.Pod(name), yield) {
				return
			}
		}
	}
}

// relabel gives a namespace or a service account its labels and renews the items that inherit them.
// Meanwhile these are found under the old labels and under the new ones.
func relabel[N comparable](o *objects, labels map[N]map[string]string, filed labelled[N], by map[N]classSet, name N, next map[string]string, yield func(change) bool) {
	old := labels[name]
	if maps.Equal(old, next) {
		return
	}
	filed.relabel(name, nil, next)
	if labels[name] = next; len(next) == 0 {
		delete(labels, name)
	}
	for _, it := range itemsOf(by[name]) {
		if it.pod != nil {
			o.setPod(it.pod.Name, it.pod, yield)
		} else {
			swap(o, o.sets, it.set.Key, newSet(it.set, next), yield)
		}
	}
	filed.relabel(name, old, next)
}

func (o *objects) setPod(name model.Name, obj *model.Pod, yield func(change) bool) bool {
	old, next := o.pods[name], o.newPod(obj)
	if next.selectedLike(old) {
		old.pod = obj
		return yield(change{old: old, next: old})
	}
	return swap(o, o.pods, name, next, yield)
}

// swap makes next known under a key, in place of what was. It counts up before counting down, so that
// what stays is never seen to go.
func swap[K comparable](o *objects, items map[K]*item, key K, next *item, yield func(change) bool) bool {
	ch := change{old: items[key], next: next}
	if ch.item() == nil {
		return true
	}
	if next == nil {
		delete(items, key)
	} else if items[key] = next; o.add(next) {
		ch.class = next.class
	}
	ch.ended = ch.old != nil && o.remove(ch.old)
	return yield(ch)
}
