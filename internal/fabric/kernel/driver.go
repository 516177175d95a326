// Package kernel carries out the part of the desired state that says how this node reaches the pods
// of others: tunnel devices, their forwarding entries and neighbours, and routes.
//
// What is ours carries our names: devices of the names below with all that is on them, and routes
// of RouteProtocol. Nothing else is changed or removed. A change sets what is new before it removes
// what is old, and replaces a route in one step, so that traffic always has a way.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// What our routes carry: the protocol number, and a metric from Metric on. A route of another
// program to the same prefix comes before ours unless it has a higher metric.
const (
	RouteProtocol = 83 // rtm_protocol; give it a name with a line "83 sluice" in /etc/iproute2/rt_protos
	Metric        = 8383
	metrics       = 64
)

// Devices are the names of our tunnel devices.
var Devices = []string{state.DeviceVXLAN, state.DeviceVXLAN6, state.DeviceIPIP, state.DeviceWG}

// Driver programs the network namespace of the thread that opened it.
type Driver struct {
	log    *slog.Logger
	here   *netns.NS // it is the namespace of all sockets
	links  *netlink.Handle
	socket *socket
	watch  *socket
	close  func() error   // once
	wg     *wgctrl.Client // nil: nothing is encrypted
	key    [32]byte       // private

	mu     sync.Mutex    // held by every method
	want   *state.Fabric // all of it, what is set aside too; nil before the first adoption
	now    *kernel       // what the kernel holds, as far as we know
	aside  map[any]aside // by the name of a tunnel, or the slot of an entry
	before []before      // routes of other programs that take the packets or the place of ours, as of the last adoption
	doubt  bool          // others may have changed what we programmed
}

var _ driver.Driver = (*Driver)(nil)

// Open opens the driver's sockets in the calling thread's network namespace, where they stay. It
// changes nothing.
func Open(o driver.Options) (*Driver, error) {
	d := &Driver{log: o.Log, now: newKernel(), aside: map[any]aside{}}
	if d.log == nil {
		d.log = slog.Default()
	}
	d.close = sync.OnceValue(d.closeAll)
	var err error
	if d.here, err = netns.OpenPath("/proc/thread-self/ns/net"); err != nil {
		return nil, err
	}
	if d.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(fmt.Errorf("open routing socket: %w", err), d.here.Close())
	}
	if d.socket, err = dial(0); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.watch, err = dial(watched); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close implements driver.Driver.
func (d *Driver) Close() error { return d.close() }

func (d *Driver) closeAll() (err error) {
	d.links.Close()
	err = d.here.Close()
	for _, s := range []*socket{d.socket, d.watch} {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	if d.wg != nil {
		err = errors.Join(err, d.wg.Close())
	}
	return err
}

// Capabilities implements driver.Driver.
func (d *Driver) Capabilities() driver.Capabilities {
	return driver.Capabilities{Name: "fabric", Can: driver.Fabric | driver.Survives | driver.AuditsCheaply | driver.Keeps}
}

// Held implements driver.Driver.
func (d *Driver) Held(f func(*state.State)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.want == nil {
		return
	}
	held := d.want
	if len(d.aside) > 0 {
		held = d.want.Clone()
		maps.DeleteFunc(held.Tunnels, func(name string, _ *state.Tunnel) bool { return d.now.tunnels[name] == nil })
		maps.DeleteFunc(held.Peers, func(key model.PublicKey, _ *state.Peer) bool { return d.now.peers[key] == nil })
		maps.DeleteFunc(held.Routes, func(to netip.Prefix, r *state.Route) bool { return !d.now.has(wantedRoute(to, r)) })
		maps.DeleteFunc(held.VTEPs, func(k state.VTEPKey, v *state.VTEP) bool {
			e := wantedVTEP(k, v)
			return !d.now.has(e[0]) || !d.now.has(e[1])
		})
	}
	f(&state.State{Fabric: held})
}

// SetAside implements driver.Driver.
func (d *Driver) SetAside() []driver.SetAside {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]driver.SetAside, 0, len(d.aside))
	for _, a := range d.aside {
		all = append(all, a.SetAside)
	}
	all = append(all, beforeAside(d.before)...)
	slices.SortFunc(all, driver.SetAside.Compare)
	return slices.Compact(all)
}

// Adopt implements driver.Driver.
func (d *Driver) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil || want.Fabric == nil {
		return &plan{d: d}, err
	}
	return d.adopt(want.Fabric.Clone(), keep.Fabric)
}

