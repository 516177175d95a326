package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// plan is a change of what the kernel has now. It makes tunnels, then sets peers and entries, those
// of VTEPs before routes, then removes entries in the opposite order, then tunnels.
type plan struct {
	d      *Driver
	want   *state.Fabric     // nil: the plan is of nothing
	delta  state.FabricDelta // of want
	update bool              // what the kernel refuses is an error: others may have changed what is there, as an adoption sees
	now    *kernel
	aside  map[any]aside
	before []before
	kept   int

	tunnels []tunnel
	peers   map[model.PublicKey]*state.Peer
	sets    [2][]entry // of VTEPs, and routes
	clears  [2][]entry
	gone    []string

	gonePeers []model.PublicKey
}

type tunnel struct {
	name string
	want *state.Tunnel
	anew bool // the device that there is can't become it, and goes with all that is on it
}

// tunnel plans a device of ours: want is nil where there is to be none.
func (p *plan) tunnel(name string, want *state.Tunnel, keep bool) {
	now := p.now.tunnels[name]
	switch {
	case want == nil && now == nil:
	case want == nil && keep:
		p.kept++
	case want == nil:
		p.gone = append(p.gone, name)
	case now == nil, !now.is(want):
		anew := now != nil && !now.canBecome(want)
		p.tunnels = append(p.tunnels, tunnel{name, want, anew})
		if anew {
			p.now.forget(name)
		}
	}
}

// set plans to set entries that are not there.
func (p *plan) set(entries map[any]entry) {
	for _, e := range entries {
		if !p.now.has(e) {
			p.sets[order(e)] = append(p.sets[order(e)], e)
		}
	}
}

// clear plans to remove an entry, unless an entry that is set takes its slot.
func (p *plan) clear(e entry, set map[any]entry, keep bool) {
	switch _, taken := set[e.slot()]; {
	case taken:
	case keep:
		p.kept++
	default:
		p.clears[order(e)] = append(p.clears[order(e)], e)
	}
}

func order(e entry) int {
	if _, is := e.(route); is {
		return 1
	}
	return 0
}

// Len implements driver.Plan.
func (p *plan) Len() int {
	return len(p.tunnels) + len(p.peers) + len(p.gonePeers) + len(p.sets[0]) + len(p.sets[1]) + len(p.clears[0]) + len(p.clears[1]) + len(p.gone)
}

// Kept implements driver.Plan.
func (p *plan) Kept() driver.Kept { return driver.Kept{Fabric: p.kept} }

// String implements driver.Plan.
func (p *plan) String() string {
	var b strings.Builder
	for _, t := range p.tunnels {
		verb := "set"
		if t.anew {
			verb = "replace"
		}
		fmt.Fprintf(&b, "%s device %s: %s from %s, address %s, MTU %d\n", verb, t.name, t.want.Encapsulation, t.want.Local, t.want.Address, t.want.MTU)
	}
	p.printPeers(&b)
	for _, sets := range p.sets {
		printEntries(&b, "set", sets)
	}
	for i := range p.clears {
		printEntries(&b, "remove", p.clears[len(p.clears)-1-i])
	}
	for _, key := range p.gonePeers {
		fmt.Fprintf(&b, "remove peer %s dev %s\n", key, state.DeviceWG)
	}
	for _, name := range p.gone {
		fmt.Fprintf(&b, "remove device %s\n", name)
	}
	return b.String()
}

// printEntries writes a line for each entry, sorted.
func printEntries(b *strings.Builder, verb string, entries []entry) {
	texts := make([]string, len(entries))
	for i, e := range entries {
		texts[i] = e.String()
	}
	slices.Sort(texts)
	for _, text := range texts {
		fmt.Fprintf(b, "%s %s\n", verb, text)
	}
}

// Apply implements driver.Plan.
func (p *plan) Apply(ctx context.Context) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if err := ctx.Err(); err != nil || p.want == nil {
		return err
	}
	d := p.d
	p.want.Apply(p.delta)
	d.want, d.now, d.aside, d.before = p.want, p.now, p.aside, p.before
	if err := p.makeTunnels(); err != nil {
		return err
	}
	if err := p.setPeers(); err != nil {
		return err
	}
	for _, entries := range p.sets {
		if err := p.setEntries(entries); err != nil {
			return err
		}
	}
	for i := range p.clears {
		if err := p.clearEntries(p.clears[len(p.clears)-1-i]); err != nil {
			return err
		}
	}
	if err := p.clearPeers(); err != nil {
		return err
	}
	for _, name := range p.gone {
		if err := d.removeTunnel(name); err != nil {
			return err
		}
		d.now.forget(name)
		delete(d.aside, name)
	}
	return d.judge()
}

