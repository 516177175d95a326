package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// table is what the maps hold. A frontend has slots, numbered from 0, with an endpoint in each, and
// four of them in an element; so an endpoint that comes or goes is a change of two or three
// elements, however many there are.
type table struct {
	maps      *bpfMaps
	frontends map[bpfEndpoint]*entry
	pages     int // of all frontends
	serving   int // of all frontends
	nextID    uint32
}

// entry is a frontend in the maps.
type entry struct {
	id      uint32
	slots   []bpfEndpoint
	serving map[bpfEndpoint]bool // of UDP
}

// change collects what is to be written, in the order in which it is: whatever a socket reads in
// the midst of it is an endpoint from before the change or after it, or nothing, and then
// nftables serves it.
type change struct {
	servings      puts[bpfServing, uint8]
	slots         puts[bpfPage, bpfEndpoints]
	frontends     puts[bpfEndpoint, bpfFrontend]
	frontendsGone []bpfEndpoint
	slotsGone     []bpfPage
	servingsGone  []bpfServing
}

type puts[K, V any] struct {
	keys   []K
	values []V
}

func (p *puts[K, V]) add(k K, v V) {
	p.keys, p.values = append(p.keys, k), append(p.values, v)
}

// endpointOf is an address and port as the programs know it.
func endpointOf(at netip.AddrPort, p model.Protocol) (e bpfEndpoint) {
	ip := at.Addr().As16()
	for i := range e.Ip {
		e.Ip[i] = binary.NativeEndian.Uint32(ip[4*i:])
	}
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], at.Port())
	e.Port, e.Protocol = binary.NativeEndian.Uint16(port[:]), uint16(p)
	return e
}

// addrPort is the reverse of endpointOf.
func (e bpfEndpoint) addrPort() netip.AddrPort {
	var ip [16]byte
	for i, part := range e.Ip {
		binary.NativeEndian.PutUint32(ip[4*i:], part)
	}
	var port [2]byte
	binary.NativeEndian.PutUint16(port[:], e.Port)
	return netip.AddrPortFrom(netip.AddrFrom16(ip).Unmap(), binary.BigEndian.Uint16(port[:]))
}

func frontendAt(k state.FrontendKey) bpfEndpoint {
	return endpointOf(netip.AddrPortFrom(k.Addr, k.Port), k.Protocol)
}

// openTable reads what the maps hold already, of an agent before this one. What is there only in
// part, as of one that was killed in the midst of a change, is removed.
func openTable(maps *bpfMaps) (*table, error) {
	t := &table{maps: maps, frontends: map[bpfEndpoint]*entry{}}
	byID := map[uint32]*entry{}
	var c change
	err := each(maps.Frontends, func(at bpfEndpoint, f bpfFrontend) {
		e := &entry{id: f.Id, slots: make([]bpfEndpoint, f.Slots), serving: map[bpfEndpoint]bool{}}
		t.nextID = max(t.nextID, f.Id+1)
		if byID[f.Id] != nil {
			c.frontendsGone = append(c.frontendsGone, at)
			return
		}
		t.frontends[at], byID[f.Id] = e, e
	})
	err = errors.Join(err, each(maps.Slots, func(p bpfPage, has bpfEndpoints) {
		t.nextID = max(t.nextID, p.Frontend+1)
		if e := byID[p.Frontend]; e != nil && int(p.Number) < pages(len(e.slots)) {
			copy(e.slots[p.Number*perPage:], has.At[:])
		} else {
			c.slotsGone = append(c.slotsGone, p)
		}
	}), each(maps.Servings, func(s bpfServing, _ uint8) {
		if e := byID[s.Frontend]; e != nil {
			e.serving[s.At] = true
			t.serving++
		} else {
			c.servingsGone = append(c.servingsGone, s)
		}
	}))
	if err != nil {
		return nil, fmt.Errorf("read what an agent before this one left: %w", err)
	}
	for at, e := range t.frontends {
		t.pages += pages(len(e.slots))
		if slices.Contains(e.slots, bpfEndpoint{}) {
			t.remove(at, &c)
		}
	}
	return t, t.write(&c)
}

// each calls f with all elements of a map.
func each[K, V any](m *ebpf.Map, f func(K, V)) error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batch), make([]V, batch)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			f(keys[i], values[i])
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case err != nil:
			return err
		}
	}
}

// batch is how many elements are read at once. The kernel reads whole buckets, of few elements.
const batch = 4096

// set adds to the change what is different if a frontend is served as f says; nil: not here. It
// reports false if there is no room for it: it is not served here then.
func (t *table) set(k state.FrontendKey, f *state.Frontend, c *change) bool {
	at := frontendAt(k)
	e := t.frontends[at]
	if f == nil {
		if e != nil {
			t.remove(at, c)
		}
		return true
	}
	before, slots, serving := 0, 0, 0
	if e != nil {
		before, slots, serving = pages(len(e.slots)), len(e.slots), len(e.serving)
	}
	more := len(f.Serving)
	if k.Protocol != model.UDP {
		more = 0
	}
	if e == nil && len(t.frontends) >= room(t.maps.Frontends) || t.pages-before+pages(len(f.Backends)) > room(t.maps.Slots) || t.serving-serving+more > room(t.maps.Servings) {
		if e != nil {
			t.remove(at, c)
		}
		return false
	}
	if e == nil {
		e = &entry{id: t.nextID}
		t.frontends[at] = e
		t.nextID++
	}
	e.fill(k, f.Backends, c)
	if t.pages += pages(len(e.slots)) - before; len(e.slots) != slots {
		c.frontends.add(at, bpfFrontend{Id: e.id, Slots: uint32(len(e.slots))})
	}
	if k.Protocol == model.UDP {
		e.serve(k, f.Serving, c)
		t.serving += len(e.serving) - serving
	}
	return true
}

