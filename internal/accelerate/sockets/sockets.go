// Package sockets serves Services at the socket: a program of ours has each socket of the node and
// of its pods that connects or sends to a Service get an endpoint's address right away. Its packets
// are translated nowhere, and cost what they cost without a Service.
//
// It works beside a driver that serves the same Services in packets, and serves what sockets have
// not been given: other nodes' packets, Services with session affinity or source ranges, sockets of
// pods whose network namespace is not known, and all while this is off.
package sockets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/bpf"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Name is what this accelerator is called.
const Name = "sockets"

// Driver adds this accelerator to a driver. It implements driver.Driver, and owns the driver that
// it wraps.
type Driver struct {
	driver.Driver
	log    *slog.Logger
	folder bpf.Folder
	here   *netns.NS
	maps   bpfObjects
	links  []link.Link
	ender  *ender
	owners *owners
	stop   context.CancelFunc

	mu       sync.Mutex                             // of what follows
	usable   map[state.FrontendKey][]netip.AddrPort // endpoints to which sockets may stay connected
	table    *table                                 // nil: what the maps hold is not known
	why      string                                 // it is off
	unserved map[state.FrontendKey]struct{}         // those for which there is no room
	instead  string                                 // why nothing is served here, though it could be
	local    map[netip.Addr]bool                    // addresses of the node
	adopted  bool
	purged   bool
}

// Open gives a driver this accelerator, in the calling thread's network namespace, where the driver
// has to be. Where the kernel or the rights do not suffice it is off, and Status says why. log
// receives what happens in the background.
func Open(of driver.Driver, log *slog.Logger) *Driver {
	d := &Driver{Driver: of, log: log.With("accelerator", Name), stop: func() {}, usable: map[state.FrontendKey][]netip.AddrPort{}, unserved: map[state.FrontendKey]struct{}{}}
	if err := d.open(); err != nil {
		d.why = bpf.Missing(err)
		d.release()
		// What an earlier agent left would serve endpoints that are gone.
		if err := d.folder.Remove(); err != nil {
			d.log.Error("what an earlier agent left at sockets goes on to serve endpoints that may be gone", "error", err)
		}
		d.owners, d.ender = nil, nil
	}
	return d
}

// Probe reports whether this kernel and these privileges suffice, and changes nothing.
func Probe() error {
	if err := mayMoveSockets(); err != nil {
		return err
	}
	group, err := bpf.Cgroup()
	if err != nil {
		return err
	}
	defer func() { _ = group.Close() }()
	spec, err := loadBpf()
	if err != nil {
		return err
	}
	for _, m := range spec.Maps {
		m.Pinning, m.MaxEntries = ebpf.PinNone, min(m.MaxEntries, 1)
	}
	var objs bpfObjects
	if err := spec.LoadAndAssign(&objs, nil); err != nil {
		return err
	}
	return objs.Close()
}