func (p *plan) makeTunnels() error {
	d := p.d
	for _, t := range p.tunnels {
		if t.anew {
			if err := d.removeTunnel(t.name); err != nil {
				return err
			}
		}
		dev, err := d.makeTunnel(t.name, d.now.tunnels[t.name], t.want)
		if err != nil && (p.update || !isRefusal(err)) {
			return fmt.Errorf("device %s: %w", t.name, err)
		}
		delete(d.aside, t.name)
		if err != nil {
			a := driver.SetAside{Kind: "device", Name: model.Name{Name: t.name}, InForce: model.InForceNothing, Reason: err.Error() + "; no pods of other nodes are reached through it"}
			if dev != nil {
				a.InForce, a.Reason = model.InForceRest, a.Reason+" by IPv6"
			}
			other := ""
			if rival, is := errors.AsType[*rivalError](err); is {
				other = rival.device
			}
			d.aside[t.name] = aside{a, other}
		}
		if dev == nil {
			d.now.forget(t.name)
			continue
		}
		d.now.tunnels[t.name], d.now.names[dev.index] = dev, t.name
		if err := d.judgeOthers(dev.index); err != nil {
			return err
		}
	}
	return nil
}

// isRefusal tells what the kernel will say again of the same from what has to do with this process
// or this moment.
func isRefusal(err error) bool {
	for _, other := range []error{unix.EPERM, unix.EACCES, unix.ENOBUFS, unix.ENOMEM, unix.EINTR, unix.EAGAIN, unix.EBUSY} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
}

// setEntries sets entries, and sets aside those that the kernel refuses.
func (p *plan) setEntries(entries []entry) error {
	now := p.d.now
	before := make([]entry, len(entries)) // in the slots; nil: nothing
	for i, e := range entries {
		before[i] = now.entries[e.slot()]
		now.entries[e.slot()] = e // so that what is heard of our own changes is no surprise
	}
	failed, err := p.request(entries, func(i, device int) message { return entries[i].request(true, before[i] != nil, device) })
	if err != nil {
		return err
	}
	var stale []entry // what stands in slots of refused entries is not wanted
	for i, e := range entries {
		err, refused := failed[i]
		switch {
		case !refused:
			delete(p.d.aside, e.slot())
			continue
		case !isRefusal(err), p.update && !errors.Is(err, errNoTunnel):
			return fmt.Errorf("set %s: %w", e, err)
		}
		if delete(now.entries, e.slot()); before[i] != nil {
			stale = append(stale, before[i])
		}
	}
	err = p.clearEntries(stale)
	for i, why := range failed {
		p.d.setAside(entries[i], why)
	}
	return err
}

// clearEntries removes entries. Those that are gone already count as removed.
func (p *plan) clearEntries(entries []entry) error {
	if len(entries) == 0 {
		return nil
	}
	for _, e := range entries {
		if delete(p.d.aside, e.slot()); p.d.now.has(e) {
			delete(p.d.now.entries, e.slot())
		}
	}
	failed, err := p.request(entries, func(i, device int) message { return entries[i].request(false, false, device) })
	if err != nil {
		return err
	}
	for i, err := range failed {
		gone := errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, errNoTunnel)
		if !gone && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove %s: %w", entries[i], err)
		}
	}
	return nil
}

// request sends a request for each entry, and returns what became of those that failed.
func (p *plan) request(entries []entry, of func(i, device int) message) (failed map[int]error, err error) {
	index := p.d.indexes()
	requests, asked := make([]message, 0, len(entries)), make([]int, 0, len(entries))
	failed = map[int]error{}
	for i, e := range entries {
		device := 0
		if e.on() != "" {
			if device, err = index(e); err != nil {
				failed[i] = err
				continue
			}
		}
		requests, asked = append(requests, of(i, device)), append(asked, i)
	}
	answers, err := p.d.socket.change(requests, p.d.listen)
	for i, answer := range answers {
		failed[asked[i]] = answer
	}
	return failed, err
}

// indexes finds the devices of entries, each once.
func (d *Driver) indexes() func(entry) (int, error) {
	known := map[string]int{}
	return func(e entry) (int, error) {
		name := e.on()
		if _, aside := d.aside[name]; aside && (d.now.tunnels[name] == nil || needsIPv6(e)) {
			return 0, errNoTunnel
		}
		if index, ok := known[name]; ok {
			return index, nil
		}
		l, err := d.links.LinkByName(name)
		if err != nil {
			return 0, fmt.Errorf("find device %s: %w", name, err)
		}
		known[name] = l.Attrs().Index
		d.now.names[l.Attrs().Index] = name
		return known[name], nil
	}
}

// errNoTunnel: the device of an entry was set aside itself, or its IPv6, which says it for all.
var errNoTunnel = errors.New("the tunnel's device was set aside")

// setAside notes that the kernel does not take an entry.
func (d *Driver) setAside(e entry, err error) {
	kind, name, _ := strings.Cut(e.String(), " ")
	a := driver.SetAside{Kind: kind, Name: model.Name{Name: name}, InForce: model.InForceNothing, Reason: err.Error()}
	switch {
	case errors.Is(err, errNoTunnel):
		a = d.aside[e.on()].SetAside // which says it for all
	case errors.Is(err, unix.EEXIST):
		a.Reason = "another program has a route to the same prefix with the same metric"
		for _, b := range d.before {
			if b.slot() == e.slot() {
				a.Reason += ": " + b.text
			}
		}
		a.Reason += "; remove it"
	}
	d.aside[e.slot()] = aside{a, e.on()}
}

// aside is what is set aside, and what device it is about.
type aside struct {
	driver.SetAside
	device string
}
