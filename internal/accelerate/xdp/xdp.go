// Package xdp serves farms before nftables does, in one program for each network interface, which
// the kernel asks about each frame that arrives (XDP). What it does is what the base would do, and
// all that it does not know, or that is not plain, goes on to that. So nothing depends on it: where
// it is late, full, or not there, packets take longer.
//
// Before the base changes, farms that the change is about are withdrawn from the program; it has
// them again once the base holds them. A process that is killed in between leaves them to the base.
package xdp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/bpf"
	netlink "sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/state"
)

// Base is a driver of farms, whose Driver is one, too.
type Base interface {
	driver.Driver
	// Traffic returns what backends have got. Safe for concurrent use.
	Traffic(ctx context.Context) (map[driver.Backend]driver.Traffic, error)
}

// Options configure the Driver.
type Options struct {
	Log *slog.Logger // nil: slog.Default()
	Stages
}

// Driver adds the program to a driver of farms, or of policy. It implements driver.Driver, and owns
// the driver that it wraps. What fails is said by Status, and never an error.
type Driver struct {
	driver.Driver
	here    *netns.NS
	pins    bpf.Folder
	options Options

	mu      sync.Mutex
	lists   *lists
	program *program          // nil: none runs
	links   map[int]link.Link // by interface
	left    map[int]left      // interfaces that are left to the base
	shut    []string          // interfaces that lead to backends and take no frames from programs
	why     string            // nothing is accelerated, though something could be
	work    work
	// Of a node's work: what doNotTrack policies deny, and whether there have been source ranges.
	// The program stays where these are looked up, as some network cards begin anew with it: no
	// Service that comes and goes is to have them do so again and again.
	policies  policies
	restricts bool
	unsure    bool // the base may hold policies that the state lacks
}

// left is an interface that is left to the base, as it was, and why.
type left struct {
	netlink.Card
	why string
}

var _ driver.Driver = (*Driver)(nil)

// Open gives a driver the program, in the calling thread's network namespace, where the driver has
// to be. If it fails, the driver is closed.
func Open(of driver.Driver, o Options) (*Driver, error) {
	o.Log = cmp.Or(o.Log, slog.Default())
	d := &Driver{Driver: of, options: o, lists: newLists(), links: map[int]link.Link{}, left: map[int]left{}, work: work{farms: map[string]*state.Farm{}, lists: map[string]*list{}}}
	var err error
	if d.here, err = netns.OpenPath("/proc/thread-self/ns/net"); err != nil {
		return nil, errors.Join(err, of.Close())
	}
	if d.pins, err = bpf.Own(bpf.XDP); err != nil {
		return nil, errors.Join(err, d.here.Close(), of.Close())
	}
	return d, nil
}

// Probe reports whether this kernel and these privileges suffice for stages, and changes nothing.
// Whether an interface does is another question, see Unfit.
func Probe(of Stages) error {
	p, err := newProgram(of, newLists(), size{})
	if err != nil {
		return err
	}
	return p.close()
}

// Remove removes what a Driver has left in the calling thread's network namespace.
func Remove() error {
	pins, err := bpf.Own(bpf.XDP)
	if err != nil {
		return err
	}
	return pins.Remove()
}

// Close closes the driver. The program goes on, as the base does.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(d.release(), d.lists.close(), d.here.Close(), d.Driver.Close())
}

// release closes what is open of the program.
func (d *Driver) release() (err error) {
	for _, l := range d.links {
		err = errors.Join(err, l.Close())
	}
	clear(d.links)
	clear(d.left)
	if d.program != nil {
		err = errors.Join(err, d.program.close())
	}
	d.program = nil
	return err
}

// Purge implements driver.Driver.
func (d *Driver) Purge(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stop("")
	return errors.Join(d.lists.close(), d.pins.Remove(), d.Driver.Purge(ctx))
}

// Status says how it fares. Safe for concurrent use.
func (d *Driver) Status() driver.Accelerator {
	dropped := d.dropped()
	d.mu.Lock()
	defer d.mu.Unlock()
	var lines []string
	for _, index := range slices.Sorted(maps.Keys(d.left)) {
		lines = append(lines, fmt.Sprintf("not at %s: %s", d.left[index].Name, d.left[index].why))
	}
	for _, name := range d.shut {
		lines = append(lines, fmt.Sprintf("not out of %s: it takes no frames from programs, as far as the kernel tells", name))
	}
	if d.program != nil && !d.program.tracks && d.restricts {
		lines = append(lines, "source ranges are left to the base: a program cannot ask this kernel's connection tracking")
	}
	for _, list := range slices.Sorted(maps.Keys(dropped)) {
		lines = append(lines, fmt.Sprintf("%d packets dropped by %s", dropped[list], list))
	}
	return driver.Accelerator{Name: d.options.String(), Off: d.why, Note: strings.Join(lines, "; ")}
}

