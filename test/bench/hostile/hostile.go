// Package hostile generates random objects that an API server accepts and nobody would write: every
// field at its extremes, alone and together with others, in lists as long as an object may be. An
// object depends only on a seed and a number.
//
// The objects are tenants'. Tenants have namespaces, pods and addresses of their own, so their
// objects must not affect others: it is a fault if others notice anything when these objects are
// added, changed or removed.
package hostile

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"

	"sluice.dev/sluice/test/bench/cluster"
)

// MaxBytes is the largest object that etcd accepts.
const MaxBytes = 1_500_000

// minRoom is the least room for lists, in bytes.
const minRoom = 300

// Objects are drawn from a seed, each with a number.
type Objects struct {
	Seed uint64
	Most int // bytes of an object, 10,000 at the least and MaxBytes at the most
	// Addresses is how many addresses a selector of everything selects: there is a limit on what
	// all selectors of a policy select.
	Addresses int
}

// kinds are all kinds, some of them several times: those are drawn more often.
var kinds = []func(*dice) []object{
	(*dice).service, (*dice).service, (*dice).service,
	(*dice).networkPolicy, (*dice).networkPolicy, (*dice).networkPolicy,
	(*dice).clusterPolicy, (*dice).clusterPolicy,
	(*dice).calicoPolicy, (*dice).calicoPolicy, (*dice).calicoPolicy, (*dice).globalPolicy, (*dice).globalPolicy,
	(*dice).networkSet, (*dice).globalSet, (*dice).tier, (*dice).hostEndpoint,
	(*dice).pod, (*dice).node, (*dice).namespace, (*dice).account,
	(*dice).ipPool, (*dice).block, (*dice).bgpConfiguration, (*dice).bgpPeer, (*dice).bgpFilter,
	(*dice).addressPool, (*dice).l2Advertisement, (*dice).bgpAdvertisement, (*dice).metalLBPeer, (*dice).community,
}

// Draw returns the manifests of a version of an object and of those that it needs, such as a
// service's slices. All versions have the same kind and name. The size is random, too: objects of a
// kilobyte are as frequent as those of a hundred.
func (o Objects) Draw(number, version int) []cluster.File {
	most := min(o.Most, MaxBytes)
	size := rand.New(rand.NewPCG(o.Seed+uint64(version)<<32, uint64(number))).Float64()
	for room := int(minRoom * math.Pow(float64(most)/minRoom, size)); ; room /= 2 {
		d := &dice{
			Rand: rand.New(rand.NewPCG(o.Seed+uint64(version)<<32+1, uint64(number))), number: number, room: room,
			self: rand.New(rand.NewPCG(o.Seed, uint64(number))), maxSelectors: MaxSelectors(o.Addresses),
		}
		var files []cluster.File
		fit := true
		for i, obj := range kinds[d.self.IntN(len(kinds))](d) {
			f := file(fmt.Sprintf("hostile-%07d-%d.json", number, i), obj)
			files, fit = append(files, f), fit && len(f.JSON) <= most
		}
		if fit || room < minRoom {
			return files
		}
	}
}

// file makes an object's manifest. All values can be marshalled.
func file(name string, o object) cluster.File {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return cluster.File{Name: name, JSON: text}
}

// Pods is how many pods of tenants are on the node.
const Pods = 4

// Prerequisites are the objects that hostile objects refer to: namespaces of tenants and of others,
// tiers, and pods. Those on the node have the given addresses.
func Prerequisites(addrs [Pods]netip.Addr) []cluster.File {
	var all []object
	for i := range tenants {
		all = append(all, object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{
			"name": tenant(i), "labels": object{"team": "hostile", "kubernetes.io/metadata.name": tenant(i)},
		}})
	}
	for i := range others {
		all = append(all, object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{
			"name": other(i), "labels": object{"team": word(i), "kubernetes.io/metadata.name": other(i)},
		}})
	}
	for i := range tiers {
		all = append(all, object{"apiVersion": calicoAPI, "kind": "Tier",
			"metadata": object{"name": tierName(i)}, "spec": object{"order": i / 2, "defaultAction": []string{"Deny", "Pass"}[i%2]}})
	}
	for i, addr := range addrs {
		all = append(all, podObject(tenant(i%tenants), fmt.Sprint("tenant-", i), cluster.Node, object{
			"tenant": "hostile", "app": word(i), "role": word(i + 1),
		}, addr.String()))
	}
	var files []cluster.File
	for i, o := range all {
		files = append(files, file(fmt.Sprintf("ground-%03d.json", i), o))
	}
	return files
}

