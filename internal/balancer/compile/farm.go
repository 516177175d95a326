// Package compile compiles the farms of a balancer: it chooses the backends that serve, and lays
// out the tables that schedulers choose from. It is pure: what comes of a farm depends on that farm
// alone.
package compile

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Compiler keeps the farms of the state in step with the store. It is not safe for concurrent use.
type Compiler struct {
	now     *state.Farms
	farms   diff.Map[string, state.Farm]
	lists   diff.Map[string, model.FarmList]
	devices diff.Set[int]
	tunnels diff.Set[netip.Addr]
	ipip    func() error
	links   model.Links
	users   map[string]int // of each list
	// unreached are farms with backends that no interface leads to though the mode needs it.
	unreached map[string]struct{}
}

// New returns a Compiler of no farms. Ipip is asked, where it is needed, why the kernel cannot send
// packets in IPIP; nil, or no error: it can.
func New(ipip func() error) *Compiler {
	now := state.NewFarms()
	return &Compiler{
		now: now, farms: diff.NewMap(now.Farms, (*state.Farm).Equal), users: map[string]int{}, unreached: map[string]struct{}{}, ipip: ipip,
		lists:   diff.NewMap(now.Lists, func(a, b *model.FarmList) bool { return a == b }),
		devices: diff.NewSet(now.Devices), tunnels: diff.NewSet(now.Tunnels),
	}
}

// Farms is the part of the state that the Compiler writes.
func (c *Compiler) Farms() *state.Farms { return c.now }

// SetLinks says what interfaces there are; the next Update follows. Packets from clients may arrive
// by each that has an address.
func (c *Compiler) SetLinks(l model.Links) {
	for _, i := range arrival(l) {
		c.devices.Add(i)
	}
	for _, i := range arrival(c.links) {
		c.devices.Remove(i)
	}
	moved := !slices.Equal(l.Routes, c.links.Routes) || !slices.Equal(l.Local, c.links.Local)
	c.links = l
	for name, f := range c.now.Farms {
		if moved && f.Mode == model.DSR {
			c.set(name, Compile(f.Farm, c.device))
		}
	}
}

// Update brings the state up to date with what is dirty and returns what changed.
func (c *Compiler) Update(v *store.View, d store.Dirty) state.FarmsDelta {
	for ref := range d.Refs([]model.Kind{model.FarmKind}) {
		f, _ := v.Object(ref).(*model.Farm)
		c.follow(v, ref.Name.Name, f)
	}
	for ref := range d.Refs([]model.Kind{model.FarmListKind}) {
		c.list(v, ref.Name.Name)
	}
	return state.FarmsDelta{Farms: c.farms.Flush(), Lists: c.lists.Flush(), Devices: c.devices.Flush(), Tunnels: c.tunnels.Flush()}
}

// follow compiles a farm, nil: it is gone, and counts the lists that it looks in.
func (c *Compiler) follow(v *store.View, name string, f *model.Farm) {
	var before, after []string
	if old := c.now.Farms[name]; old != nil {
		before = old.Lists
	}
	if f == nil {
		c.set(name, nil)
	} else {
		after = f.Lists
		c.set(name, Compile(f, c.device))
	}
	for _, l := range after {
		c.users[l]++
		c.list(v, l)
	}
	for _, l := range before {
		if c.users[l]--; c.users[l] == 0 {
			delete(c.users, l)
		}
		c.list(v, l)
	}
}

// set has the state have a farm; nil: none.
func (c *Compiler) set(name string, f *state.Farm) {
	f.EachTunnel(c.tunnels.Add)
	c.now.Farms[name].EachTunnel(c.tunnels.Remove)
	c.farms.Set(name, f)
	if f != nil && slices.Contains(f.Devices, 0) {
		c.unreached[name] = struct{}{}
	} else {
		delete(c.unreached, name)
	}
}

// list has the state have a list that is used.
func (c *Compiler) list(v *store.View, name string) {
	l, _ := v.Object(model.Ref{Kind: model.FarmListKind, Name: model.Name{Name: name}}).(*model.FarmList)
	if c.users[name] == 0 {
		l = nil
	}
	c.lists.Set(name, l)
}

// Compile makes of a farm what drivers carry out. Device says which interface leads to a backend,
// 0: none; farms of other modes than DSR do not ask.
func Compile(f *model.Farm, device func(netip.Addr) int) *state.Farm {
	out := &state.Farm{Farm: f}
	serving := Serving(f.Backends)
	if f.Mode == model.DSR {
		for i, b := range f.Backends {
			out.Devices = append(out.Devices, device(b.Addr))
			serving[i] = serving[i] && out.Devices[i] != 0
		}
	}
	for i, is4 := range []bool{true, false} {
		var all, up []member
		for n := range f.Backends {
			if b := &f.Backends[n]; b.Addr.Is4() == is4 {
				m := member{index: int16(n), weight: max(b.Weight, 1), key: b.Addr.String() + " " + b.Name}
				all = append(all, m)
				if serving[n] {
					up = append(up, m)
				}
			}
		}
		out.Tables[i] = state.FarmTable{Slots: slots(f, all, up)}
	}
	return out
}

// Serving says of each backend whether it gets new connections: it is up, and its priority does not
// exceed the level.
func Serving(backends []model.FarmBackend) []bool {
	level := model.Level(backends)
	serving := make([]bool, len(backends))
	for i, b := range backends {
		serving[i] = b.State == model.BackendUp && max(b.Priority, 1) <= level
	}
	return serving
}

// slots lays out the table of a farm's scheduler. A member that does not serve leaves its slots
// empty where the scheduler draws again, and to others where it hashes: a flow of one that serves
// stays where it is in both cases.
func slots(f *model.Farm, all, up []member) []int16 {
	if len(up) == 0 {
		return nil
	}
	scheduler := f.Scheduler
	if f.Mode.Stateless() && scheduler.Draws() {
		scheduler = model.Hash // each packet chooses anew, and has to come to the same
	}
	most := mostSlots
	if f.InRanges() {
		most = mostInRanges
	}
	switch scheduler {
	case model.Maglev:
		return maglev(maglevSize(len(all), f.InRanges()), all, up)
	case model.Hash, model.SymHash:
		table := interleave(shares(all, most))
		if f.Mode == model.DSR && !f.InRanges() {
			table = common(table)
		}
		return hashed(table, up)
	}
	return drawn(shares(all, most), up)
}
