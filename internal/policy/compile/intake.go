package compile

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// intake is the first pass of an update: it turns the objects of a store into items, and tells of
// each item that comes, changes or goes all who follow items.
type intake struct {
	*budget
	objects   *objects
	sets      *sets
	tallies   *tallies
	variants  *variants
	policies  *policies
	endpoints *endpoints

	late map[model.Name]time.Time // pods of other nodes that are not followed yet, and since when
}

// take follows all objects but tiers and policies.
func (in *intake) take(v *store.View, d store.Dirty) {
	for name := range d.Objects[model.NamespaceKind] {
		in.setNamespace(name.Name, v.Namespace(name.Name))
	}
	for name := range d.Objects[model.ServiceAccountKind] {
		in.setAccount(name, v.ServiceAccount(name))
	}
	if len(d.Objects[model.AttachmentKind]) > 0 {
		in.endpoints.attach(v.Attachments())
	}
	in.takePods(v, d.Objects[model.PodKind])
	in.sets.services.follow(d.Services)
	for key := range d.Refs(model.NetworkSetKinds) {
		in.setNetworkSet(key, v.NetworkSet(key))
	}
	for name := range d.Objects[model.HostEndpointKind] {
		in.setHost(name.Name, v.HostEndpoint(name.Name))
	}
}

func (in *intake) setNamespace(name string, obj *model.Namespace) {
	var next map[string]string
	if obj != nil {
		next = obj.Labels
	}
	x := &in.objects.index
	relabel(in.objects.namespaces, x.namespaces, name, next, func() {
		for _, it := range itemsOf(x.byNamespace[name]) {
			if it.pod != nil {
				in.setPod(it.pod.Name, it.pod)
			} else {
				in.setNetworkSet(it.set.Key, it.set)
			}
		}
	})
}

func (in *intake) setAccount(name model.Name, obj *model.ServiceAccount) {
	var next map[string]string
	if obj != nil {
		next = obj.Labels
	}
	x := &in.objects.index
	relabel(in.objects.accounts, x.accounts, name, next, func() {
		for _, it := range itemsOf(x.byAccount[name]) {
			in.setPod(it.pod.Name, it.pod)
		}
	})
}

// relabel gives a namespace or a service account its labels and renews the items that inherit them.
// Meanwhile these are found under the old labels and under the new ones.
func relabel[N comparable](labels map[N]map[string]string, filed labelled[N], name N, next map[string]string, renew func()) {
	old := labels[name]
	if maps.Equal(old, next) {
		return
	}
	filed.relabel(name, nil, next)
	if labels[name] = next; len(next) == 0 {
		delete(labels, name)
	}
	renew()
	filed.relabel(name, old, next)
}

// takePods follows pods as far as half of the room goes, the oldest change first and at least one.
// Pods of this node are followed in any case: nothing passes to one that is not known.
func (in *intake) takePods(v *store.View, dirty map[model.Name]struct{}) {
	for name := range dirty {
		pod, old := v.Pod(name), in.objects.pods[name]
		if in.whole || pod != nil && pod.Node == in.objects.node || old != nil && old.local {
			delete(in.late, name)
			in.setPod(name, pod)
		} else if _, waits := in.late[name]; !waits {
			in.late[name] = in.since
		}
	}
	least := in.room / 2
	for i, name := range slices.SortedFunc(maps.Keys(in.late), func(a, b model.Name) int {
		return cmp.Or(in.late[a].Compare(in.late[b]), a.Compare(b))
	}) {
		if !in.whole && i > 0 && in.room < least {
			break
		}
		delete(in.late, name)
		in.setPod(name, v.Pod(name))
	}
}

func (in *intake) setPod(name model.Name, obj *model.Pod) {
	old, next := in.objects.pods[name], in.objects.newPod(obj)
	if next.selectedLike(old) {
		if old.pod = obj; old.local {
			in.endpoints.readdress(old)
		}
		return
	}
	put(in.objects.pods, name, next)
	in.swap(old, next)
	in.endpoints.setPod(name, old, next)
}

func (in *intake) setNetworkSet(key model.NetworkSetKey, obj *model.NetworkSet) {
	old, next := in.objects.sets[key], newSet(obj, in.objects.namespaces[key.Name.Namespace])
	put(in.objects.sets, key, next)
	if next != nil {
		in.sets.lists.refill(obj)
	}
	in.swap(old, next)
	in.policies.setRefused(old, next)
}

func (in *intake) setHost(name string, obj *model.HostEndpoint) {
	old, next := in.objects.hosts[name], newHost(obj)
	put(in.objects.hosts, name, next)
	if next != nil && next.set != nil {
		in.sets.lists.refill(next.set)
	}
	in.swap(old, next)
	in.endpoints.hosts.set(name, next)
}

// put keeps an item under its name; nil: there is none any more.
func put[K comparable](items map[K]*item, key K, it *item) {
	if it == nil {
		delete(items, key)
	} else {
		items[key] = it
	}
}

// swap makes next known in place of old; either may be nil. It counts up before counting down, so
// that what stays is never seen to go. Limits are checked for each item rather than once for an
// update, so that what one update brings cannot fill groups far beyond them.
func (in *intake) swap(old, next *item) {
	if next != nil {
		if in.objects.add(next) {
			in.room -= in.sets.groups.addClass(next.class)
		}
		in.sets.groups.add(next)
		in.room -= in.tallies.count(next.class, next.size())
		in.sets.named.set(next, true)
		in.room -= 1 + len(next.class.groups)*next.size()
	}
	if old != nil {
		in.sets.groups.remove(old)
		in.room -= in.tallies.count(old.class, -old.size())
		in.sets.named.set(old, false)
		in.room -= len(old.class.groups) * old.size()
		in.objects.remove(old)
	}
	in.variants.weigh()
}