// Traffic implements Base.
func (d *Driver) Traffic(ctx context.Context) (map[driver.Backend]driver.Traffic, error) {
	all, err := d.Driver.(Base).Traffic(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.program == nil {
		return all, nil
	}
	for of, n := range d.program.read() {
		if sum, known := all[of]; known {
			sum.Chosen, sum.TotalChosen, sum.TotalBytes = sum.Chosen+n.Times, sum.TotalChosen+n.Times, sum.TotalBytes+n.Bytes
			all[of] = sum
		}
	}
	return all, nil
}

// Capabilities implements driver.Driver. What both drop is counted together.
func (d *Driver) Capabilities() driver.Capabilities {
	c := d.Driver.Capabilities()
	if c.Counter != nil {
		c.Counter = counter{c.Counter, d}
	}
	return c
}

// counter counts what the program drops, too.
type counter struct {
	driver.Counter
	d *Driver
}

// DropCounts implements driver.Counter.
func (c counter) DropCounts(ctx context.Context) (map[state.Drop]uint64, error) {
	counts, err := c.Counter.DropCounts(ctx)
	if err != nil {
		return nil, err
	}
	for list, n := range c.d.dropped() {
		counts[reason(list)] += n
	}
	return counts, nil
}

// PolicyCounters implements driver.Counter.
func (c counter) PolicyCounters(ctx context.Context) ([]driver.PolicyCounter, error) {
	counts, err := c.Counter.PolicyCounters(ctx)
	dropped := c.d.dropped()
	for i := range counts {
		counts[i].Denied += dropped[counts[i].Policy.String()]
	}
	return counts, err
}

// dropped is how many packets lists have dropped in the program.
func (d *Driver) dropped() map[string]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[string]uint64{}
	if d.program != nil {
		sums := d.program.read()
		for list := range d.program.listed {
			all[list] = sums[driver.Backend{Name: list}].Times
		}
	}
	return all
}

// Adopt implements driver.Driver.
func (d *Driver) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	p, err := d.Driver.Adopt(ctx, want, keep)
	if err != nil || want.Farms == nil && want.Policy == nil && want.Services == nil {
		return p, err
	}
	about := &plan{Plan: p, d: d, all: true, unsure: d.unsure}
	if want.Policy != nil {
		about.unsure = p.Kept().Policy > 0
	}
	return about, nil
}

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	p, err := d.Driver.Update(ctx, delta)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	about := &plan{Plan: p, d: d, farms: slices.Collect(maps.Keys(delta.Farms.Farms)), lists: slices.Collect(maps.Keys(delta.Farms.Lists)),
		devices: len(delta.Farms.Devices)+len(delta.Policy.HostDevices) > 0, denied: delta.Policy.Denied != nil, hosts: len(delta.Policy.Hosts) > 0}
	for id := range delta.Policy.Lists {
		_, uses := d.policies.uses[id]
		about.hosts = about.hosts || uses
	}
	for k, f := range delta.Services.Frontends {
		if d.restricted(k, f) {
			about.frontends = append(about.frontends, k)
		}
	}
	return about, nil
}

// Tampered implements driver.Driver. It follows interfaces, too.
func (d *Driver) Tampered(ctx context.Context) (bool, error) {
	d.mu.Lock()
	if d.program != nil {
		d.attach(d.program)
	}
	d.mu.Unlock()
	return d.Driver.Tampered(ctx)
}

// plan is a plan of the base's, with the farms that it may change.
type plan struct {
	driver.Plan
	d         *Driver
	farms     []string
	lists     []string
	frontends []state.FrontendKey // with other source ranges
	devices   bool                // it may change where they are served
	denied    bool                // it may change deny lists
	hosts     bool                // it may change doNotTrack policies
	all       bool                // it adopts: it may change any
	unsure    bool                // see Driver.unsure
}

// idle reports whether it changes nothing that the program knows.
func (p *plan) idle() bool {
	return len(p.farms)+len(p.lists)+len(p.frontends) == 0 && !p.devices && !p.denied && !p.hosts && !p.all
}

