package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// kernel is what the kernel holds of ours.
type kernel struct {
	tunnels map[string]*device
	entries map[any]entry // by slot
	peers   map[model.PublicKey]*state.Peer
	odd     []entry        // further ones in slots that are taken
	names   map[int]string // of the devices that entries are on
}

func newKernel() *kernel {
	return &kernel{tunnels: map[string]*device{}, entries: map[any]entry{}, peers: map[model.PublicKey]*state.Peer{}, names: map[int]string{}}
}

func (k *kernel) has(e entry) bool { return k.entries[e.slot()] == e }

func (k *kernel) add(e entry) {
	if _, taken := k.entries[e.slot()]; taken {
		k.odd = append(k.odd, e)
		return
	}
	k.entries[e.slot()] = e
}

// forget forgets a tunnel and all that is on it.
func (k *kernel) forget(tunnel string) {
	if t := k.tunnels[tunnel]; t != nil {
		delete(k.names, t.index)
	}
	delete(k.tunnels, tunnel)
	if tunnel == state.DeviceWG {
		clear(k.peers)
	}
	for slot, e := range k.entries {
		if e.on() == tunnel {
			delete(k.entries, slot)
		}
	}
	k.odd = slices.DeleteFunc(k.odd, func(e entry) bool { return e.on() == tunnel })
}

// device is a device of one of our names.
type device struct {
	index  int
	tunnel state.Tunnel // without its addresses; WireGuard: nor the one that packets travel from
	plain  bool         // it is up, and of a make that we can leave as it is
	fixed  bool         // it is of our make except for what can be changed
	addrs  []netip.Prefix
}

// is reports whether the device is as a tunnel says.
func (d *device) is(t *state.Tunnel) bool {
	return d.plain && d.canBecome(t) && d.tunnel.MTU == t.MTU && d.tunnel.Key == t.Key && d.tunnel.Port == t.Port && slices.Equal(d.addrs, hostPrefixes(t))
}

// canBecome reports whether the device can be made what a tunnel says, with all that is on it.
// (Neighbours go when the MAC changes.)
func (d *device) canBecome(t *state.Tunnel) bool {
	now := d.tunnel
	now.MTU, now.Address, now.Address6 = t.MTU, t.Address, t.Address6
	if t.Encapsulation == state.WireGuard {
		now.Local, now.Key, now.Port = t.Local, t.Key, t.Port
	}
	return d.fixed && now == *t
}

