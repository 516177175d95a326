package state

import (
	"maps"
	"net/netip"
	"reflect"

	"sluice.dev/sluice/internal/model"
)

// Farms is the part of the State that says what a balancer does: a farm is a virtual service.
type Farms struct {
	Farms map[string]*Farm           // by name
	Lists map[string]*model.FarmList // by name: those that a farm looks in, and no others
	// Devices are the indexes of the interfaces that packets from clients may arrive by.
	Devices map[int]struct{}
}

// Farm is a farm with the choices that the compiler has made. It is immutable once published.
type Farm struct {
	*model.Farm
	// Tables are the slots that a flow of each family (IPv4, IPv6) is led to; no slots: no backend
	// serves the family.
	Tables [2]FarmTable
	// Devices are, where the farm's mode is DSR, the indexes of the interfaces that lead to the
	// Backends, in their order; 0: the backend is on no network of this machine, and has no slots.
	Devices []int
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

// Table is the table of a family.
func (f *Farm) Table(is4 bool) FarmTable {
	if is4 {
		return f.Tables[0]
	}
	return f.Tables[1]
}

// Equal reports whether two farms ask for the same.
func (f *Farm) Equal(o *Farm) bool {
	return f == o || f != nil && o != nil && reflect.DeepEqual(f, o)
}

// NewFarms returns Farms without any.
func NewFarms() *Farms {
	return &Farms{Farms: map[string]*Farm{}, Lists: map[string]*model.FarmList{}, Devices: map[int]struct{}{}}
}

// FarmsDelta is a change of Farms.
type FarmsDelta struct {
	Farms   map[string]*Farm
	Lists   map[string]*model.FarmList
	Devices map[int]bool
}

// Len is the number of named changes.
func (d FarmsDelta) Len() int { return len(d.Farms) + len(d.Lists) + len(d.Devices) }

func (d *FarmsDelta) merge(later FarmsDelta) {
	d.Farms = merged(d.Farms, later.Farms)
	d.Lists = merged(d.Lists, later.Lists)
	d.Devices = merged(d.Devices, later.Devices)
}

// Apply changes f by d.
func (f *Farms) Apply(d FarmsDelta) {
	applyMap(f.Farms, d.Farms)
	applyMap(f.Lists, d.Lists)
	applySet(f.Devices, d.Devices)
}

// Clone returns a copy that Apply changes apart from f; nil of nil.
func (f *Farms) Clone() *Farms {
	if f == nil {
		return nil
	}
	return &Farms{Farms: maps.Clone(f.Farms), Lists: maps.Clone(f.Lists), Devices: maps.Clone(f.Devices)}
}

// Serves reports whether new connections may go to the backend: whether it has a slot.
func (f *Farm) Serves(backend int) bool {
	for _, t := range f.Tables {
		for _, s := range t.Slots {
			if int(s) == backend {
				return true
			}
		}
	}
	return false
}

// Each yields the addresses and protocols at which the farm is found, with each span of ports; an
// invalid address stands for all of the machine's.
func (f *Farm) Each(yield func(addr netip.Addr, is4 bool, p model.Protocol, ports model.PortSpan)) {
	for _, a := range f.Addresses {
		ports := a.Ports
		if len(ports) == 0 {
			ports = []model.PortSpan{{First: 0, Last: 65535}}
		}
		for _, p := range a.Protocols {
			for _, span := range ports {
				if a.IPv4 {
					yield(a.Addr, true, p, span)
				}
				if a.IPv6 {
					yield(a.Addr, false, p, span)
				}
			}
		}
	}
}
