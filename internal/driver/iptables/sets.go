package iptables

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
)

// maxElements is the most that one set holds; the kernel's own choice is 65536.
const maxElements = 1 << 20

// createSet creates a set of a family.
func (d *Driver) createSet(v6 bool, name string, s *set) error {
	o := netlink.IpsetCreateOptions{Family: unix.AF_INET, MaxElements: cmp.Or(s.most, maxElements)}
	if v6 {
		o.Family = unix.AF_INET6
	}
	if s.timeout {
		o.Timeout = new(uint32)
	}
	if err := d.ns.IpsetCreate(name, s.kind, o); err != nil {
		return fmt.Errorf("create ipset %s of type %s: %w", name, s.kind, err)
	}
	return nil
}

// entry is an element for netlink. Adding what is there, and deleting what is not, succeeds.
func (e membership) entry() *netlink.IPSetEntry {
	entry := &netlink.IPSetEntry{Replace: true}
	if e.left > 0 {
		left := uint32(max(1, e.left/time.Second))
		entry.Timeout = &left
	}
	if e.protocol != 0 {
		protocol := uint8(e.protocol)
		entry.Protocol, entry.Port = &protocol, &e.port
	}
	switch {
	case e.addr.IsValid() && e.net.IsValid():
		entry.IP, entry.IP2 = e.addr.AsSlice(), e.net.Addr().AsSlice()
		if !e.net.IsSingleIP() { // a set of type hash:ip,port,ip has no lengths
			entry.CIDR2 = uint8(e.net.Bits())
		}
	case e.addr.IsValid():
		entry.IP = e.addr.AsSlice()
	default:
		entry.IP, entry.CIDR = e.net.Addr().AsSlice(), uint8(e.net.Bits())
	}
	return entry
}

// elementOf is the reverse of entry for a set of a type.
func elementOf(kind string, entry netlink.IPSetEntry) (e element) {
	addr, _ := netip.AddrFromSlice(entry.IP)
	if kind == "hash:net" {
		e.net = netip.PrefixFrom(addr, int(entry.CIDR))
		return e
	}
	e.addr = addr
	if entry.Protocol != nil && entry.Port != nil {
		e.protocol, e.port = model.Protocol(*entry.Protocol), *entry.Port
	}
	if other, ok := netip.AddrFromSlice(entry.IP2); ok {
		e.net = netip.PrefixFrom(other, int(entry.CIDR2))
	}
	return e
}

// readSets reads all our sets. One of another type than ours is not ours, whatever its name: it is
// an error if ours cannot be there for it.
func (d *Driver) readSets() (sets [2]map[string]*set, foreign error, err error) {
	sets = [2]map[string]*set{{}, {}}
	found, err := d.listSets()
	if err != nil {
		return sets, nil, err
	}
	for _, r := range found {
		i, kind, ours := known(r.SetName)
		if !ours {
			continue
		}
		if family := []uint8{unix.AF_INET, unix.AF_INET6}[i]; r.TypeName != kind || r.Family != family {
			foreign = errors.Join(foreign, fmt.Errorf("ipset %s is another program's: it is of type %s, and not %s of its family; remove it, or run that program without it", r.SetName, r.TypeName, kind))
			continue
		}
		s := &set{kind: kind, timeout: kind == clientsKind || r.SetName == (family{v6: i == 1}).name(setAgain), elements: map[element]bool{}}
		sets[i][r.SetName] = s
		if s.timeout {
			continue
		}
		whole, err := d.ns.IpsetList(r.SetName)
		if err != nil {
			return sets, nil, fmt.Errorf("list ipset %s: %w", r.SetName, err)
		}
		for _, e := range whole.Entries {
			s.elements[elementOf(kind, e)] = true
		}
	}
	return sets, foreign, nil
}

// listSets lists all ipsets by name, type and family alone: package netlink understands neither the
// elements nor the options of all types.
func (d *Driver) listSets() (list []netlink.IPSetResult, err error) {
	const headersOnly = 1 << 2 // IPSET_FLAG_LIST_HEADER
	var messages [][]byte
	err = d.ns.Do(func() (err error) {
		r := nl.NewNetlinkRequest(nl.IPSET_CMD_LIST|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(nl.IPSET_CMD_LIST))
		r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_NETLINK})
		r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
		r.AddData(&nl.Uint32Attribute{Type: nl.IPSET_ATTR_FLAGS | unix.NLA_F_NET_BYTEORDER, Value: headersOnly})
		messages, err = r.Execute(unix.NETLINK_NETFILTER, 0)
		return err
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	for _, m := range messages {
		var s netlink.IPSetResult
		for a := range nl.ParseAttributes(m[nl.SizeofNfgenmsg:]) {
			switch a.Type {
			case nl.IPSET_ATTR_SETNAME:
				s.SetName = nl.BytesToString(a.Value)
			case nl.IPSET_ATTR_TYPENAME:
				s.TypeName = nl.BytesToString(a.Value)
			case nl.IPSET_ATTR_FAMILY:
				s.Family = a.Value[0]
			}
		}
		list = append(list, s)
	}
	return list, nil
}

// known returns the family and type of the set that we call so.
func known(name string) (family int, kind string, ours bool) {
	for i, p := range []string{prefix + "4-", prefix + "6-"} {
		of, is := strings.CutPrefix(name, p)
		kind := cmp.Or(kinds[of], fabricKinds[of], policyKinds[of])
		switch {
		case strings.HasPrefix(of, "A-"):
			kind = clientsKind
		case strings.HasPrefix(of, "P-"):
			kind = cmp.Or(kind, lookupOf(of))
		}
		if is && kind != "" {
			return i, kind, true
		}
	}
	return 0, "", false
}
