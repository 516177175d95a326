package sets

import (
	"github.com/cespare/xxhash/v2"

	"sluice.dev/sluice/internal/state"
)

// IDSpace is how many ids there are: all of 24 bits but 0.
const IDSpace = 1<<24 - 1

// handle is what all sets have: a name, and an id while it is in use.
type handle struct {
	key       string
	refs      int         // how often it is held
	id        state.SetID // now; 0: none
	published state.SetID // that the state has it under; 0: none
}

func (h *handle) base() *handle { return h }

// Key is what the set is told from others by.
func (h *handle) Key() string { return h.key }

// ID is what rules refer to it by: it may change until sets are published.
func (h *handle) ID() state.SetID { return h.id }

// name and under are for sets that are found under their names.
func (h *handle) name(key string) { h.key = key }
func (h *handle) under() string   { return h.key }

// ids gives out ids by name. Which id a name has depends on the names in use alone, not on the
// order in which they came: a name has the first place from that of its hash on which no lesser
// name needs, as if they had come in order.
type ids struct {
	space uint32
	held  map[uint32]*handle
	moved bool // a handle that had an id has another one now
}

func newIDs(space uint32) *ids { return &ids{space: space, held: map[uint32]*handle{}} }

// home is where a name would be if there were no other; places begin at 1.
func (x *ids) home(key string) uint32 {
	return uint32(xxhash.Sum64String(key)%uint64(x.space)) + 1
}

func (x *ids) next(place uint32) uint32 { return place%x.space + 1 }

// add gives h an id. Fewer handles than ids must be in use.
func (x *ids) add(h *handle) {
	for place := x.home(h.key); ; place = x.next(place) {
		other := x.held[place]
		if other == nil {
			x.put(place, h)
			return
		}
		if h.key < other.key {
			x.put(place, h)
			h = other
		}
	}
}

// remove takes the id of h, and gives anew those of the ones that may have had to go past it.
func (x *ids) remove(h *handle) {
	place := uint32(h.id)
	delete(x.held, place)
	h.id = 0
	var after []*handle
	for place = x.next(place); x.held[place] != nil; place = x.next(place) {
		after = append(after, x.held[place])
		delete(x.held, place)
	}
	for _, other := range after {
		x.add(other)
	}
}

func (x *ids) put(place uint32, h *handle) {
	id := state.SetID(place)
	x.moved = x.moved || h.id != 0 && h.id != id
	x.held[place], h.id = h, id
}