// hostPrefixes are a tunnel's addresses, IPv4 first.
func hostPrefixes(t *state.Tunnel) (list []netip.Prefix) {
	for _, a := range []netip.Addr{t.Address, t.Address6} {
		if a.IsValid() {
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return list
}

// read reads what the kernel holds.
func (d *Driver) read() (*kernel, error) {
	k := newKernel()
	for _, name := range Devices {
		dev, err := d.readDevice(k, name)
		if err != nil {
			return nil, err
		}
		if dev == nil {
			continue
		}
		k.tunnels[name], k.names[dev.index] = dev, name
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
			if family == unix.AF_BRIDGE && dev.tunnel.Encapsulation != state.VXLAN {
				continue
			}
			if err := d.readNeighbours(k, family, dev.index); err != nil {
				return nil, err
			}
		}
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := d.readRoutes(k, family); err != nil {
			return nil, err
		}
	}
	return k, nil
}

func (d *Driver) readRoutes(k *kernel, family byte) error {
	body := []byte{family, 0, 0, 0, unix.RT_TABLE_UNSPEC, RouteProtocol, 0, 0, 0, 0, 0, 0}
	found, err := list(d.socket, unix.RTM_GETROUTE, unix.RTM_NEWROUTE, body, func(body []byte) (route, bool) { return readRoute(body, d.namer(k)) })
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range found {
		k.add(r)
	}
	return nil
}

func (d *Driver) readNeighbours(k *kernel, family byte, index int) error {
	a := attr.Attrs{B: append([]byte{family}, make([]byte, unix.SizeofNdMsg-1)...)}
	a.Bytes(unix.NDA_IFINDEX, number(uint32(index)))
	found, err := list(d.socket, unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, a.B, func(body []byte) (entry, bool) { return readNeighbour(body, d.namer(k)) })
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	for _, e := range found {
		k.add(e)
	}
	return nil
}

// namer names devices by their indexes; "" for one that is gone.
func (d *Driver) namer(k *kernel) func(int) string {
	return func(index int) string {
		name, known := k.names[index]
		if !known {
			if l, err := d.links.LinkByIndex(index); err == nil {
				name = l.Attrs().Name
			}
			k.names[index] = name
		}
		return name
	}
}

// readDevice returns nil if there is no device of the name, or one of a type that we make none of:
// that is another program's.
func (d *Driver) readDevice(k *kernel, name string) (*device, error) {
	l, err := d.links.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find device %s: %w", name, err)
	}
	dev := &device{index: l.Attrs().Index}
	dev.tunnel.MTU = l.Attrs().MTU
	switch l := l.(type) {
	case *netlink.Vxlan:
		dev.tunnel.Encapsulation, dev.tunnel.VNI, dev.tunnel.Port = state.VXLAN, uint32(l.VxlanId), uint16(l.Port)
		dev.tunnel.Local, _ = netip.AddrFromSlice(l.SrcAddr)
		copy(dev.tunnel.MAC[:], l.HardwareAddr)
		dev.fixed = !l.Learning && !l.FlowBased && !l.GBP && l.Group == nil && l.VtepDevIndex == 0
	case *netlink.Iptun:
		dev.tunnel.Encapsulation = state.IPIP
		dev.tunnel.Local, _ = netip.AddrFromSlice(l.Local)
		dev.fixed = !l.FlowBased && (l.Remote == nil || l.Remote.IsUnspecified())
	case *netlink.Wireguard:
		if err := d.readWireGuard(k, dev); err != nil {
			return nil, err
		}
	default:
		return nil, nil
	}
	dev.tunnel.Local = dev.tunnel.Local.Unmap()
	dev.plain = dev.fixed && l.Attrs().Flags&net.FlagUp != 0
	return dev, d.readAddresses(l, dev)
}

func (d *Driver) readAddresses(l netlink.Link, dev *device) error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := link.Dump(func() ([]netlink.Addr, error) { return d.links.AddrList(l, family) })
		if err != nil {
			return fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
		}
		for _, a := range found {
			addr, _ := netip.AddrFromSlice(a.IP)
			ones, _ := a.Mask.Size()
			if !addr.IsLinkLocalUnicast() {
				dev.addrs = append(dev.addrs, netip.PrefixFrom(addr.Unmap(), ones))
			}
		}
	}
	return nil
}

// makeTunnel makes a device, or changes the one that there is, and returns it as it is then, also
// with a noIPv6Error.
func (d *Driver) makeTunnel(name string, now *device, t *state.Tunnel) (*device, error) {
	if now == nil {
		err := d.links.LinkAdd(newLink(name, t))
		if errors.Is(err, unix.EEXIST) {
			err = d.rival(name, t, err)
		}
		if err != nil {
			return nil, fmt.Errorf("create %s device: %w", t.Encapsulation, err)
		}
		now = &device{}
	}
	l, err := d.links.LinkByName(name)
	if err != nil {
		return nil, err
	}
	made := &device{index: l.Attrs().Index, tunnel: *t, plain: true, fixed: true, addrs: hostPrefixes(t)}
	err = d.configure(l, now, t)
	if _, is := errors.AsType[*noIPv6Error](err); is {
		made.addrs = slices.DeleteFunc(made.addrs, func(a netip.Prefix) bool { return a.Addr().Is6() })
	} else if err != nil {
		return nil, err
	}
	return made, err
}

// noIPv6Error: the kernel made our device without IPv6, and this process may not turn it on, as in
// a container that is not privileged. All else of the device is as it should be.
type noIPv6Error struct {
	device string
	why    error
}