// perPage is how many slots are in an element of the map.
const perPage = uint32(len(bpfEndpoints{}.At))

// pages is how many elements so many slots take.
func pages(slots int) int { return (slots + int(perPage) - 1) / int(perPage) }

// putPage has the change write a page of the entry's slots.
func (e *entry) putPage(page int, c *change) {
	var has bpfEndpoints
	copy(has.At[:], e.slots[page*int(perPage):])
	c.slots.add(bpfPage{Frontend: e.id, Number: uint32(page)}, has)
}

// dropPages has the change remove pages.
func (e *entry) dropPages(from, to int, c *change) {
	for page := from; page < to; page++ {
		c.slotsGone = append(c.slotsGone, bpfPage{Frontend: e.id, Number: uint32(page)})
	}
}

// fill has the entry's slots hold the endpoints, each once. Pages that need not change stay.
func (e *entry) fill(k state.FrontendKey, endpoints []netip.AddrPort, c *change) {
	if len(e.slots) == 0 { // as at the start
		e.slots = make([]bpfEndpoint, len(endpoints))
		for i, b := range endpoints {
			e.slots[i] = endpointOf(b, k.Protocol)
		}
		for page := range pages(len(e.slots)) {
			e.putPage(page, c)
		}
		return
	}
	before := pages(len(e.slots))
	missing := make(map[bpfEndpoint]bool, len(endpoints))
	for _, b := range endpoints {
		missing[endpointOf(b, k.Protocol)] = true
	}
	var free []int
	for i, at := range e.slots {
		if missing[at] {
			delete(missing, at)
		} else {
			free = append(free, i)
		}
	}
	changed := map[int]bool{} // pages
	put := func(i int, at bpfEndpoint) { e.slots[i], changed[i/int(perPage)] = at, true }
	for at := range missing {
		if len(free) == 0 {
			e.slots = append(e.slots, at)
			free = append(free, len(e.slots)-1)
		}
		put(free[0], at)
		free = free[1:]
	}
	for len(free) > 0 { // fewer endpoints than before: the last ones take the places that are free
		last := len(e.slots) - 1
		if end := len(free) - 1; free[end] == last {
			free = free[:end]
		} else {
			put(free[0], e.slots[last])
			free = free[1:]
		}
		e.slots = e.slots[:last]
	}
	now := pages(len(e.slots))
	for page := range changed {
		if page < now {
			e.putPage(page, c)
		}
	}
	e.dropPages(now, before, c)
}

// serve has the entry's datagrams go on to the endpoints.
func (e *entry) serve(k state.FrontendKey, endpoints []netip.AddrPort, c *change) {
	now := make(map[bpfEndpoint]bool, len(endpoints))
	for _, b := range endpoints {
		at := endpointOf(b, k.Protocol)
		if now[at] = true; !e.serving[at] {
			c.servings.add(bpfServing{Frontend: e.id, At: at}, 1)
		}
	}
	for at := range e.serving {
		if !now[at] {
			c.servingsGone = append(c.servingsGone, bpfServing{Frontend: e.id, At: at})
		}
	}
	e.serving = now
}

func (t *table) remove(at bpfEndpoint, c *change) {
	e := t.frontends[at]
	delete(t.frontends, at)
	t.pages -= pages(len(e.slots))
	t.serving -= len(e.serving)
	c.frontendsGone = append(c.frontendsGone, at)
	e.dropPages(0, pages(len(e.slots)), c)
	for b := range e.serving {
		c.servingsGone = append(c.servingsGone, bpfServing{Frontend: e.id, At: b})
	}
}

// write has the maps follow a change. After an error they hold a part of it.
func (t *table) write(c *change) error {
	for _, step := range c.steps(t.maps) {
		if err := step(); err != nil {
			return fmt.Errorf("write maps: %w", err)
		}
	}
	return nil
}

// steps are the writes of a change, in their order.
func (c *change) steps(m *bpfMaps) []func() error {
	return []func() error{
		func() error { return put(m.Servings, c.servings) },
		func() error { return put(m.Slots, c.slots) },
		func() error { return put(m.Frontends, c.frontends) },
		func() error { return drop(m.Frontends, c.frontendsGone) },
		func() error { return drop(m.Slots, c.slotsGone) },
		func() error { return drop(m.Servings, c.servingsGone) },
	}
}

func put[K, V any](m *ebpf.Map, p puts[K, V]) error {
	if len(p.keys) == 0 {
		return nil
	}
	_, err := m.BatchUpdate(p.keys, p.values, nil)
	return err
}

func drop[K any](m *ebpf.Map, keys []K) error {
	for len(keys) > 0 {
		n, err := m.BatchDelete(keys, nil)
		if !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		keys = keys[n+1:] // this one has gone already
	}
	return nil
}

// room is how many elements of a map are used; the others are for changes, in which what comes is
// there before what goes has gone.
func room(m *ebpf.Map) int { return int(m.MaxEntries() - m.MaxEntries()/8) }