const (
	tenants = 3  // namespaces
	tiers   = 20 // their default actions are Deny and Pass in turns
	words   = 10 // values that labels commonly have
)

func tenant(i int) string   { return fmt.Sprint("tenant-", i) }
func tierName(i int) string { return fmt.Sprint("tier-", i) }
func word(i int) string     { return fmt.Sprint("w", i%words) }

type object = map[string]any

// dice draws one object.
type dice struct {
	*rand.Rand
	number       int
	room         int        // bytes left for lists, roughly
	self         *rand.Rand // for everything that all versions have in common
	maxSelectors int        // see MaxSelectors
}

// one draws from a list.
func one[T any](d *dice, of ...T) T { return of[d.IntN(len(of))] }

// often is true three times in four, rarely once in eight.
func (d *dice) often() bool  { return d.IntN(4) > 0 }
func (d *dice) rarely() bool { return d.IntN(8) == 0 }

// many draws the length of a list whose items take so many bytes each: mostly least or most,
// sometimes a number between.
func (d *dice) many(least, most, each int) int {
	fit := max(least, min(most, (d.room>>d.IntN(3))/each))
	n := one(d, least, least+1, least+2, fit, fit, least+d.IntN(fit-least+1))
	n = min(n, fit)
	d.room -= n * each
	return n
}

// list draws a list whose length is drawn by many.
func list[T any](d *dice, least, most, each int, item func(i int) T) []T {
	all := make([]T, d.many(least, most, each))
	for i := range all {
		all[i] = item(i)
	}
	return all
}

// put sets an optional field in half of the cases.
func put[T any](d *dice, o object, field string, draw func() T) {
	if d.IntN(2) == 0 {
		o[field] = draw()
	}
}

// name is the object's name, short or as long as possible.
func (d *dice) name(most int) string {
	name := fmt.Sprintf("h%d", d.number)
	if d.self.IntN(8) == 0 {
		name += strings.Repeat("x", most-len(name))
	}
	return name
}

func (d *dice) namespaceName() string { return tenant(d.self.IntN(tenants)) }

// key is a label's key: one that pods have, or one as long as possible.
func (d *dice) key(i int) string {
	switch d.IntN(4) {
	case 0:
		return "app"
	case 1:
		return "role"
	case 2:
		return fmt.Sprint("k", i)
	}
	return strings.Repeat("a", 240-len(fmt.Sprint(i))) + fmt.Sprint(".example", i) + "/" + strings.Repeat("K", 63)
}

// value is a label's value.
func (d *dice) value(i int) string {
	switch d.IntN(4) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%063d", i)
	}
	return word(i)
}

// labels are many labels, some of which others select; those in with are always there.
func (d *dice) labels(with object) object {
	all := object{}
	for i := range d.many(0, 20_000, 120) {
		all[d.key(i)] = d.value(i)
	}
	// The bystanders' policies allow pods with this label.
	put(d, all, "app", func() string { return one(d, "friend", word(d.IntN(words))) })
	for k, v := range with {
		all[k] = v
	}
	return all
}

func (d *dice) meta(most int) object {
	return object{"name": d.name(most), "creationTimestamp": "2030-01-01T00:00:00Z"}
}

func (d *dice) namespaced(most int) object {
	m := d.meta(most)
	m["namespace"] = d.namespaceName()
	return m
}
