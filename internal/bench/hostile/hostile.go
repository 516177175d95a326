// Package hostile draws objects that an API server would accept and nobody would write: every field
// at its extremes, alone and with the others, in lists as long as an object may be. What is drawn
// depends on a seed and a number alone.
//
// The objects are those of tenants. They have namespaces, pods and addresses of their own, so that
// they can rightly neither forbid nor allow anything to anybody else: what happens to others when
// they come, change or go is a fault.
package hostile

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"

	"sluice.dev/sluice/internal/bench/cluster"
)

// MaxBytes is what etcd takes of one object.
const MaxBytes = 1_500_000

// least is the room for lists that an object is drawn with at least.
const least = 300

// Objects are drawn from a seed, each with a number.
type Objects struct {
	Seed uint64
	Most int // bytes of an object, 10,000 at the least and MaxBytes at the most
	// Addresses are how many a selector of everything selects: what a policy's selectors may select
	// in all is an extreme as well.
	Addresses int
}

// kinds are drawn with the weights of how often they are here.
var kinds = []func(*dice) []object{
	(*dice).service, (*dice).service, (*dice).service,
	(*dice).networkPolicy, (*dice).networkPolicy, (*dice).networkPolicy,
	(*dice).clusterPolicy, (*dice).clusterPolicy,
	(*dice).calicoPolicy, (*dice).calicoPolicy, (*dice).calicoPolicy, (*dice).globalPolicy, (*dice).globalPolicy,
	(*dice).networkSet, (*dice).globalSet, (*dice).tier, (*dice).hostEndpoint,
	(*dice).pod, (*dice).node, (*dice).namespace, (*dice).account,
}

// Draw returns a version of the object with a number as a manifest, and those without which it is
// nothing: a service has its slices. All versions are of one kind and have one name. The size is
// drawn too: as many are of a kilobyte as of a hundred.
func (o Objects) Draw(number, version int) []cluster.File {
	most := min(o.Most, MaxBytes)
	size := rand.New(rand.NewPCG(o.Seed+uint64(version)<<32, uint64(number))).Float64()
	for room := int(least * math.Pow(float64(most)/least, size)); ; room /= 2 {
		d := &dice{
			Rand: rand.New(rand.NewPCG(o.Seed+uint64(version)<<32+1, uint64(number))), number: number, room: room,
			self: rand.New(rand.NewPCG(o.Seed, uint64(number))), edge: Edge(o.Addresses),
		}
		var files []cluster.File
		fit := true
		for i, obj := range kinds[d.self.IntN(len(kinds))](d) {
			f := file(fmt.Sprintf("hostile-%07d-%d.json", number, i), obj)
			files, fit = append(files, f), fit && len(f.JSON) <= most
		}
		if fit || room < least {
			return files
		}
	}
}

// file makes a manifest of an object. There is nothing in any that cannot be said in JSON.
func file(name string, o object) cluster.File {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return cluster.File{Name: name, JSON: text}
}

// Pods are how many pods of tenants are on the node.
const Pods = 4

// Ground is what hostile objects are about: the tenants' namespaces and those of others, tiers, and
// pods, of which the ones on the node have the given addresses.
func Ground(addrs [Pods]netip.Addr) []cluster.File {
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
	tiers   = 20 // by turns denying and passing what no policy of theirs decides
	words   = 10 // values that labels commonly have
)

func tenant(i int) string   { return fmt.Sprint("tenant-", i) }
func tierName(i int) string { return fmt.Sprint("tier-", i) }
func word(i int) string     { return fmt.Sprint("w", i%words) }

type object = map[string]any

// dice draws one object.
type dice struct {
	*rand.Rand
	number int
	room   int        // bytes that lists may still take, roughly
	self   *rand.Rand // of what all versions have alike
	edge   int        // see Edge
}

// one draws from a list.
func one[T any](d *dice, of ...T) T { return of[d.IntN(len(of))] }

// often is true in three of four cases, rarely in one of eight.
func (d *dice) often() bool  { return d.IntN(4) > 0 }
func (d *dice) rarely() bool { return d.IntN(8) == 0 }

// many draws how long a list is, from least to most: mostly one of both ends, where an item takes
// so many bytes.
func (d *dice) many(least, most, each int) int {
	fit := max(least, min(most, (d.room>>d.IntN(3))/each))
	n := one(d, least, least+1, least+2, fit, fit, least+d.IntN(fit-least+1))
	n = min(n, fit)
	d.room -= n * each
	return n
}

// list draws a list with many.
func list[T any](d *dice, least, most, each int, item func(i int) T) []T {
	all := make([]T, d.many(least, most, each))
	for i := range all {
		all[i] = item(i)
	}
	return all
}

// put sets an optional field with what is drawn, in half of the cases.
func put[T any](d *dice, o object, field string, draw func() T) {
	if d.IntN(2) == 0 {
		o[field] = draw()
	}
}

// name is that of a thing of the object's own, as long as it may be or short.
func (d *dice) name(most int) string {
	name := fmt.Sprintf("h%d", d.number)
	if d.self.IntN(8) == 0 {
		name += strings.Repeat("x", most-len(name))
	}
	return name
}

func (d *dice) namespaceName() string { return tenant(d.self.IntN(tenants)) }

// key is a label's name, one that pods have or one that is as long as it may be.
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

// value is that of a label.
func (d *dice) value(i int) string {
	switch d.IntN(4) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%063d", i)
	}
	return word(i)
}

// labels are many, some of them those that others select by; with tells of what cannot be missing.
func (d *dice) labels(with object) object {
	all := object{}
	for i := range d.many(0, 20_000, 120) {
		all[d.key(i)] = d.value(i)
	}
	// Those whom others let in are called like this, see the testbed.
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
