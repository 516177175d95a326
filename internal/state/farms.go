package state

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// Farms is the part of the State that says what a balancer does: a farm is a virtual service.
type Farms struct {
	Farms map[string]*Farm           // by name
	Lists map[string]*model.FarmList // by name: those that a farm looks in, and no others
	// Devices are the indexes of the interfaces that packets from clients may arrive by.
	Devices map[int]struct{}
	// Tunnels are the addresses of backends that get their packets in IPIP: see FarmTunnel.
	Tunnels map[netip.Addr]struct{}
}

// FarmTunnel is the interface that sends packets in IPIP to a backend with an IPv4 address. Its
// index, and with that its name, follow from the address, so that farms can be compiled, and a
// former agent's tunnels be found, without asking the kernel: they have all bits of the address but
// the first two, which no two backends of one network differ in.
func FarmTunnel(to netip.Addr) (index int, name string) {
	a := to.As4()
	index = tunnelIndexes | int(binary.BigEndian.Uint32(a[:])&(tunnelIndexes-1))
	return index, fmt.Sprintf("sluice-%08x", index)
}

// tunnelIndexes is the first index of tunnels: the kernel counts up from 1.
const tunnelIndexes = 1 << 30

// Farm is a farm with the choices that the compiler has made. It is immutable once published.
type Farm struct {
	*model.Farm
	// Tables are the slots that a flow of each family (IPv4, IPv6) is led to; no slots: no backend
	// serves the family.
	Tables [2]FarmTable
	// Devices are, where the farm's mode is DSR, the indexes of the interfaces that lead to the
	// Backends, in their order; 0: none does, and the backend has no slots.
	Devices []int
}

// Tunnelled reports whether the backend gets its packets in IPIP.
func (f *Farm) Tunnelled(backend int) bool {
	return f.Mode == model.DSR && f.Devices[backend] >= tunnelIndexes
}

// EachTunnel yields the addresses of the backends that get their packets in IPIP. A nil farm has
// none.
func (f *Farm) EachTunnel(yield func(netip.Addr)) {
	if f == nil {
		return
	}
	for i, b := range f.Backends {
		if f.Tunnelled(i) {
			yield(b.Addr)
		}
	}
}

// FarmTable is what a scheduler chooses from: slots, each of which leads to a backend. A weight is
// a number of slots.
type FarmTable struct {
	// Slots are indexes of Backends; Empty is a slot that leads nowhere, so that another one is to
	// be drawn. Slot 0 is never empty.
	Slots []int16
}

// Empty is a slot of a FarmTable that leads nowhere.
const Empty = -1

// CommonSlots is how many slots a farm of mode DSR has at single addresses and ports, if that is a
// multiple of those which its scheduler asks for. The slot of a packet is known before its farm
// then, so that drivers find its backend with one look-up. More slots would have more farms be so,
// but be slower than two look-ups where there are many farms.
const CommonSlots = 12

// Table is the table of a family.
func (f *Farm) Table(is4 bool) FarmTable {
	if is4 {
		return f.Tables[0]
	}
	return f.Tables[1]
}

// Finder returns a function that finds the index of the backend at an address and port, -1 if there
// is none. A backend without a port is at all of them.
func (f *Farm) Finder() func(netip.AddrPort) int {
	at := make(map[netip.AddrPort]int, len(f.Backends))
	for i, b := range slices.Backward(f.Backends) {
		at[netip.AddrPortFrom(b.Addr, b.Port)] = i
	}
	return func(to netip.AddrPort) int {
		i, found := at[to]
		if all, ok := at[netip.AddrPortFrom(to.Addr(), 0)]; ok && (!found || all < i) {
			return all
		}
		if !found {
			return -1
		}
		return i
	}
}

// PacketKey is what packets of a farm without connection tracking choose their slot by, each for
// itself: every packet of a flow has to come to the same one. SymHash is as good as any hash here,
// as answers do not choose, and the kernel would dissect each packet for it.
func (f *Farm) PacketKey() model.FlowKey {
	if f.Scheduler.Hashes() {
		return f.HashBy
	}
	return model.SrcIP | model.SrcPort
}

// Equal reports whether two farms ask for the same.
func (f *Farm) Equal(o *Farm) bool {
	return f == o || f != nil && o != nil && reflect.DeepEqual(f, o)
}

// NewFarms returns Farms without any.
func NewFarms() *Farms {
	return &Farms{Farms: map[string]*Farm{}, Lists: map[string]*model.FarmList{}, Devices: map[int]struct{}{}, Tunnels: map[netip.Addr]struct{}{}}
}

// FarmsDelta is a change of Farms.
type FarmsDelta struct {
	Farms   map[string]*Farm
	Lists   map[string]*model.FarmList
	Devices map[int]bool
	Tunnels map[netip.Addr]bool
}

// Len is the number of named changes.
func (d FarmsDelta) Len() int { return len(d.Farms) + len(d.Lists) + len(d.Devices) + len(d.Tunnels) }

// Apply changes f by d.
func (f *Farms) Apply(d FarmsDelta) {
	applyMap(f.Farms, d.Farms)
	applyMap(f.Lists, d.Lists)
	applySet(f.Devices, d.Devices)
	applySet(f.Tunnels, d.Tunnels)
}

// Clone returns a copy that Apply changes apart from f; nil of nil.
func (f *Farms) Clone() *Farms {
	if f == nil {
		return nil
	}
	return &Farms{Farms: maps.Clone(f.Farms), Lists: maps.Clone(f.Lists), Devices: maps.Clone(f.Devices), Tunnels: maps.Clone(f.Tunnels)}
}

// Serving are the backends that new connections may go to: those with a slot.
func (f *Farm) Serving() []bool {
	all := make([]bool, len(f.Backends))
	for _, t := range f.Tables {
		for _, s := range t.Slots {
			if s != Empty {
				all[s] = true
			}
		}
	}
	return all
}

// Serves reports whether new connections may go to the backend: whether it has a slot.
func (f *Farm) Serves(backend int) bool {
	slot := int16(backend)
	return slices.Contains(f.Tables[0].Slots, slot) || slices.Contains(f.Tables[1].Slots, slot)
}
