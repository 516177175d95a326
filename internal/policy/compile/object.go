package compile

import (
	"time"

	"sluice.dev/sluice/internal/model"
)

// objects are the current versions of all that selectors select, in classes of equal labels.
type objects struct {
	node       string                           // the name of this node
	namespaces map[string]map[string]string     // the labels of those that have any
	accounts   map[model.Name]map[string]string // the same of service accounts
	pods       map[model.Name]*item
	late       map[model.Name]time.Time // pods of other nodes that are not followed yet, and since when
	sets       map[model.NetworkSetKey]*item
	hosts      map[string]*item
	classes    map[string]*class
	index      index
	size       int // of all items
}

func newObjects(node string) *objects {
	return &objects{
		node: node, namespaces: map[string]map[string]string{}, accounts: map[model.Name]map[string]string{},
		pods: map[model.Name]*item{}, late: map[model.Name]time.Time{}, sets: map[model.NetworkSetKey]*item{}, hosts: map[string]*item{},
		classes: map[string]*class{}, index: newIndex(),
	}
}

// class is all items with the same labels. Selectors can't tell them from each other, so each
// selector is held against one of them alone.
type class struct {
	labels
	key   string
	items itemSet
	size  int // the sum of their sizes
}

// classSet is a set of classes.
type classSet map[*class]struct{}

// itemSet is a set of items.
type itemSet map[*item]struct{}

// add puts an item into its class, and reports whether it is the first one there.
func (o *objects) add(it *item) (first bool) {
	key := it.labels.text()
	cl := o.classes[key]
	if first = cl == nil; first {
		cl = &class{labels: *it.labels, key: key, items: itemSet{}}
		o.classes[key] = cl
		o.index.add(cl)
	}
	it.class, it.labels = cl, &cl.labels
	cl.items[it] = struct{}{}
	cl.size += it.size()
	o.size += it.size()
	return first
}

// remove takes an item out of its class, and reports whether it was the last one there: the class
// ends with it.
func (o *objects) remove(it *item) (last bool) {
	cl := it.class
	delete(cl.items, it)
	cl.size -= it.size()
	o.size -= it.size()
	if len(cl.items) > 0 {
		return false
	}
	delete(o.classes, cl.key)
	o.index.remove(cl)
	return true
}

// find returns the classes that the selector selects, and how many it was held against.
func (o *objects) find(s model.Selector) (found []*class, looked int) {
	known := classSet{}
	for cl := range o.index.candidates(s) {
		looked++
		if _, again := known[cl]; !again && s.Matches(&cl.labels) {
			known[cl] = struct{}{}
			found = append(found, cl)
		}
	}
	return found, looked
}
