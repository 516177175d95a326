// Package objects holds the pods, network sets and host endpoints that selectors of policies
// select.
//
// It owns their labels, with those that they have from their namespace and service account: objects
// whose labels are equal are a Class, and a selector is held against one of them alone. Both ways
// to match are found by labels rather than by search: Objects.Find returns the classes that a
// selector selects, and a Filing the selectors that may select an object.
//
// Objects.Changes follows a store. What depends on objects is told nothing: it is for the caller to
// carry each Change on.
package objects

import (
	"time"

	"sluice.dev/sluice/internal/model"
)

// MatchingCost is how many classes a selector is held against in the time in which an address is
// programmed.
const MatchingCost = 16

// Objects are the current versions of all that selectors select, in classes of equal labels.
// Callers read the exported fields, which Changes and Latecomers change. It is not safe for
// concurrent use.
type Objects struct {
	Pods  map[model.Name]*Item     // that have addresses of their own
	Late  map[model.Name]time.Time // pods of other nodes that are not followed yet, and since when
	Sets  map[model.NetworkSetKey]*Item
	Hosts map[string]*Item
	Size  int // of all items

	node       string                           // the name of this node
	many       int                              // see New
	namespaces map[string]map[string]string     // the labels of those that have any
	accounts   map[model.Name]map[string]string // the same of service accounts
	classes    map[string]*Class
	index      index
}

// New returns Objects of which there are none yet, as the node of that name follows them. A host
// endpoint of more than many addresses has one list of them.
func New(node string, many int) *Objects {
	return &Objects{
		Pods: map[model.Name]*Item{}, Late: map[model.Name]time.Time{}, Sets: map[model.NetworkSetKey]*Item{}, Hosts: map[string]*Item{},
		node: node, many: many, namespaces: map[string]map[string]string{}, accounts: map[model.Name]map[string]string{},
		classes: map[string]*Class{}, index: newIndex(),
	}
}

// Class is all items with the same labels: selectors can't tell them from each other.
type Class struct {
	Labels
	key   string
	Items ItemSet
	Size  int // the sum of their sizes
}

// ClassSet is a set of classes.
type ClassSet = map[*Class]struct{}

// ItemSet is a set of items.
type ItemSet map[*Item]struct{}

// add puts an item into its class, and reports whether it is the first one there.
func (o *Objects) add(it *Item) (first bool) {
	key := it.Labels.text()
	cl := o.classes[key]
	if first = cl == nil; first {
		cl = &Class{Labels: *it.Labels, key: key, Items: ItemSet{}}
		o.classes[key] = cl
		o.index.add(cl)
	}
	it.Class, it.Labels = cl, &cl.Labels
	cl.Items[it] = struct{}{}
	cl.Size += it.Size()
	o.Size += it.Size()
	return first
}

// remove takes an item out of its class, and reports whether it was the last one there: the class
// ends with it.
func (o *Objects) remove(it *Item) (last bool) {
	cl := it.Class
	delete(cl.Items, it)
	cl.Size -= it.Size()
	o.Size -= it.Size()
	if len(cl.Items) > 0 {
		return false
	}
	delete(o.classes, cl.key)
	o.index.remove(cl)
	return true
}

// Find returns the classes that the selector selects, and how many it was held against.
func (o *Objects) Find(s model.Selector) (found []*Class, looked int) {
	known := ClassSet{}
	for cl := range o.index.candidates(s) {
		looked++
		if _, again := known[cl]; !again && s.Matches(&cl.Labels) {
			known[cl] = struct{}{}
			found = append(found, cl)
		}
	}
	return found, looked
}