func (d *Driver) open() (err error) {
	if d.here, err = netns.OpenPath("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	if d.folder, err = bpf.Own(Name); err != nil {
		return err
	}
	if err := mayMoveSockets(); err != nil {
		return err
	}
	group, err := bpf.Cgroup()
	if err != nil {
		return err
	}
	defer func() { _ = group.Close() }()
	if err := d.folder.Make(); err != nil {
		return err
	}
	spec, err := loadBpf()
	if err != nil {
		return err
	}
	if err := d.folder.Load(spec, &d.maps, ebpf.ProgramOptions{}); err != nil {
		return err
	}
	for name, at := range map[string]struct {
		program *ebpf.Program
		hook    ebpf.AttachType
	}{
		"connect4-link":     {d.maps.Connect4, ebpf.AttachCGroupInet4Connect},
		"connect6-link":     {d.maps.Connect6, ebpf.AttachCGroupInet6Connect},
		"sendmsg4-link":     {d.maps.Sendmsg4, ebpf.AttachCGroupUDP4Sendmsg},
		"sendmsg6-link":     {d.maps.Sendmsg6, ebpf.AttachCGroupUDP6Sendmsg},
		"recvmsg4-link":     {d.maps.Recvmsg4, ebpf.AttachCGroupUDP4Recvmsg},
		"recvmsg6-link":     {d.maps.Recvmsg6, ebpf.AttachCGroupUDP6Recvmsg},
		"getpeername4-link": {d.maps.Getpeername4, ebpf.AttachCgroupInet4GetPeername},
		"release-link":      {d.maps.Release, ebpf.AttachCgroupInetSockRelease},
		"getpeername6-link": {d.maps.Getpeername6, ebpf.AttachCgroupInet6GetPeername},
	} {
		l, err := d.folder.Attach(name, at.program, func() (link.Link, error) {
			return link.AttachCgroup(link.CgroupOptions{Path: fmt.Sprintf("/proc/self/fd/%d", group.Fd()), Attach: at.hook, Program: at.program})
		})
		if err != nil {
			return fmt.Errorf("attach %s: %w", name, err)
		}
		d.links = append(d.links, l)
	}
	if d.ender, err = newEnder(d); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	d.owners, err = watchOwners(ctx, d)
	return err
}

// release closes what is open; pins stay.
func (d *Driver) release() {
	d.stop()
	if d.owners != nil {
		d.owners.wait()
	}
	if d.ender != nil {
		d.ender.close()
	}
	for _, l := range d.links {
		_ = l.Close()
	}
	_ = d.maps.Close()
	if d.here != nil {
		_ = d.here.Close()
	}
}

// Close releases what is open, and closes the driver. The kernel goes on.
func (d *Driver) Close() error {
	d.release()
	return d.Driver.Close()
}

// Capabilities implements driver.Driver.
func (d *Driver) Capabilities() driver.Capabilities {
	can := d.Driver.Capabilities()
	if d.ender != nil {
		can.Can &^= driver.SharedPorts | driver.InPackets
		can.Settler = settler{can.Settler, d.ender}
	}
	return can
}

// settler waits for sockets that are to end, too.
type settler struct {
	driver.Settler
	ender *ender
}

// Settle implements driver.Settler.
func (s settler) Settle(ctx context.Context) error {
	err := s.ender.passes.Wait(ctx)
	if s.Settler != nil {
		err = errors.Join(err, s.Settler.Settle(ctx))
	}
	return err
}

// Purge implements driver.Driver.
func (d *Driver) Purge(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owners != nil {
		d.table, d.purged = nil, true
		d.owners.serve(false)
	}
	return errors.Join(d.folder.Remove(), d.Driver.Purge(ctx))
}

// underWay is how long answers may be under way that sockets expect from what they asked.
const underWay = time.Second

// Withdraw turns off what an agent has left in the calling thread's network namespace, where
// services go on to be served in packets. Connected sockets of UDP go back to the service's
// address; connections of TCP stay as they are. Where there is something, it takes a second.
func Withdraw() error {
	f, err := bpf.Own(Name)
	if err != nil || !f.Exists() {
		return err
	}
	return errors.Join(giveBack(f), f.Remove())
}

func giveBack(f bpf.Folder) error {
	spec, err := loadBpf()
	if err != nil {
		return err
	}
	var maps bpfObjects
	if err := f.Load(spec, &maps, ebpf.ProgramOptions{}); err != nil {
		return err
	}
	defer func() { _ = maps.Close() }()
	var cookies []uint64
	err = each(maps.Namespaces, func(cookie uint64, _ uint8) { cookies = append(cookies, cookie) })
	if err = errors.Join(err, drop(maps.Namespaces, cookies)); err != nil {
		return err
	}
	time.Sleep(underWay)
	files, err := openFiles(maps.List)
	if err != nil {
		return err
	}
	defer func() { _ = files.it.Close() }()
	all, err := files.read()
	for _, s := range all {
		if s.As.Service.Protocol == uint16(model.UDP) {
			err = errors.Join(err, s.moveOn())
		}
	}
	return err
}

