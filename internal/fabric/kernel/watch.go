package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// watched are the notifications that tell of changes to what is ours, and to what it depends on.
var watched = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
}

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
	return d.drain(func(m message) { d.doubt = d.doubt || d.contradicts(m) })
}

// judgeOthers is judge without what is told of a device, which we have just changed ourselves.
func (d *Driver) judgeOthers(device int) error {
	return d.drain(func(m message) {
		isRoute := m.typ == unix.RTM_NEWROUTE || m.typ == unix.RTM_DELROUTE
		if isRoute || len(m.body) >= 8 && int(binary.NativeEndian.Uint32(m.body[4:])) != device {
			d.doubt = d.doubt || d.contradicts(m)
		}
	})
}

// drain reads the notifications that are there. Where some were lost it doubts.
func (d *Driver) drain(f func(message)) error {
	err := d.watch.receive(f)
	for errors.Is(err, unix.ENOBUFS) {
		d.doubt = true
		err = d.watch.receive(f)
	}
	return err
}

// contradicts reports whether a notification tells of something else than what we hold.
func (d *Driver) contradicts(m message) bool {
	switch m.typ {
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

func (d *Driver) routeContradicts(m message) bool {
	r, ours := readRoute(m.body, d.used)
	_, taken := d.now.entries[r.slot()]
	_, aside := d.aside[r.slot()]
	switch {
	case !ours && m.typ == unix.RTM_NEWROUTE:
		return taken || d.want != nil && comesBefore(r, d.want)
	case !ours: // one that goes may make way for ours
		return aside || slices.ContainsFunc(d.before, func(b before) bool { return b.prefix == r.prefix })
	case m.typ == unix.RTM_DELROUTE:
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

func (d *Driver) neighbourContradicts(m message) bool {
	if len(m.body) < unix.SizeofNdMsg || d.tunnelAt(int(binary.NativeEndian.Uint32(m.body[4:]))) == nil {
		return false
	}
	e, permanent := readNeighbour(m.body, d.used)
	if f, is := e.(forward); is && !f.remote.IsValid() {
		return false // kernels before 6.15 tell of each forwarding entry a second time, without the address
	}
	if permanent && m.typ == unix.RTM_NEWNEIGH {
		return !d.now.has(e)
	}
	_, taken := d.now.entries[e.slot()]
	return taken
}

func (d *Driver) linkContradicts(m message) bool {
	if len(m.body) < unix.SizeofIfInfomsg || m.body[0] != unix.AF_UNSPEC {
		return false
	}
	index := int(binary.NativeEndian.Uint32(m.body[4:]))
	up := m.typ == unix.RTM_NEWLINK && binary.NativeEndian.Uint32(m.body[8:])&unix.IFF_UP != 0
	used := d.used(index) != ""
	if t := d.tunnelAt(index); t != nil && up {
		return t.differs(m.body[unix.SizeofIfInfomsg:])
	}
	// Of routes that go with their device the kernel tells nothing.
	if !up && (used || slices.ContainsFunc(d.before, func(b before) bool { return b.link == index })) {
		return true
	}
	return d.waitsFor(m.body[unix.SizeofIfInfomsg:])
}

// differs reports whether a notification tells of another MTU or MAC.
func (t *device) differs(attrs []byte) bool {
	for typ, value := range attributes(attrs) {
		switch {
		case typ == unix.IFLA_MTU && int(binary.NativeEndian.Uint32(value)) != t.tunnel.MTU:
			return true
		case typ == unix.IFLA_ADDRESS && len(value) == len(t.tunnel.MAC) && [6]byte(value) != t.tunnel.MAC:
			return true
		}
	}
	return false
}

// waitsFor reports whether something was set aside for want of a device that is up now, or for one
// in its way that may have gone.
func (d *Driver) waitsFor(attrs []byte) bool {
	for typ, value := range attributes(attrs) {
		if typ == unix.IFLA_IFNAME {
			for _, a := range d.aside {
				if a.device == unix.ByteSliceToString(value) {
					return true
				}
			}
		}
	}
	return false
}

func (d *Driver) addressContradicts(m message) bool {
	if len(m.body) < unix.SizeofIfAddrmsg {
		return false
	}
	index := int(binary.NativeEndian.Uint32(m.body[4:]))
	t := d.tunnelAt(index)
	if t == nil {
		return d.used(index) != "" && m.typ == unix.RTM_DELADDR // the kernel takes routes away with a device's last address
	}
	for typ, value := range attributes(m.body[unix.SizeofIfAddrmsg:]) {
		if addr, ok := netip.AddrFromSlice(value); ok && typ == unix.IFA_ADDRESS && !addr.IsLinkLocalUnicast() {
			has := slices.Contains(t.addrs, netip.PrefixFrom(addr, int(m.body[1])))
			return has != (m.typ == unix.RTM_NEWADDR)
		}
	}
	return false
}