// adopt plans the difference between what the kernel has and what is wanted.
func (d *Driver) adopt(want *state.Fabric, keep bool) (*plan, error) {
	if err := d.drain(func(syscall.NetlinkMessage) {}); err != nil { // before anything is read: no later change is missed
		return nil, err
	}
	d.doubt = false
	now, err := d.read()
	if err != nil {
		return nil, err
	}
	first, err := d.readBefore(now, want)
	if err != nil {
		return nil, err
	}
	p := &plan{d: d, want: want, now: now, aside: map[any]aside{}, before: first, peers: map[model.PublicKey]*state.Peer{}}
	earlier := state.NewFabric()
	if d.want != nil {
		earlier = d.want
	}
	for _, name := range Devices {
		p.tunnel(name, want.Tunnels[name], keep && earlier.Tunnels[name] == nil)
	}
	for key, peer := range want.Peers {
		p.peer(key, peer, false)
	}
	for key := range now.peers {
		if want.Peers[key] == nil {
			p.peer(key, nil, keep && earlier.Peers[key] == nil)
		}
	}
	set, named := entries(want.VTEPs, want.Routes), map[any]entry(nil)
	if keep {
		named = entries(earlier.VTEPs, earlier.Routes)
	}
	for slot, e := range now.entries {
		p.clear(e, set, keep && named[slot] == nil)
	}
	for _, e := range now.odd {
		p.clear(e, nil, keep)
	}
	p.set(set)
	return p, nil
}

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if d.want == nil {
		return nil, errors.New("update of a fabric that was never adopted")
	}
	f := delta.Fabric
	p := &plan{d: d, want: d.want, delta: f, now: d.now, aside: d.aside, before: d.before, update: true, peers: map[model.PublicKey]*state.Peer{}}
	for name, t := range f.Tunnels {
		if now := d.now.tunnels[name]; now != nil && t != nil && !now.canBecome(t) { // all on it goes with it
			want := d.want.Clone()
			want.Apply(f)
			return d.adopt(want, false)
		}
		p.tunnel(name, t, false)
	}
	for key, peer := range f.Peers {
		p.peer(key, peer, false)
	}
	set := entries(f.VTEPs, f.Routes)
	for _, e := range entries(replaced(d.want.VTEPs, f.VTEPs), replaced(d.want.Routes, f.Routes)) {
		if d.now.has(e) {
			p.clear(e, set, false)
		}
	}
	p.set(set)
	return p, nil
}

// replaced returns what is in the place of changes; nil: nothing.
func replaced[K comparable, V any](now, changes map[K]*V) map[K]*V {
	old := make(map[K]*V, len(changes))
	for k := range changes {
		old[k] = now[k]
	}
	return old
}

// Purge implements driver.Driver.
func (d *Driver) Purge(ctx context.Context) error {
	p, err := d.Adopt(ctx, &state.State{Fabric: state.NewFabric()}, driver.Keep{})
	if err != nil {
		return err
	}
	return p.Apply(ctx)
}

// What the devices of the modes need of the kernel. IPIP is asked for by those that use it: where
// it is missing, the device is set aside.
var (
	VXLAN = makes("VXLAN", "3.7", "vxlan", state.DeviceVXLAN, &state.Tunnel{Encapsulation: state.VXLAN, VNI: 1, Port: 4789, MTU: 1450, MAC: state.MAC{2}})
	IPIP  = makes("IPIP", "3.9", "ipip", state.DeviceIPIP, &state.Tunnel{Encapsulation: state.IPIP, MTU: 1480})

	WireGuard = &probe.Requirement{Name: "WireGuard", Since: "5.6", Modules: []string{"wireguard"}, Check: findWireGuard}
)

// makes is the requirement that a device can be made. Who may not try it apart learns it when the
// device is set aside.
func makes(name, since, module, device string, t *state.Tunnel) *probe.Requirement {
	t.Local = netip.AddrFrom4([4]byte{192, 0, 2, 1}) // without one it would be the tunl0 that the module makes
	return &probe.Requirement{
		Name: name, Since: since, Modules: []string{module},
		Check: func(context.Context) error {
			err := netns.Apart(func() error {
				h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
				if err != nil {
					return err
				}
				defer h.Close()
				return h.LinkAdd(newLink(device, t))
			})
			if errors.Is(err, netns.ErrApart) {
				return nil
			}
			return err
		},
	}
}

// Probe implements driver.Driver.
func (d *Driver) Probe(ctx context.Context) error { return VXLAN.Met(ctx) }