// Apply implements driver.Plan.
func (p *plan) Apply(ctx context.Context) error {
	if p.idle() {
		return p.Plan.Apply(ctx)
	}
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case p.all && p.Len() > 0:
		d.stop("")
	case d.program != nil:
		for _, k := range p.frontends {
			p.farms = append(p.farms, k.String())
		}
		p.farms = d.program.naming(p.farms, p.lists)
		err := d.program.withdraw(p.farms)
		if p.denied || p.hosts {
			err = errors.Join(err, d.program.judge(nil, d.policies.failsafes[:]))
		}
		if err != nil {
			d.stop(err.Error())
		}
	}
	if err := p.Plan.Apply(ctx); err != nil {
		return err // the farms stay withdrawn until the base is adopted
	}
	d.unsure = d.unsure && !p.all || p.unsure
	d.Held(func(held *state.State) {
		if held.Farms == nil {
			d.node(p, held)
		} else {
			d.balance(held.Farms)
		}
		if err := d.step(p); err != nil {
			d.options.Log.Warn("packets are not accelerated", "error", err)
			d.stop(bpf.Missing(err))
		}
	})
	return nil
}

// balance has the work be what a balancer holds.
func (d *Driver) balance(held *state.Farms) {
	d.work = work{farms: held.Farms, lists: map[string]*list{}, arrivals: map[int]arrival{}}
	for name, l := range held.Lists {
		d.work.lists[name] = farmList(l)
	}
	for _, f := range held.Farms {
		if len(d.options.halves(f)) > 0 {
			for index := range held.Devices {
				d.work.arrivals[index] = arrival{serves: true}
			}
			return
		}
	}
}

// step brings the program in step with the work that a plan is about. Another one is made where
// there is none, or it has no room, or all may differ.
func (d *Driver) step(p *plan) error {
	if len(d.work.arrivals) == 0 {
		return d.renew()
	}
	err := d.stepLists(p)
	if err == nil && d.program != nil && !p.all {
		some := make(map[string]*state.Farm, len(p.farms))
		for _, name := range p.farms {
			some[name] = d.work.farms[name]
		}
		if err = d.program.serve(some); err == nil {
			err = d.program.judge(d.work.arrivals, d.policies.failsafes[:])
		}
		if err == nil && (p.devices || p.denied || p.hosts || len(p.frontends) > 0) {
			d.attach(d.program)
		}
		if !errors.Is(err, errFull) {
			return err
		}
	}
	if err != nil && !errors.Is(err, errFull) {
		return err
	}
	return d.renew()
}

// stepLists brings the maps of lists in step. With errFull, other maps have taken their place.
func (d *Driver) stepLists(p *plan) error {
	if !d.options.Drop {
		return nil
	}
	names := p.lists
	if p.all {
		names = slices.Concat(slices.Collect(maps.Keys(d.work.lists)), slices.Collect(maps.Keys(d.lists.held)))
	}
	err := d.lists.follow(d.work.lists, names)
	if errors.Is(err, errFull) {
		err = cmp.Or(d.lists.anew(d.work.lists), errFull)
	}
	return err
}

// renew puts another program with all of the work in the place of what runs, if there is any.
func (d *Driver) renew() error {
	d.why = ""
	if len(d.work.arrivals) == 0 {
		d.stop("")
		return d.lists.close()
	}
	s := d.options.sizeOf(d.work.farms, d.work.arrivals)
	if err := d.pins.Make(); err != nil {
		return err
	}
	next, err := newProgram(d.options.Stages, d.lists, s)
	if err != nil {
		return err
	}
	if err = next.serve(d.work.farms); err == nil {
		err = next.judge(d.work.arrivals, d.policies.failsafes[:])
	}
	if err != nil {
		return errors.Join(err, next.close())
	}
	clear(d.left)
	if d.attach(next); d.program == nil {
		d.program = next
		return nil
	}
	next.former = d.program.read()
	err = d.program.close()
	d.program = next
	return err
}

// stop leaves everything to the base; why: to people, if something could be accelerated.
func (d *Driver) stop(why string) {
	for _, l := range d.links { // at once: what was pinned goes a moment later
		_ = l.Detach()
	}
	if err := errors.Join(d.release(), d.pins.Remove()); err != nil {
		d.options.Log.Warn("cannot remove the program that packets are accelerated by", "error", err)
	}
	d.why = why
}

// routesAsked is how many routes to backends on other networks are asked for at a time, so that it
// costs the same however many there are.
const routesAsked = 16

// attach has a program be asked at all interfaces at which farms are served, and at no others.
func (d *Driver) attach(p *program) {
	if err := d.here.Do(func() error { return d.attachHere(p) }); err != nil {
		d.options.Log.Warn("cannot follow interfaces to accelerate packets at", "error", err)
	}
}

