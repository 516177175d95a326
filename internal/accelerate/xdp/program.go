package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
)

// program is one that can run, with maps of its own. They are as large as they were made: what no
// longer fits needs another program. Nothing that packets may be looking at is written over: what
// changes takes more room, and what it had is lost until then.
type program struct {
	Stages
	tracks                         bool // connection tracking is asked, which not every kernel lets a program do
	lists                          *lists
	objs                           bpfObjects
	farms, slots, backends, checks area
	counts, arrivals, failsafes    *ebpf.Memory
	judged                         map[int64]bool    // interfaces with lists
	counted                        uint32            // how many counts there are for a processor
	used                           uint32            // of them
	tables                         map[digest]uint32 // first slot
	targets                        map[target]uint32
	served                         map[string]*served
	checked                        map[string]uint32 // first check, by what they are
	listed                         map[string]uint32 // where what a list has dropped is counted
	// former is what backends had got, and lists had dropped, when they were last counted
	// elsewhere.
	former  map[driver.Backend]driver.Counts
	owners  map[place]string
	devices map[uint32]bpfDevice
	ways    map[uint32]bool
}

// served is what the program has of a farm.
type served struct {
	places []place
	names  []string // of the backends that are counted
	counts uint32
	lists  []string
}

// errFull means that a program has no room for something.
var errFull = errors.New("no room")

// area is an array of the kernel that is written here, value after value.
type area struct {
	memory     *ebpf.Memory
	used, room uint32
}

// add writes a value behind those that are there.
func add[T any](a *area, v T) (at uint32, err error) {
	if a.used == a.room {
		return 0, errFull
	}
	const align = 8 // as the kernel rounds sizes of values
	each := (int64(unsafe.Sizeof(v)) + align - 1) / align * align
	if _, err = a.memory.WriteAt(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), int64(a.used)*each); err != nil {
		return 0, err
	}
	a.used++
	return a.used - 1, nil
}

// size is how much there is of each kind.
type size struct {
	places4, places6, farms, slots, backends, counts, checks uint32
	devices                                                  uint32 // indexes up to that
}

// sizeOf is what farms take, where packets arrive.
func (of Stages) sizeOf(farms map[string]*state.Farm, arrivals map[int]arrival) (s size) {
	tables, targets, lists := map[digest]bool{}, map[target]bool{}, map[string]bool{}
	for _, f := range farms {
		all := of.halves(f)
		if len(all) > 0 {
			s.counts += uint32(len(f.Backends))
		}
		for _, h := range all {
			for _, p := range h.places {
				if p.addr.Is4() {
					s.places4++
				} else {
					s.places6++
				}
			}
			s.farms += uint32(len(h.places))
			if key := fmt.Sprint(h.is4, h.lists); len(h.lists) > 0 && !lists[key] {
				lists[key] = true
				s.checks += mostChecks
				s.counts += uint32(len(h.lists))
			}
			if d := h.digest(); !tables[d] {
				tables[d] = true
				s.slots += uint32(len(h.slots))
			}
			for _, t := range h.targets {
				targets[t] = true
			}
		}
	}
	for index, a := range arrivals {
		s.devices = max(s.devices, uint32(index)+1)
		if n := uint32(len(a.judges())); n > 0 {
			s.checks, s.counts = s.checks+2*mostChecks, s.counts+n
		}
	}
	s.backends = uint32(len(targets))
	return s
}

// spare is room for what has yet to come: as much as there is, and some more.
func spare(n uint32) uint32 { return 2*n + 1024 }