func (e *noIPv6Error) Error() string {
	return fmt.Sprintf("it has no IPv6, nor have other new interfaces of this node: set net/ipv6/conf/%s/disable_ipv6=0 by sysctl -w, and net.ipv6.conf.default.disable_ipv6=0 in /etc/sysctl.d (%v)", e.device, e.why)
}

// rivalError: another program's device has the name of ours, or takes the packets that ours would.
type rivalError struct{ device, is string }

func (r *rivalError) Error() string {
	return fmt.Sprintf("device %s %s: remove it (ip link del %[1]s)", r.device, r.is)
}

// rival says which device has the name, or the VNI and port, of a tunnel, or what the kernel said
// if none does.
func (d *Driver) rival(name string, t *state.Tunnel, said error) error {
	if l, err := d.links.LinkByName(name); err == nil {
		return &rivalError{name, "is another program's, of type " + l.Type()}
	}
	links, err := link.Dump(d.links.LinkList)
	if err != nil || t.Encapsulation != state.VXLAN {
		return said
	}
	for _, l := range links {
		if x, is := l.(*netlink.Vxlan); is && x.VxlanId == int(t.VNI) && x.Port == int(t.Port) {
			return &rivalError{x.Name, fmt.Sprintf("has VNI %d and port %d already", t.VNI, t.Port)}
		}
	}
	return said
}

func newLink(name string, t *state.Tunnel) netlink.Link {
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU = name, t.MTU
	switch t.Encapsulation {
	case state.WireGuard:
		return &netlink.Wireguard{LinkAttrs: a}
	case state.IPIP:
		return &netlink.Iptun{LinkAttrs: a, Local: t.Local.AsSlice(), PMtuDisc: 1}
	}
	a.HardwareAddr = t.MAC[:]
	return &netlink.Vxlan{LinkAttrs: a, VxlanId: int(t.VNI), SrcAddr: t.Local.AsSlice(), Port: int(t.Port), NoAge: true}
}

// configure gives a device what can be changed, and brings it up, also where it has no IPv6.
func (d *Driver) configure(l netlink.Link, now *device, t *state.Tunnel) error {
	if now.tunnel.MTU != t.MTU {
		if err := d.links.LinkSetMTU(l, t.MTU); err != nil {
			return fmt.Errorf("set MTU %d: %w", t.MTU, err)
		}
	}
	if err := d.keyed(now, t); err != nil {
		return err
	}
	want := hostPrefixes(t)
	var lacking *noIPv6Error
	for _, a := range want {
		if !slices.Contains(now.addrs, a) {
			err := d.links.AddrAdd(l, address(a))
			if errors.Is(err, unix.EACCES) {
				err = d.addIPv6(l, a)
			}
			if errors.As(err, &lacking) {
				continue
			}
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("add address %s: %w", a, err)
			}
		}
	}
	for _, a := range now.addrs {
		if !slices.Contains(want, a) {
			if err := d.links.AddrDel(l, address(a)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("remove address %s: %w", a, err)
			}
		}
	}
	if err := d.links.LinkSetUp(l); err != nil {
		return fmt.Errorf("bring up: %w", err)
	}
	if lacking != nil {
		return lacking
	}
	return nil
}

// addIPv6 adds an address to a device that the kernel made without IPv6.
func (d *Driver) addIPv6(l netlink.Link, a netip.Prefix) error {
	err := d.here.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+l.Attrs().Name+"/disable_ipv6", []byte("0"), 0)
	})
	if err != nil {
		return &noIPv6Error{l.Attrs().Name, err}
	}
	return d.links.AddrAdd(l, address(a))
}

func address(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// removeTunnel removes a device of one of our names; it need not be there.
func (d *Driver) removeTunnel(name string) error {
	l, err := d.links.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return nil
	}
	if err == nil {
		err = d.links.LinkDel(l)
	}
	if err != nil {
		return fmt.Errorf("remove device %s: %w", name, err)
	}
	return nil
}