func (d *Driver) attachHere(p *program) error {
	cards, err := netlink.Here.Cards()
	if err != nil {
		return err
	}
	devices, ways := map[uint32]bpfDevice{}, map[uint32]bool{}
	for index, c := range cards {
		if a, here := d.arrives(index, c); here && Unfit(c) == "" && (a.serves || len(a.policies) > 0) {
			devices[uint32(index)] = bpfDevice{Mac: c.MAC, Returns: number(c.ReturnsFrames), Serves: number(a.serves)}
		}
		if c.TakesFrames && p.DSR {
			ways[uint32(index)] = true
		}
	}
	if err := p.equip(devices, ways); err != nil {
		return err
	}
	d.shut = d.shut[:0]
	asked := 0
	for t := range p.targets {
		index := int(t.device)
		if index == 0 && asked < routesAsked {
			asked++
			way, _ := netlink.Here.Route(t.addr) // there may be none
			index = way.Link
		}
		c, here := cards[index]
		_, in := d.links[index]
		if here && !c.TakesFrames && !(in && c.ReturnsFrames) && !slices.Contains(d.shut, c.Name) {
			d.shut = append(d.shut, c.Name)
		}
	}
	slices.Sort(d.shut)
	for index, c := range cards {
		_, here := d.arrives(index, c)
		switch l := d.links[index]; {
		case !here:
			d.detach(index, p)
		case Unfit(c) != "":
			d.detach(index, p)
			d.left[index] = left{c, Unfit(c)}
		case l == nil && d.left[index].Card == c: // as before
		case l == nil || p != d.program:
			d.run(p, index, c)
		}
	}
	for index := range d.links {
		if _, here := cards[index]; !here {
			d.detach(index, p)
		}
	}
	return nil
}

// arrives returns what there is to do at an interface, if there is anything. Of what comes to IP by
// another one, or by no wire, a node drops only what deny lists do.
func (d *Driver) arrives(index int, c netlink.Card) (a arrival, is bool) {
	a = d.work.arrivals[index]
	if a.node && !c.Wire {
		a = arrival{denies: a.denies}
	}
	return a, a.serves || a.denies || len(a.policies) > 0
}

// Unfit says why packets that arrive by an interface are left to the base; "": they need not be.
func Unfit(c netlink.Card) string {
	switch {
	case c.MAC == [6]byte{}:
		return "it is no Ethernet"
	case c.Bond:
		return "it is a bond, whose packets arrive by its ports"
	case c.IPVLANs:
		return "others are made of it by ipvlan, which have its Ethernet address"
	case c.VLANs:
		return "it has VLANs, whose tags the network card may have taken off packets"
	}
	return ""
}

func number(yes bool) uint8 {
	if yes {
		return 1
	}
	return 0
}

// detach has no program run at an interface. What another process may have left there is looked for
// only when a program is new.
func (d *Driver) detach(index int, p *program) {
	delete(d.left, index)
	l := d.links[index]
	if l == nil && p == d.program {
		return
	}
	err := d.pins.Detach(bpf.At(index))
	if l != nil {
		_ = l.Detach() // it has gone with its interface, or goes with its pin
		err = errors.Join(err, l.Close())
	}
	if delete(d.links, index); err != nil {
		d.options.Log.Warn("cannot take a program off an interface", "index", index, "error", err)
	}
}

// run has a program run at an interface, in the place of ours that may run there.
func (d *Driver) run(p *program, index int, c netlink.Card) {
	l, err := d.pins.Attach(bpf.At(index), p.objs.Accelerate, func() (link.Link, error) {
		return link.AttachXDP(link.XDPOptions{Program: p.objs.Accelerate, Interface: index, Flags: link.XDPDriverMode})
	})
	if was := d.links[index]; was != nil { // the same link, or one of an interface that is gone
		err = errors.Join(err, was.Close())
		delete(d.links, index)
	}
	if err == nil {
		d.links[index] = l
		delete(d.left, index)
		return
	}
	why := bpf.Missing(err)
	switch {
	case errors.Is(err, unix.EBUSY):
		why = "another program's XDP program is there"
	case errors.Is(err, unix.EOPNOTSUPP):
		why = "its driver does not run XDP programs"
	case errors.Is(err, unix.ERANGE), errors.Is(err, unix.EINVAL):
		why = "its driver does not run XDP programs as it is set, such as with its MTU, or its number of queues: " + err.Error()
	}
	d.left[index] = left{c, why}
	d.options.Log.Warn("packets are not accelerated at an interface", "interface", c.Name, "error", err)
}