// newProgram loads a program with room for that much and as much again.
func newProgram(of Stages, l *lists, s size) (*program, error) {
	spec, err := loadBpf()
	if err != nil {
		return nil, err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count processors: %w", err)
	}
	p := &program{
		Stages: of, lists: l, checked: map[string]uint32{}, listed: map[string]uint32{}, judged: map[int64]bool{},
		counted: spare(s.counts), tables: map[digest]uint32{}, targets: make(map[target]uint32, s.backends), served: map[string]*served{}, owners: map[place]string{},
		devices: map[uint32]bpfDevice{}, ways: map[uint32]bool{},
	}
	for name, n := range map[string]uint32{
		bpfMapPlaces4: spare(s.places4), bpfMapPlaces6: spare(s.places6), bpfMapFarms: spare(s.farms), bpfMapSlots: spare(s.slots), bpfMapBackends: spare(s.backends),
		bpfMapChecks: spare(s.checks), bpfMapCounts: p.counted * uint32(cpus), bpfMapDevices: spare(s.devices), bpfMapArrivals: 2 * spare(s.devices), bpfMapWays: spare(s.devices),
	} {
		spec.Maps[name].MaxEntries = n
	}
	if err := errors.Join(spec.Variables[bpfVarCounted].Set(p.counted), spec.Variables[bpfVarWithDsr].Set(of.DSR), spec.Variables[bpfVarWithDrop].Set(of.Drop)); err != nil {
		return nil, err
	}
	members := map[string]*ebpf.Map{}
	for i, name := range []string{bpfMapMembers4, bpfMapMembers6} {
		if m := l.members[i]; m != nil {
			spec.Maps[name].MaxEntries, members[name] = m.MaxEntries(), m
		}
	}
	for _, p.tracks = range []bool{of.Drop, false} {
		if err = spec.Variables[bpfVarWithTracking].Set(p.tracks); err == nil {
			err = spec.LoadAndAssign(&p.objs, &ebpf.CollectionOptions{MapReplacements: members})
		}
		if err == nil || !p.tracks {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	for of, m := range map[*area]*ebpf.Map{&p.farms: p.objs.Farms, &p.slots: p.objs.Slots, &p.backends: p.objs.Backends, &p.checks: p.objs.Checks} {
		memory, err := m.Memory()
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		*of = area{memory: memory, room: m.MaxEntries()}
	}
	for of, m := range map[**ebpf.Memory]*ebpf.Map{&p.counts: p.objs.Counts, &p.arrivals: p.objs.Arrivals, &p.failsafes: p.objs.Failsafes} {
		if *of, err = m.Memory(); err != nil {
			return nil, errors.Join(err, p.close())
		}
	}
	return p, nil
}

func (p *program) close() error { return p.objs.Close() }

// changes are elements of maps that come and go.
type changes struct {
	keys4   []bpfPlace4
	keys6   []bpfPlace6
	values4 []uint32
	values6 []uint32
}

func (c *changes) add(at place, value uint32) {
	if at.addr.Is4() {
		c.keys4, c.values4 = append(c.keys4, bpfPlace4{Addr: words(at.addr)[0], Port: network(at.port), Protocol: uint8(at.proto)}), append(c.values4, value)
	} else {
		c.keys6, c.values6 = append(c.keys6, bpfPlace6{Addr: words(at.addr), Port: network(at.port), Protocol: uint8(at.proto)}), append(c.values6, value)
	}
}

// naming are these farms, and those that name any of the lists.
func (p *program) naming(farms, lists []string) []string {
	if len(lists) == 0 {
		return farms
	}
	for name, s := range p.served {
		if slices.ContainsFunc(s.lists, func(l string) bool { return slices.Contains(lists, l) }) && !slices.Contains(farms, name) {
			farms = append(farms, name)
		}
	}
	return farms
}

// withdraw has packets of farms go by the base.
func (p *program) withdraw(names []string) error {
	var gone changes
	for _, name := range names {
		if s := p.served[name]; s != nil {
			for _, at := range s.places {
				delete(p.owners, at)
				gone.add(at, 0)
			}
			s.places = nil
		}
	}
	var err4, err6 error
	if len(gone.keys4) > 0 {
		_, err4 = p.objs.Places4.BatchDelete(gone.keys4, nil)
	}
	if len(gone.keys6) > 0 {
		_, err6 = p.objs.Places6.BatchDelete(gone.keys6, nil)
	}
	return errors.Join(err4, err6)
}

// serve has packets of farms, which are withdrawn, be forwarded as they say. Its error may be
// errFull.
func (p *program) serve(farms map[string]*state.Farm) error {
	var come changes
	for name, f := range farms {
		if err := p.put(&come, name, f); err != nil {
			return err
		}
	}
	var err4, err6 error
	if len(come.keys4) > 0 {
		_, err4 = p.objs.Places4.BatchUpdate(come.keys4, come.values4, nil)
	}
	if len(come.keys6) > 0 {
		_, err6 = p.objs.Places6.BatchUpdate(come.keys6, come.values6, nil)
	}
	err := errors.Join(err4, err6)
	if errors.Is(err, unix.E2BIG) {
		return errFull
	}
	return err
}

func (p *program) put(come *changes, name string, f *state.Farm) error {
	all := p.halves(f)
	if len(all) == 0 {
		delete(p.served, name)
		return nil
	}
	s, err := p.count(name, f)
	if err != nil {
		return err
	}
	s.lists = f.Lists
	for _, h := range all {
		first, err := p.table(&h)
		if err != nil {
			return err
		}
		checks, checked, ok, err := p.checksOf(h.lists, h.is4)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		for _, at := range h.places {
			if _, taken := p.owners[at]; taken {
				continue // sources refuse such farms
			}
			number, err := add(&p.farms, bpfFarm{Addr: words(at.addr), Port: network(at.port), Protocol: uint8(at.proto), HashBy: uint8(h.by),
				First: first, Slots: uint32(len(h.slots)), Counts: s.counts, Checks: checks, Checked: checked})
			if err != nil {
				return err
			}
			p.owners[at] = name
			s.places = append(s.places, at)
			come.add(at, number)
		}
	}
	return nil
}

// checksOf finds the first check of lists, and how many there are. Not ok: too many.
func (p *program) checksOf(lists []string, is4 bool) (first, n uint32, ok bool, err error) {
	all, of, ok := p.lists.checks(lists, is4)
	if !ok || len(all) == 0 {
		return 0, 0, ok, nil
	}
	key := fmt.Sprint(all)
	if first, has := p.checked[key]; has {
		return first, uint32(len(all)), true, nil
	}
	first = p.checks.used
	for i, c := range all {
		at, has := p.listed[of[i]]
		if !has && c.Then != allowed {
			if at = p.used; p.used == p.counted {
				return 0, 0, false, errFull
			}
			p.listed[of[i]] = at
			p.used++
		}
		c.Counts = at
		if _, err := add(&p.checks, c); err != nil {
			return 0, 0, false, err
		}
	}
	p.checked[key] = first
	return first, uint32(len(all)), true, nil
}

// count finds where a farm's backends are counted: as long as they are the same, that is too.
func (p *program) count(name string, f *state.Farm) (*served, error) {
	var names []string
	for _, b := range f.Backends {
		names = append(names, b.Name)
	}
	s := p.served[name]
	if s == nil || !slices.Equal(s.names, names) {
		if p.counted-p.used < uint32(len(names)) {
			return nil, errFull
		}
		if s != nil {
			p.former = p.read()
		}
		s = &served{names: names, counts: p.used}
		p.served[name] = s
		p.used += uint32(len(names))
	}
	return s, nil
}

// table finds the first slot of a table, and makes it if there is none like it.
func (p *program) table(h *half) (first uint32, err error) {
	d := h.digest()
	if first, has := p.tables[d]; has {
		return first, nil
	}
	first = p.slots.used
	for _, index := range h.slots { // none is empty: packets do not draw
		slot := bpfSlot{Number: uint32(index)}
		if slot.Backend, err = p.backend(h.targets[index]); err != nil {
			return 0, err
		}
		if _, err := add(&p.slots, slot); err != nil {
			return 0, err
		}
	}
	p.tables[d] = first
	return first, nil
}

func (p *program) backend(t target) (number uint32, err error) {
	if number, has := p.targets[t]; has {
		return number, nil
	}
	number, err = add(&p.backends, bpfBackend{Addr: words(t.addr), Device: t.device})
	if err == nil {
		p.targets[t] = number
	}
	return number, err
}

// read returns what backends of farms that are served have got, and what lists have dropped, as of
// a backend without a farm.
func (p *program) read() map[driver.Backend]driver.Counts {
	all := make([]byte, p.counts.Size())
	_, _ = p.counts.ReadAt(all, 0) // it is memory
	sums := make(map[driver.Backend]driver.Counts, p.used)
	sum := func(of driver.Backend, at uint32) {
		n := p.former[of]
		for at := int(at); at < len(all)/countLength; at += int(p.counted) {
			n.Times += binary.NativeEndian.Uint64(all[at*countLength:])
			n.Bytes += binary.NativeEndian.Uint64(all[at*countLength+8:])
		}
		sums[of] = n
	}
	for name, s := range p.served {
		for i, backend := range s.names {
			sum(driver.Backend{Farm: name, Name: backend}, s.counts+uint32(i))
		}
	}
	for list, at := range p.listed {
		sum(driver.Backend{Name: list}, at)
	}
	return sums
}

const countLength = 16 // of a bpfCount

// equip has the program know interfaces: those with it, of which judge knows, and those that take
// frames.
func (p *program) equip(devices map[uint32]bpfDevice, ways map[uint32]bool) error {
	var errs []error
	for index, d := range devices {
		if p.devices[index] != d {
			errs = append(errs, p.objs.Devices.Put(index, d))
		}
	}
	for index := range p.devices {
		if _, has := devices[index]; !has {
			errs = append(errs, p.objs.Devices.Put(index, bpfDevice{}))
		}
	}
	for index := range ways {
		if !p.ways[index] {
			errs = append(errs, p.objs.Ways.Put(index, index))
		}
	}
	for index := range p.ways {
		if !ways[index] { // the kernel removes what is gone
			if err := p.objs.Ways.Delete(index); !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, err)
			}
		}
	}
	p.devices, p.ways = devices, ways
	return errors.Join(errs...)
}