// Status says how it fares. Safe for concurrent use.
func (d *Driver) Status() driver.Accelerator {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := driver.Accelerator{Name: Name, Off: d.why}
	if d.why != "" {
		return s
	}
	s.Note = d.owners.note()
	if d.instead != "" {
		s.Note = "nothing is served at the socket: " + d.instead
	}
	if n := len(d.unserved); n > 0 {
		s.Note += fmt.Sprintf("; %s found no room, and are served in packets", model.Count(n, "frontend"))
	}
	var refused uint64
	if err := d.maps.Refused.Get(&refused); err == nil && refused > 0 {
		s.Note += fmt.Sprintf("; %s of sockets found no room, and went in packets", model.Count(int(refused), "connection"))
	}
	return s
}

// Flows counts the sockets that are connected to endpoints of frontends. Safe for concurrent use.
func (d *Driver) Flows(of []state.FrontendKey) (map[state.FrontendKey]map[netip.AddrPort]int, error) {
	counts := map[state.FrontendKey]map[netip.AddrPort]int{}
	if d.owners == nil {
		return counts, nil
	}
	wanted := make(map[bpfEndpoint]state.FrontendKey, len(of))
	for _, k := range of {
		wanted[frontendAt(k)] = k
	}
	err := each(d.maps.Connected, func(_ uint64, t bpfTranslation) {
		k, is := wanted[t.Service]
		if !is {
			return
		}
		if counts[k] == nil {
			counts[k] = map[netip.AddrPort]int{}
		}
		counts[k][t.Backend.addrPort()]++
	})
	return counts, err
}

// Serves reports whether connections from an address of the node, or of a pod of it, to a frontend
// get an endpoint at the socket. Safe for concurrent use.
func (d *Driver) Serves(client netip.Addr, k state.FrontendKey) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table != nil && d.table.frontends[frontendAt(k)] != nil && (d.local[client] || d.owners.has(client))
}

// Memory is what the maps take in the kernel, in bytes.
func (d *Driver) Memory() (sum uint64, err error) {
	if d.owners == nil {
		return 0, nil
	}
	for _, m := range []*ebpf.Map{d.maps.Namespaces, d.maps.Frontends, d.maps.Slots, d.maps.Servings, d.maps.Connected} {
		info, err := m.Info()
		if err != nil {
			return 0, err
		}
		size, _ := info.Memlock()
		sum += size
	}
	return sum, nil
}

// Adopt implements driver.Driver.
func (d *Driver) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	p, err := d.Driver.Adopt(ctx, want, keep)
	if err != nil {
		return nil, err
	}
	return &plan{p, d, d.adopt}, nil
}

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	p, err := d.Driver.Update(ctx, delta)
	if err != nil {
		return nil, err
	}
	if delta.Services.Settings != nil || len(delta.Policy.Hosts) > 0 {
		return &plan{p, d, d.adopt}, nil
	}
	return &plan{p, d, func() { d.follow(delta.Services.Frontends) }}, nil
}

// plan is a plan of the driver's, which the accelerator follows.
type plan struct {
	driver.Plan
	d      *Driver
	follow func()
}

// Apply implements driver.Plan. The accelerator follows what the driver holds then, also where the
// driver's plan fails; its own failures are no errors.
func (p *plan) Apply(ctx context.Context) error {
	err := p.Plan.Apply(ctx)
	p.follow()
	return err
}

