package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// watched are the notifications that tell of changes to what is ours, and to what it depends on.
const watched = unix.RTMGRP_LINK | unix.RTMGRP_NEIGH | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR |
	unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE

// Tampered implements driver.Driver.
func (d *Driver) Tampered(ctx context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	err := d.judge()
	return d.doubt && d.want != nil, err
}

// listen keeps the watch's buffer from overflowing during a large change of our own.
func (d *Driver) listen() {
	if d.judge() != nil {
		d.doubt = true
	}
}

// judge reads what the kernel has told of changes, and doubts where that is not what we hold.
func (d *Driver) judge() error {
	return d.drain(func(m syscall.NetlinkMessage) { d.doubt = d.doubt || d.contradicts(m) })
}

// judgeOthers is judge without what is told of a device, which we have just changed ourselves.
func (d *Driver) judgeOthers(device int) error {
	return d.drain(func(m syscall.NetlinkMessage) {
		isRoute := m.Header.Type == unix.RTM_NEWROUTE || m.Header.Type == unix.RTM_DELROUTE
		if isRoute || len(m.Data) >= 8 && int(binary.NativeEndian.Uint32(m.Data[4:])) != device {
			d.doubt = d.doubt || d.contradicts(m)
		}
	})
}

// drain reads the notifications that are there. Where some were lost it doubts.
func (d *Driver) drain(f func(syscall.NetlinkMessage)) error {
	err := d.watch.notifications(f)
	for errors.Is(err, unix.ENOBUFS) {
		d.doubt = true
		err = d.watch.notifications(f)
	}
	return err
}

// contradicts reports whether a notification tells of something else than what we hold.
func (d *Driver) contradicts(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return d.routeContradicts(m)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return d.neighbourContradicts(m)
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return d.linkContradicts(m)
	case unix.RTM_DELADDR, unix.RTM_NEWADDR:
		return d.addressContradicts(m)
	}
	return false
}

func (d *Driver) routeContradicts(m syscall.NetlinkMessage) bool {
	r, ours := readRoute(m.Data, d.used)
	_, taken := d.now.entries[r.slot()]
	_, aside := d.aside[r.slot()]
	switch {
	case !ours && m.Header.Type == unix.RTM_NEWROUTE:
		return taken || d.want != nil && comesBefore(r, d.want)
	case !ours: // one that goes may make way for ours
		return aside || slices.ContainsFunc(d.before, func(b before) bool { return b.prefix == r.prefix })
	case m.Header.Type == unix.RTM_DELROUTE:
		return d.now.has(r)
	}
	return !d.now.has(r)
}

// used names the devices that our entries are on; "" is another.
func (d *Driver) used(index int) string { return d.now.names[index] }

// tunnelAt returns the tunnel device of an index, nil if that is another's.
func (d *Driver) tunnelAt(index int) *device {
	for _, t := range d.now.tunnels {
		if t.index == index {
			return t
		}
	}
	return nil
}

func (d *Driver) neighbourContradicts(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofNdMsg || d.tunnelAt(int(binary.NativeEndian.Uint32(m.Data[4:]))) == nil {
		return false
	}
	e, permanent := readNeighbour(m.Data, d.used)
	if f, is := e.(forward); is && !f.remote.IsValid() {
		return false // kernels before 6.15 tell of each forwarding entry a second time, without the address
	}
	if permanent && m.Header.Type == unix.RTM_NEWNEIGH {
		return !d.now.has(e)
	}
	_, taken := d.now.entries[e.slot()]
	return taken
}

func (d *Driver) linkContradicts(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_UNSPEC {
		return false
	}
	index := int(binary.NativeEndian.Uint32(m.Data[4:]))
	up := m.Header.Type == unix.RTM_NEWLINK && binary.NativeEndian.Uint32(m.Data[8:])&unix.IFF_UP != 0
	used := d.used(index) != ""
	if t := d.tunnelAt(index); t != nil && up {
		return t.differs(m.Data[unix.SizeofIfInfomsg:])
	}
	// Of routes that go with their device the kernel tells nothing.
	if !up && (used || slices.ContainsFunc(d.before, func(b before) bool { return b.link == index })) {
		return true
	}
	// Something may have been set aside for want of a device that is up now, or for one in its way
	// that may have gone.
	name := attr.Text(attr.Find(m.Data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME))
	for _, a := range d.aside {
		if a.device == name && name != "" {
			return true
		}
	}
	return false
}

// differs reports whether a notification tells of another MTU or MAC.
func (t *device) differs(attrs []byte) bool {
	for typ, value := range attr.All(attrs) {
		switch {
		case typ == unix.IFLA_MTU && int(binary.NativeEndian.Uint32(value)) != t.tunnel.MTU:
			return true
		case typ == unix.IFLA_ADDRESS && len(value) == len(t.tunnel.MAC) && [6]byte(value) != t.tunnel.MAC:
			return true
		}
	}
	return false
}

func (d *Driver) addressContradicts(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfAddrmsg {
		return false
	}
	index := int(binary.NativeEndian.Uint32(m.Data[4:]))
	t := d.tunnelAt(index)
	if t == nil {
		return d.used(index) != "" && m.Header.Type == unix.RTM_DELADDR // the kernel takes routes away with a device's last address
	}
	addr, ok := netip.AddrFromSlice(attr.Find(m.Data[unix.SizeofIfAddrmsg:], unix.IFA_ADDRESS))
	has := slices.Contains(t.addrs, netip.PrefixFrom(addr, int(m.Data[1])))
	return ok && !addr.IsLinkLocalUnicast() && has != (m.Header.Type == unix.RTM_NEWADDR)
}