// adopt has the maps hold what the driver does, whatever they hold.
func (d *Driver) adopt() {
	if d.owners == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.purged {
		return
	}
	d.adopted = true
	t, err := openTable(&d.maps.bpfMaps)
	if err != nil {
		d.fail(err)
		return
	}
	want := map[state.FrontendKey]*state.Frontend{}
	d.usable = map[state.FrontendKey][]netip.AddrPort{}
	d.Held(func(s *state.State) {
		if s.Services == nil {
			return
		}
		d.instead = inPackets(s)
		for k, f := range s.Services.Frontends {
			d.usable[k] = usable(k, f)
			if d.served(s.Services, k) {
				want[k] = f
			}
		}
	})
	var c change
	known := make(map[bpfEndpoint]bool, len(want))
	clear(d.unserved)
	for k, f := range want {
		known[frontendAt(k)] = true
		d.set(t, k, f, &c)
	}
	for at := range t.frontends {
		if !known[at] {
			t.remove(at, &c)
		}
	}
	d.write(t, &c)
	d.owners.serve(d.table != nil)
	d.ender.look()
}

// follow has the maps follow a change of frontends that the driver has carried out.
func (d *Driver) follow(changed map[state.FrontendKey]*state.Frontend) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.table == nil || len(changed) == 0 {
		return
	}
	now := make(map[state.FrontendKey]*state.Frontend, len(changed))
	left := false
	d.Held(func(s *state.State) {
		for k := range changed {
			f := s.Services.Frontends[k]
			if now[k] = nil; d.served(s.Services, k) {
				now[k] = f
			}
			before, after := d.usable[k], usable(k, f)
			left = left || slices.ContainsFunc(before, func(b netip.AddrPort) bool { return !state.Has(after, b) })
			if d.usable[k] = after; f == nil {
				delete(d.usable, k)
			}
		}
	})
	var c change
	for k, f := range now {
		d.set(d.table, k, f, &c)
	}
	d.write(d.table, &c)
	if left {
		d.ender.look()
	}
}

// set has a frontend be served as f says, if there is room for it.
func (d *Driver) set(t *table, k state.FrontendKey, f *state.Frontend, c *change) {
	if t.set(k, f, c) {
		delete(d.unserved, k)
	} else {
		d.unserved[k] = struct{}{}
	}
}

// own says which addresses the node has itself.
func (d *Driver) own(addrs []netip.Prefix) {
	now := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		now[a.Addr()] = true
	}
	d.mu.Lock()
	changed := !maps.Equal(d.local, now)
	d.local = now
	adopted := d.adopted
	d.mu.Unlock()
	if changed && adopted {
		d.adopt()
	}
}

// mend tries again what has failed.
func (d *Driver) mend() {
	d.mu.Lock()
	failed := d.adopted && d.table == nil
	d.mu.Unlock()
	if failed {
		d.adopt()
	}
}

func (d *Driver) write(t *table, c *change) {
	if err := t.write(c); err != nil {
		d.fail(err)
		return
	}
	d.table, d.why = t, ""
}

// fail turns it off until the next adoption, as the maps may hold what is not so any more.
func (d *Driver) fail(err error) {
	d.table, d.why = nil, err.Error()
	d.owners.serve(false)
	d.log.Warn("services are served in packets alone", "error", err)
}

// inPackets says why all services are to be served in packets; "": they need not. Policies that
// judge what comes before translation name services' addresses.
func inPackets(s *state.State) string {
	if s.Services.Settings.MasqueradeAll {
		return "every connection to a service is masqueraded"
	}
	if s.Policy != nil {
		for _, h := range s.Policy.Hosts {
			if h.PreDNAT != "" || h.UntrackedIn != "" || h.UntrackedOut != "" {
				return "host endpoint " + h.Name + " has policies that judge packets before they are translated"
			}
		}
	}
	return ""
}

// served reports whether sockets can have a frontend's endpoints. A client's address is known only
// when its first packet leaves; and whom nftables remembers by session affinity, nobody else knows.
// A service's address that is the node's own is another program's that listens there.
func (d *Driver) served(s *state.Services, k state.FrontendKey) bool {
	f := s.Frontends[k]
	return f != nil && d.instead == "" && (k.Protocol == model.TCP || k.Protocol == model.UDP) &&
		len(f.Backends) > 0 && f.Affinity == 0 && len(f.SourceRanges) == 0 && (f.Kind == state.NodePort || !d.local[k.Addr])
}

var _ driver.Driver = (*Driver)(nil)
